"""Which stored messages may hold a text in their body, found in the stored bytes before anything is decoded.

It is known of messages whose body is one data section, or one string: their body stands there as it is. All others are
said to hold it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.log import Records

__all__ = ["may_hold"]

_BEFORE_BODY: Final = (0x72, 0x73, 0x74)
"""Message annotations, properties, application properties (AMQP 1.0 §3.2), in their order."""
_SHORT: Final = (0xC0, 0xC1)
_LONG: Final = (0xD0, 0xD1)
_EMPTY: Final = 0x45
_BODIES: Final = ((0x75, 0xA0, 0xB0), (0x77, 0xA1, 0xB1))
"""A data section with its binary, an amqp-value with its string: by one byte of length, by four."""
_FEW: Final = 8
"""So many messages to one that holds the text are worth this; else all of them are decoded."""
_MARK: Final = 0xFE
_HEAD: Final = np.arange(8)
"""A section's first bytes: its descriptor, its encoding, and its length by one byte or four."""

Longs = NDArray[np.int64]


def may_hold(records: Records, text: str) -> Longs | None:
    """Return the rows that hold a text, or a sign that they may hold it otherwise; None when they are many.

    Args:
        records: of the log.
        text: not empty.
    """
    buffer = records.buffer
    first, end = int(records.value_starts[0]), int(records.value_ends[-1])
    few = len(records) // _FEW
    places: list[int] = []
    for sign in (text.encode(), b"\\"):
        at = buffer.find(sign, first, end)
        while at >= 0:
            places.append(at)
            if len(places) > few:
                return None
            at = buffer.find(sign, at + 1, end)
    held = ~_plain(np.frombuffer(buffer, np.uint8), records.value_starts, records.value_ends)
    held[np.searchsorted(records.value_starts, np.array(places, np.int64), side="right") - 1] = True
    found = np.flatnonzero(held)
    return found if len(found) <= 2 * few else None


def _plain(raw: NDArray[np.uint8], starts: Longs, ends: Longs) -> NDArray[np.bool_]:
    """Say which messages end with a body that stands in their bytes as it is, and is no UTF-16 or UTF-32."""
    last = raw.size - 1
    at = starts
    head = raw[np.minimum(at[:, None] + _HEAD, last)]
    for code in _BEFORE_BODY:
        here = _is(head, code)
        if here.any():
            kind = head[:, 3]
            size = np.where(np.isin(kind, _SHORT), 5 + head[:, 4].astype(np.int64), 0)
            size = np.where(np.isin(kind, _LONG), 8 + _number(head), size)
            size = np.where(kind == _EMPTY, 4, size)
            at = at + np.where(here, size, 0)  # a section of another encoding is not passed, and is no body then
            head = raw[np.minimum(at[:, None] + _HEAD, last)]
    plain = np.zeros(len(starts), np.bool_)
    body = at
    for code, small, large in _BODIES:
        here = _is(head, code)
        if here.any():
            short = here & (head[:, 3] == small) & (at + 5 + head[:, 4] == ends)
            long = here & (head[:, 3] == large) & (at + 8 + _number(head) == ends)
            plain |= short | long
            body = np.where(short, at + 5, np.where(long, at + 8, body))
    # JSON in these begins with a zero byte, has one next, or begins with their byte order mark.
    begin, second = raw[np.minimum(body, last)], raw[np.minimum(body + 1, last)]
    plain &= (begin != 0) & (begin < _MARK) & ((second != 0) | (body + 1 >= ends))
    return plain


def _is(head: NDArray[np.uint8], code: int) -> NDArray[np.bool_]:
    described: NDArray[np.bool_] = (head[:, 0] == 0x00) & (head[:, 1] == 0x53) & (head[:, 2] == code)
    return described


def _number(head: NDArray[np.uint8]) -> Longs:
    found: Longs = np.ascontiguousarray(head[:, 4:8]).view(">u4")[:, 0].astype(np.int64)
    return found
