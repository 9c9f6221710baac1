"""Find the ends and starts of many plain JSON strings, without escapes and control characters, in lockstep.

A step looks at eight bytes of every string. Where a few strings are much longer than that, each of them is searched by
itself, a part at a time: else the number of steps would grow with the longest one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.columnar.byte_view import Octets, Positions, Words

_LOW: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_SPACES: Final = np.uint64(0x2020202020202020)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_CONTROL_BITS: Final = np.uint64(0xE0E0E0E0E0E0E0E0)
"""The bits that are all zero in a control character, 0 to 31."""
_EXPONENT: Final = np.int64(52)
_BIAS: Final = np.int64(1023)
_FEW: Final = 128
_MOST_STEPS: Final = 32
"""Fewer strings than this are searched one by one after so many steps."""
_PART_BYTES: Final = 8 << 10
"""The bytes of one string that are searched at once."""


def _zeros(words: Octets) -> Octets:
    """Return the high bit of every byte that is zero; exact, without a carry from one byte into another."""
    found: Octets = ~(((words & _LOW) + _LOW) | words | _LOW)
    return found


def _enders(words: Octets) -> Octets:
    """Return the high bit of every byte that a plain JSON string cannot hold: quote, backslash, control."""
    found: Octets = _zeros(words ^ _QUOTES) | _zeros(words ^ _BACKSLASHES) | _zeros(words & _CONTROL_BITS)
    return found


def _highest(bits: Octets) -> Positions:
    """Return the number of the byte with the highest bit; ``bits`` are high bits of bytes, and at least one is set."""
    # The exponent of the float: 8 bits of 64, far apart, never round up to the next power of two.
    exponent: Positions = (bits.astype(np.float64).view(np.int64) >> _EXPONENT) - _BIAS
    number: Positions = exponent >> 3
    return number


def string_end(block: Words, start: Positions, limit: Positions) -> Positions:
    """Return the position of the quote that ends a plain string.

    Args:
        block: the bytes.
        start: the string's first byte, after its opening quote.
        limit: the quote is before this position.

    Returns:
        For each string the position of its closing quote; -1 where an escape or a control character, or the limit,
        comes first.
    """
    return _next_quote(block, start, limit, forward=True)


def string_start(block: Words, end: Positions, limit: Positions) -> Positions:
    """Return the start of a plain string from its closing quote.

    Args:
        block: the bytes.
        end: the closing quote.
        limit: the opening quote is at this position or after it.

    Returns:
        For each string the position after its opening quote; -1 where there is no plain string.
    """
    quote = _next_quote(block, end - 8, limit, forward=False)
    return np.where(quote < 0, -1, quote + 1)


def _next_quote(block: Words, at: Positions, limit: Positions, *, forward: bool) -> Positions:
    """Return the position of the next quote; -1 where an escape, a control character or the limit comes first.

    Args:
        block: the bytes.
        at: the first eight bytes to search.
        limit: the first position that is not searched or, backwards, the last one that is.
        forward: whether to search from a position on, or backwards.
    """
    place = np.full(at.size, -1, np.int64)
    rows = np.arange(at.size)
    steps = iter(range(_MOST_STEPS))
    while rows.size and (rows.size >= _FEW or next(steps, None) is not None):
        enders = _enders(block.little(at) if forward else _padded(block, at))
        hit = enders != 0
        nearest = enders & (~enders + np.uint64(1)) if forward else enders
        where = at + _highest(np.where(hit, nearest, np.uint64(1)))
        found = hit & (where < limit[rows] if forward else where >= limit[rows])
        ended, places = rows[found], where[found]
        quoted = block.bytes[places] == 0x22
        place[ended[quoted]] = places[quoted]
        more = ~hit & (at + 8 < limit[rows] if forward else at > limit[rows])
        rows, at = rows[more], at[more] + (8 if forward else -8)
    # Backwards is forwards from the other end.
    raw, ends = (block.bytes, limit[rows]) if forward else (block.bytes[::-1], block.bytes.size - limit[rows])
    starts = at if forward else raw.size - at - 8
    for row, first, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        found = _quote_of_one(raw, first, end)
        place[row] = found if forward or found < 0 else raw.size - 1 - found
    return place


def _quote_of_one(raw: NDArray[np.uint8], at: int, end: int) -> int:
    """Return the position of the first special byte from ``at`` to ``end``, exclusive, if it is a quote; else -1."""
    for first in range(at, end, _PART_BYTES):
        some = raw[first : min(first + _PART_BYTES, end)]
        special = (some == 0x22) | (some == 0x5C) | (some < 0x20)
        found = int(special.argmax())
        if special[found]:
            return first + found if some[found] == 0x22 else -1
    return -1


def _padded(block: Words, at: Positions) -> Octets:
    """Return the eight bytes at each position, with spaces for those before the block."""
    missing = np.clip(-at, 0, 7).astype(np.uint64) << np.uint64(3)
    padding = (np.uint64(1) << missing) - np.uint64(1)
    words: Octets = block.little(np.maximum(at, 0)) << missing | (_SPACES & padding)
    return words
