"""Offsets as clients see them: opaque strings whose lexicographic order is the log's order.

Offsets of RabbitMQ streams: numbers on the wire, 20 decimal digits in rows and positions.

The width is fixed, so that the order of the texts is the order of the numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.position import After, At, Earliest

__all__ = [
    "MAX_OFFSET",
    "OFFSET_DIGITS",
    "first_wanted",
    "format_offset",
    "offset_column",
    "offset_number",
    "offset_text",
]

OFFSET_DIGITS: Final = 20
"""Fixed width, enough for any uint64, so that '9' < '10' and '99' < '100' hold lexicographically too."""


def format_offset(number: int) -> str:
    """Return the offset string of the event with this number: 20 decimal digits with leading zeros.

    Raises:
        ValueError: the number is negative or too long.

    """
    text = f"{number:020d}"
    if number < 0 or len(text) != OFFSET_DIGITS:
        raise ValueError(f"{number} is not the number of an event")
    return text


DIGITS: Final = 20
MAX_OFFSET: Final = 2**63 - 1
"""The largest offset that Spark's BIGINT, and so any arithmetic on it, can hold; brokers count to 2^64-1."""
_GROUP: Final = 10_000
_GROUPS: Final = np.frombuffer("".join(f"{n:04d}" for n in range(_GROUP)).encode(), np.uint8).reshape(_GROUP, 4)


def offset_text(number: int) -> str:
    """Return an offset as rows and positions have it."""
    return f"{number:0{DIGITS}d}"


def offset_number(text: str) -> int:
    """Return the number of an offset.

    Raises:
        LocalProtocolError: it is not 1 to 20 decimal digits, or more than 2^63-1.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS) or int(text) > MAX_OFFSET:
        raise LocalProtocolError(f"'{text}' is no offset of a RabbitMQ stream: expected up to {DIGITS} decimal digits")
    return int(text)


def first_wanted(start: Earliest | At | After) -> int | None:
    """Return the first offset that a range starting there wants, None for whatever is retained."""
    if isinstance(start, Earliest):
        return None
    return offset_number(start.offset) + (1 if isinstance(start, After) else 0)


def offset_column(offsets: NDArray[np.int64]) -> pa.StringArray:
    """Return offsets as a column of texts."""
    count = len(offsets)
    digits = np.empty((count, DIGITS), np.uint8)
    left = offsets
    for at in range(DIGITS - 4, -1, -4):
        if not left.any():
            digits[:, : at + 4] = ord("0")
            break
        left, group = np.divmod(left, _GROUP)
        digits[:, at : at + 4] = _GROUPS[group]
    bounds = np.arange(count + 1, dtype=np.int32) * DIGITS
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(digits))
