#!/usr/bin/env bash
# One would guess: a Python int in an event's properties, such as milliseconds since 1970, is written as an AMQP long, as
# rstream does, whose encoder comes from the same code.
# What happens: azure-eventhub 5.15.1 writes every int as an AMQP int of 32 bits and refuses 2147483648 and on with
# "ValueError: Value supplied for int invalid"; a float of the same value passes. rstream 1.1.1 writes a long.
# Source: PyPI azure-eventhub 5.15.1, azure/eventhub/_pyamqp/_encode.py (encode_unknown).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check azure-eventhub==5.15.1 rstream==1.1.1
python/bin/python - <<'PY' | tee seen.txt
from importlib.metadata import version

from azure.eventhub import EventData, EventDataBatch
from rstream import AMQPMessage

print("azure-eventhub", version("azure-eventhub"), "rstream", version("rstream"))
for value in (2_147_483_647, 2_147_483_648, 1_700_000_000_000, 1_700_000_000_000.0):
    event = EventData(b"x")
    event.properties = {"at": value}
    try:
        EventDataBatch(max_size_in_bytes=10_000).add(event)
        theirs = "taken"
    except ValueError as error:
        theirs = f"ValueError: {error}"
    print(value, "-> azure-eventhub:", theirs, "| rstream:", bytes(AMQPMessage(application_properties={"at": value}, body=b"x"))[10:-6].hex())
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
azure-eventhub 5.15.1 rstream 1.1.1
2147483647 -> azure-eventhub: taken | rstream: 717fffffff
2147483648 -> azure-eventhub: ValueError: Value supplied for int invalid: 2147483648 | rstream: 810000000080000000
1700000000000 -> azure-eventhub: ValueError: Value supplied for int invalid: 1700000000000 | rstream: 810000018bcfe56800
1700000000000.0 -> azure-eventhub: taken | rstream: 824278bcfe56800000
EXPECTED
