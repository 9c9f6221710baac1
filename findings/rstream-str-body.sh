#!/usr/bin/env bash
# One would guess: AMQPMessage(body="x") writes the text as bytes or as an AMQP string, or refuses what is not bytes.
# What happens: rstream 1.1.1 writes its own inner form, a map {"TYPE": "BINARY", "VALUE": "x"}, in the place of the data section's
# bytes: for a str a binary that says 1 byte and is followed by the whole map, which no reader of AMQP can take apart, for
# an int the map alone. Nothing is raised; the broker confirms the message.
# Source: PyPI rstream 1.1.1, rstream/_pyamqp/_encode.py (encode_payload, encode_binary); rstream/amqp.py.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check rstream==1.1.1
python/bin/python - <<'PY' | tee seen.txt
from importlib.metadata import version

from rstream import AMQPMessage

print("rstream", version("rstream"))
for body in (b"x", "x", 5):
    print(repr(body), bytes(AMQPMessage(body=body)).hex(" "))
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
rstream 1.1.1
b'x' 00 53 75 a0 01 78
'x' 00 53 75 a0 01 c1 19 04 a1 04 54 59 50 45 a1 06 42 49 4e 41 52 59 a1 05 56 41 4c 55 45 a1 01 78
5 00 53 75 c1 18 04 a1 04 54 59 50 45 a1 06 42 49 4e 41 52 59 a1 05 56 41 4c 55 45 54 05
EXPECTED
