#!/usr/bin/env bash
# One would guess: an event with `body: null` is sent with amqp-value null, with an empty data section, or with none.
# What happens: @azure/event-hubs 6.0.4 sends a data section whose value is null (00 53 75 40), which AMQP 1.0 part 3 §3.2.6
# does not allow: a data section holds binary. Only with bodyType "value" is it amqp-value null (00 53 77 40).
# Microsoft's client for Python (azure-eventhub 5.15.1) reads the first as a list of one None.
# Source: npm @azure/event-hubs 6.0.4, dist/commonjs/dataTransformer.js; rhea 3.0.5, lib/message.js (data_section).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . @azure/event-hubs@6.0.4 rhea@3.0.5 >npm.out 2>&1 || { cat npm.out; exit 1; }
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check azure-eventhub==5.15.1
cat >seen.js <<'JS'
const base = __dirname + '/node_modules/@azure/event-hubs/';
const { defaultDataTransformer } = require(base + 'dist/commonjs/dataTransformer.js');
const { message } = require('rhea');
console.log('@azure/event-hubs', require(base + 'package.json').version);
for (const kind of ['data', 'value']) {
  const bytes = message.encode({ body: defaultDataTransformer.encode(null, kind) });
  console.log(kind, bytes.toString('hex').slice('0053704500537345'.length));
}
JS
node seen.js | tee seen.txt
python/bin/python - <<'PY' | tee -a seen.txt
from azure.eventhub._pyamqp._decode import decode_payload

print("azure-eventhub 5.15.1 reads data", decode_payload(memoryview(bytes.fromhex("00537540"))).data)
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
@azure/event-hubs 6.0.4
data 00537540
value 00537740
azure-eventhub 5.15.1 reads data [None]
EXPECTED
