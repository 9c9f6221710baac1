#!/usr/bin/env bash
# One would guess: a client of AMQP 1.0 reads every primitive type of its part 1, §1.6, and what it wrote itself.
# What happens: azure-eventhub 5.15.1 for Python has no decoder for char (0x73), decimal32 (0x74) and decimal64 (0x84): an
# event that has one, in a property too, ends in "TypeError: 'NoneType' object is not callable", without the event's
# place. It writes Python's Decimal as decimal128 (1.5 as 303e...0f, which is right), and reads no such value but 0: the
# rest is decimal.Overflow.
# Source: PyPI azure-eventhub 5.15.1, azure/eventhub/_pyamqp/_decode.py (_DECODE_BY_CONSTRUCTOR, _decode_decimal128).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check azure-eventhub==5.15.1
python/bin/python - <<'PY' | tee seen.txt
from decimal import Decimal
from importlib.metadata import version

from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.message import Message

print("azure-eventhub", version("azure-eventhub"))
own = bytes(encode_payload(bytearray(), Message(application_properties={"p": Decimal("1.5")}, data=[b"x"])))
for what, message in {
    "string": bytes.fromhex("005377a10141"),
    "char 'A'": bytes.fromhex("00537773" "00000041"),
    "decimal32 0": bytes.fromhex("00537774" "22500000"),
    "decimal64 0": bytes.fromhex("00537784" "2238000000000000"),
    "its own Decimal": own,
}.items():
    try:
        print(what, "->", decode_payload(memoryview(message)).value)
    except (TypeError, ArithmeticError) as error:
        print(what, "->", type(error).__name__)
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
azure-eventhub 5.15.1
string -> b'A'
char 'A' -> TypeError
decimal32 0 -> TypeError
decimal64 0 -> TypeError
its own Decimal -> Overflow
EXPECTED
