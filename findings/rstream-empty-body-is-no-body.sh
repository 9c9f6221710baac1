#!/usr/bin/env bash
# One would guess: AMQPMessage(body=b"") is a message whose body is empty, that is, with a data section of 0 bytes.
# What happens: rstream 1.1.1 leaves out the section, as it asks whether the body is true: the message has 0 bytes, or its
# properties alone, so that readers cannot tell an empty body from none. An empty text as amqp-value goes the same way;
# rbfly 0.10.0 writes both.
# Source: PyPI rstream 1.1.1, rstream/_pyamqp/_encode.py (encode_payload); rbfly 0.10.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check rstream==1.1.1 rbfly==0.10.0
python/bin/python - <<'PY' | tee seen.txt
from importlib.metadata import version

from rbfly.amqp._message import MessageCtx, encode_amqp
from rstream import AMQPMessage


def of_rbfly(body):
    buffer = bytearray(64)
    return buffer[: encode_amqp(buffer, MessageCtx(body, None, None, None, None, None, None))].hex()


print("rstream", version("rstream"), "rbfly", version("rbfly"))
print("empty bytes", repr(bytes(AMQPMessage(body=b"")).hex()), of_rbfly(b""))
print("empty text", repr(bytes(AMQPMessage(value="")).hex()), of_rbfly(""))
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
rstream 1.1.1 rbfly 0.10.0
empty bytes '' 005375a000
empty text '' 005377a100
EXPECTED
