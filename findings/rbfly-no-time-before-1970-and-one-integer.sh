#!/usr/bin/env bash
# One would guess: an AMQP timestamp, milliseconds with a sign (AMQP 1.0 part 1 §1.6.17), is read and written with its sign,
# and a Python int as an int where it fits 32 bits and as a long beyond.
# What happens: rbfly 0.10.0, a client of RabbitMQ Streams for Python, has timestamps without a sign: one before 1970 ends in
# OverflowError when it is written, and when it is read in ValueError, "year 584556007 is out of range"; the last half
# millisecond of 1969 is written as 0. Of all integers one cannot be written: 2147483648, where its bound is off by one.
# Source: PyPI rbfly 0.10.0, rbfly/amqp/_message.pyx.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv python
python/bin/pip install --quiet --disable-pip-version-check rbfly==0.10.0
python/bin/python - <<'PY' | tee seen.txt
from datetime import datetime, timezone
from importlib.metadata import version

from rbfly.amqp._message import MessageCtx, decode_amqp, encode_amqp

print("rbfly", version("rbfly"))
for value in (
    2**31 - 1,
    2**31,
    2**31 + 1,
    datetime(1957, 10, 4, tzinfo=timezone.utc),
    datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=timezone.utc),
):
    buffer = bytearray(64)
    try:
        size = encode_amqp(buffer, MessageCtx(value, None, None, None, None, None, None))
        print(value, "->", buffer[3:size].hex())
    except OverflowError as error:
        print(value, "->", type(error).__name__)
try:
    print(decode_amqp(bytes.fromhex("00537783" "ffffffa609e8e000")).body)
except ValueError as error:
    print("timestamp -386380800000 ms ->", type(error).__name__)
PY
diff seen.txt - <<'EXPECTED' && echo "as described"
rbfly 0.10.0
2147483647 -> 717fffffff
2147483648 -> OverflowError
2147483649 -> 810000000080000001
1957-10-04 00:00:00+00:00 -> OverflowError
1969-12-31 23:59:59.999500+00:00 -> 830000000000000000
timestamp -386380800000 ms -> ValueError
EXPECTED
