#!/usr/bin/env bash
# One would guess: content types beyond ASCII are refused, as AMQP 1.0 part 1 §1.6.21 has symbols in ASCII, or travel in
# UTF-8, as RabbitMQ stores those of AMQP 0-9-1; at least what one client writes it reads back.
# What happens: three clients do three things. rhea 3.0.5 writes a symbol in Latin-1 and reads it back with the top bit of
# each byte gone ("größe" is "grv_e"); Microsoft's azure-eventhub 5.15.1 for Python and Qpid Proton's Python binding 0.40.0
# write UTF-8. Proton takes a message of rhea, and only reading its content_type ends in UnicodeDecodeError.
# Source: npm rhea 3.0.5 lib/types.js (Sym8, Sym32); PyPI azure-eventhub 5.15.1 _pyamqp/_encode.py; python-qpid-proton 0.40.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --prefix . rhea@3.0.5 >npm.out 2>&1 || { cat npm.out; exit 1; }
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check azure-eventhub==5.15.1 python-qpid-proton==0.40.0
cat >seen.js <<'JS'
const { message } = require('rhea');
const bytes = message.encode({ content_type: 'größe', body: null });
console.log('rhea 3.0.5', bytes.toString('hex'), message.decode(bytes).content_type);
JS
node seen.js | tee seen.txt
python/bin/python - "$(cut -d' ' -f3 seen.txt)" <<'PY' | tee -a seen.txt
import sys
import proton
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.message import Message, Properties

theirs = bytes(encode_payload(bytearray(), Message(properties=Properties(content_type="größe"), data=[b""])))
print("azure-eventhub 5.15.1", theirs.hex())
message = proton.Message()
message.content_type = "größe"
print("proton 0.40.0", message.encode().hex())
for whose, written in {"rhea's": bytes.fromhex(sys.argv[1]), "azure-eventhub's": theirs}.items():
    message = proton.Message()
    message.decode(written)
    try:
        print("proton 0.40.0 reads", whose, message.content_type)
    except UnicodeError as error:
        print("proton 0.40.0 reads", whose, type(error).__name__)
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
rhea 3.0.5 00537045005373d00000001100000007404040404040a3056772f6df6500537740 grv_e
azure-eventhub 5.15.1 005373c0160d404040404040a3076772c3b6c39f65404040404040005375a000
proton 0.40.0 00537045005373c01007404040404040a3076772c3b6c39f65
proton 0.40.0 reads rhea's UnicodeDecodeError
proton 0.40.0 reads azure-eventhub's größe
EXPECTED
