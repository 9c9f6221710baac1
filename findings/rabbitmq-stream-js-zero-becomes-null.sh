#!/usr/bin/env bash
# One would guess: an application property that is 0 or an empty string reaches the stream as 0 or an empty string, and
# 1.5 as a double or an error.
# What happens: rabbitmq-stream-js-client 1.0.0 writes 0 and "" as AMQP null (0x40), and 1.5 as the int 1, without an
# error; a reader that filters by `count = 0` finds nothing. Each property of the message is told by `if (!data)`.
# Source: npm rabbitmq-stream-js-client 1.0.0, dist/amqp10/encoder.js (amqpWriteString, amqpWriteIntNumber).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . rabbitmq-stream-js-client@1.0.0 >npm.out 2>&1 || { cat npm.out; exit 1; }
cat >seen.js <<'JS'
const base = __dirname + '/node_modules/rabbitmq-stream-js-client/';
const { amqpEncode } = require(base + 'dist/amqp10/encoder.js');
const { BufferDataWriter } = require(base + 'dist/requests/buffer_data_writer.js');
console.log('rabbitmq-stream-js-client', require(base + 'package.json').version);
for (const value of [1, 0, 1.5, 'a', '']) {
  const writer = new BufferDataWriter(Buffer.alloc(256), 0);
  amqpEncode(writer, { content: Buffer.from('x'), applicationProperties: { p: value } });
  const bytes = writer.buffer.subarray(4, writer.offset).toString('hex');
  // described map32 of two items: key "p", then the value; a data section follows
  console.log(JSON.stringify(value), bytes.slice(bytes.indexOf('a10170') + 6, -12));
}
JS
node seen.js | tee seen.txt
diff seen.txt - <<'EXPECTED' && echo "as described"
rabbitmq-stream-js-client 1.0.0
1 7100000001
0 40
1.5 7100000001
"a" a10161
"" 40
EXPECTED
