#!/usr/bin/env bash
# One would guess: a body of several data sections, which AMQP 1.0 part 3 §3.2 allows, is the sum of them, or a list.
# What happens: of one with "ab" and "cd", azure-eventhub 5.15.1 and rhea 3.0.5 give both as a list; rbfly 0.10.0 gives the
# first alone; rstream 1.1.1 and python-qpid-proton 0.40.0 give the last alone, and proton writes only that one when the
# message is sent on. Nothing is raised, so what is left out is lost.
# Source: PyPI azure-eventhub 5.15.1, rbfly 0.10.0, rstream 1.1.1, python-qpid-proton 0.40.0; npm rhea 3.0.5.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . rhea@3.0.5 >npm.out 2>&1 || { cat npm.out; exit 1; }
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check \
    azure-eventhub==5.15.1 rbfly==0.10.0 rstream==1.1.1 python-qpid-proton==0.40.0
python/bin/python - <<'PY' | tee seen.txt
import proton
from azure.eventhub._pyamqp._decode import decode_payload
from rbfly.amqp._message import decode_amqp
from rstream import amqp_decoder

message = bytes.fromhex("005375a0026162" "005375a0026364")
print("azure-eventhub 5.15.1", decode_payload(memoryview(message)).data)
print("rbfly 0.10.0", decode_amqp(message).body)
print("rstream 1.1.1", amqp_decoder(message).body)
theirs = proton.Message()
theirs.decode(message)
print("proton 0.40.0", bytes(theirs.body), theirs.encode().hex())
PY
cat >seen.js <<'JS'
const { message } = require('rhea');
const body = message.decode(Buffer.from('005375a0026162005375a0026364', 'hex')).body;
console.log('rhea 3.0.5', body.content.map(String));
JS
node seen.js | tee -a seen.txt
diff seen.txt - <<'EXPECTED' && echo "as described"
azure-eventhub 5.15.1 [b'ab', b'cd']
rbfly 0.10.0 b'ab'
rstream 1.1.1 b'cd'
proton 0.40.0 b'cd' 0053704500537345005375a0026364
rhea 3.0.5 [ 'ab', 'cd' ]
EXPECTED
