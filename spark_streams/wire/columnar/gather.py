"""Byte ranges of a block: read eight bytes at a time, searched in lockstep, and gathered into Arrow arrays.

No range is read outside the block, and the block is never copied.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["Content", "Mask", "Positions", "gather"]

Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]
Octets = NDArray[np.uint64]

_INLINE: Final = 12
"""Arrow's binary_view holds up to this many bytes itself; a longer one points at a buffer."""
_HEAD_MASK: Final = np.array([(1 << (8 * min(n, 4))) - 1 for n in range(_INLINE + 1)], np.uint64)
_TAIL_MASK: Final = np.array([(1 << (8 * max(n - 4, 0))) - 1 for n in range(_INLINE + 1)], np.uint64)
_LOW: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_SPACES: Final = np.uint64(0x2020202020202020)
_QUOTES: Final = np.uint64(0x2222222222222222)
_BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
_CONTROL_BITS: Final = np.uint64(0xE0E0E0E0E0E0E0E0)
"""The bits of which a control character, 0 to 31, has none."""
_EXPONENT: Final = np.int64(52)
_BIAS: Final = np.int64(1023)


def _zeros(words: Octets) -> Octets:
    """Return the high bit of every byte that is zero; exact, no carry from one byte into another."""
    found: Octets = ~(((words & _LOW) + _LOW) | words | _LOW)
    return found


def _enders(words: Octets) -> Octets:
    """Return the high bit of every byte that a plain JSON string cannot hold: quote, backslash, control."""
    found: Octets = _zeros(words ^ _QUOTES) | _zeros(words ^ _BACKSLASHES) | _zeros(words & _CONTROL_BITS)
    return found


def _highest(bits: Octets) -> Positions:
    """Return the number of the byte that holds the highest bit; the bits are high bits of bytes, and one is set."""
    # The exponent of the float: 8 bits of 64, far apart, never round up to the next power of two.
    exponent: Positions = (bits.astype(np.float64).view(np.int64) >> _EXPONENT) - _BIAS
    number: Positions = exponent >> 3
    return number


class Content:
    """A block's bytes.

    Args:
        raw: at least eight bytes.
    """

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        self.raw = raw
        self._last = raw.size - 8
        self._words: Octets = np.ndarray((raw.size - 7,), "<u8", raw, strides=(1,))

    def words(self, position: Positions) -> Octets:
        """Return the eight bytes from each position on, the first one lowest, zeros for what is after the block."""
        if not position.size or int(position.max()) <= self._last:
            return self._words[position]
        clipped = np.minimum(position, self._last)
        beyond = np.minimum(position - clipped, 8).astype(np.uint64) << np.uint64(3)
        # Shifting by 64 is undefined: half, and half again.
        half = beyond >> np.uint64(1)
        shifted: Octets = (self._words[clipped] >> half) >> (beyond - half)
        return shifted

    def equal(self, start: Positions, text: bytes) -> Mask:
        """Return where ``text`` stands; from every start on there are at least as many bytes in the block."""
        size = len(text)
        if size < 8:
            alike: Mask = np.ones(start.size, np.bool_)
            for index, byte in enumerate(text):
                alike &= self.raw[start + index] == byte
            return alike
        alike = self._words[start] == np.uint64(int.from_bytes(text[:8], "little"))
        for offset in (*range(8, size - 7, 8), *((size - 8,) if size % 8 else ())):
            alike &= self._words[start + offset] == np.uint64(int.from_bytes(text[offset : offset + 8], "little"))
        return alike

    def string_end(self, start: Positions, limit: Positions) -> Positions:
        """Return where the quote is that ends a plain string, which has no escape.

        Args:
            start: the string's first byte, after its opening quote.
            limit: the quote is before this position.

        Returns:
            per string the position of its closing quote, -1 where an escape or a control character comes first, or
            the limit.
        """
        end = np.full(start.size, -1, np.int64)
        rows = np.arange(start.size)
        at = start
        while rows.size:
            enders = _enders(self.words(at))
            hit = enders != 0
            lowest = enders & (~enders + np.uint64(1))
            where = at + _highest(np.where(hit, lowest, np.uint64(1)))
            found = hit & (where < limit[rows])
            ended = rows[found]
            places = where[found]
            quoted = self.raw[places] == 0x22
            end[ended[quoted]] = places[quoted]
            more = ~hit & (at + 8 < limit[rows])
            rows, at = rows[more], at[more] + 8
        return end

    def string_start(self, end: Positions, limit: Positions) -> Positions:
        """Return where a plain string begins, of which only the closing quote is known.

        Args:
            end: the closing quote.
            limit: the opening quote is at this position or after it.

        Returns:
            per string the position after its opening quote, -1 where there is no plain string.
        """
        start = np.full(end.size, -1, np.int64)
        rows = np.arange(end.size)
        at = end - 8
        while rows.size:
            # Before the block there is nothing: a word that would begin there is read from its start, moved up.
            missing = np.maximum(-at, 0)
            words = self.words(np.maximum(at, 0)) << (np.minimum(missing, 7).astype(np.uint64) << np.uint64(3))
            padding = (np.uint64(1) << (np.minimum(missing, 7).astype(np.uint64) << np.uint64(3))) - np.uint64(1)
            enders = _enders(words | (_SPACES & padding))
            hit = enders != 0
            where = at + _highest(np.where(hit, enders, np.uint64(1)))
            found = hit & (where >= limit[rows])
            ended = rows[found]
            places = where[found]
            quoted = self.raw[places] == 0x22
            start[ended[quoted]] = places[quoted] + 1
            more = ~hit & (at > limit[rows])
            rows, at = rows[more], at[more] - 8
        return start


def gather(
    sources: list[NDArray[np.uint8]], source: Positions | None, start: Positions, length: Positions, kind: pa.DataType
) -> pa.Array:
    """Return byte ranges as one array.

    Args:
        sources: the buffers that ranges are of.
        source: per range, the number of its buffer; None when all are of the first.
        start: first byte, inclusive.
        length: how many bytes.
        kind: binary or string; of a string, the bytes are checked to be UTF-8.

    Raises:
        pyarrow.ArrowInvalid: text that is not UTF-8.
    """
    n = start.size
    views = np.zeros((n, 2), np.uint64)
    views[:, 0] = length
    short = length <= _INLINE
    if not short.all():
        # The first four bytes, which only comparisons look at, are left out: the views live for this cast alone.
        views[:, 1] = start.astype(np.uint64) << np.uint64(32)
        if source is not None:
            views[:, 1] |= source.astype(np.uint64)
    if short.any():
        for number, raw in enumerate(sources if source is not None else sources[:1]):
            rows = np.flatnonzero(short if source is None else short & (source == number))
            if rows.size:
                content = Content(raw if raw.size >= 8 else np.concatenate((raw, np.zeros(8, np.uint8))))
                at, size = start[rows], length[rows]
                views[rows, 0] |= (content.words(at) & _HEAD_MASK[size]) << np.uint64(32)
                views[rows, 1] = content.words(at + 4) & _TAIL_MASK[size]
    buffers = [None, pa.py_buffer(views), *(pa.py_buffer(raw) for raw in sources)]
    return pa.Array.from_buffers(pa.binary_view(), n, buffers).cast(kind)
