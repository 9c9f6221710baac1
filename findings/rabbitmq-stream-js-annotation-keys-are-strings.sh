#!/usr/bin/env bash
# One would guess: the keys of message annotations are symbols (0xa3), as AMQP 1.0 part 3 §3.2.10 demands of the type
# "annotations", and as all other clients write them.
# What happens: rabbitmq-stream-js-client 1.0.0 writes them as strings (0xa1), without an error. Qpid Proton's Python binding
# 0.40.0 hides it: it reads such a key as a symbol, and writes one when the message is sent on.
# Source: npm rabbitmq-stream-js-client 1.0.0, dist/amqp10/encoder.js (writeMessageAnnotations).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . rabbitmq-stream-js-client@1.0.0 rhea@3.0.5 >npm.out 2>&1 || { cat npm.out; exit 1; }
python3 -m venv python && python/bin/pip install --quiet --disable-pip-version-check python-qpid-proton==0.40.0
cat >seen.js <<'JS'
const base = __dirname + '/node_modules/';
const { amqpEncode } = require(base + 'rabbitmq-stream-js-client/dist/amqp10/encoder.js');
const { BufferDataWriter } = require(base + 'rabbitmq-stream-js-client/dist/requests/buffer_data_writer.js');
const writer = new BufferDataWriter(Buffer.alloc(256), 0);
amqpEncode(writer, { content: Buffer.from('x'), messageAnnotations: { 'x-a': 'v' } });
console.log('rabbitmq-stream-js-client 1.0.0', writer.buffer.subarray(4, writer.offset).toString('hex'));
console.log('rhea 3.0.5', require(base + 'rhea').message.encode({ message_annotations: { 'x-a': 'v' }, body: null }).toString('hex'));
JS
node seen.js | tee seen.txt
python/bin/python - "$(head -1 seen.txt | cut -d' ' -f3)" <<'PY' | tee -a seen.txt
import sys, proton
message = proton.Message()
message.decode(bytes.fromhex(sys.argv[1]))
((key, value),) = message.annotations.items()
print("proton 0.40.0", type(key).__name__, key, value)
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
rabbitmq-stream-js-client 1.0.0 005372d10000000c00000002a103782d61a10176005375a00178
rhea 3.0.5 00537045005372d10000000c00000002a303782d61a101760053734500537740
proton 0.40.0 symbol x-a v
EXPECTED
