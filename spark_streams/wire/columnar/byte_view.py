"""Bytes of many messages in one buffer, read in lockstep: one NumPy operation advances every message's cursor.

A cursor is an int64 position, one a message. AMQP's format codes say by their high nibble how far a value goes, so
skipping needs no case analysis per type::

    0x4_ 0   0x5_ 1   0x6_ 2   0x7_ 4   0x8_ 8   0x9_ 16     bytes after the code
    0xa_ 0xc_ 0xe_ 1 + n(1)      0xb_ 0xd_ 0xf_ 4 + n(4)     n is the big-endian size that follows the code

Eight bytes at any position come in one unaligned load, which holds a section's whole head (``00 53 code code size``).
Nothing is read outside the buffer: it is padded once, and every position is checked against its message's end before
anything is concluded from it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.decode import FORMAT_CODES

__all__ = ["ByteRange", "Extents", "Words"]

Positions = NDArray[np.int64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

PADDING: Final = 16
"""Bytes after the last one, so that an eight-byte load at any position up to the end stays inside."""
MAX_BLOCK_BYTES: Final = 2**31 - 1 - 4096
"""Arrow's views and string offsets are int32; blocks above are split by the caller."""

FIXED_WIDTH: Final = np.array([(0, 1, 2, 4, 8, 16)[c // 16 - 4] if 4 <= c // 16 <= 9 else 0 for c in range(256)])
SIZE_WIDTH: Final = np.array([(1, 4)[(c // 16) % 2] if c >= 0xA0 else 0 for c in range(256)])
KNOWN: Final = np.array([c in FORMAT_CODES for c in range(256)])
"""Which bytes are format codes of AMQP 1.0."""


class Extents(NamedTuple):
    """Values met at the same step: their format codes, and where what follows the code and the size goes."""

    code: Codes
    start: Positions
    end: Positions


class ByteRange(NamedTuple):
    """Byte ranges, one a row: start inclusive, end exclusive; rows that are not ``valid`` have none.

    ``symbol`` says which are symbols, and so have to be ASCII.
    """

    start: Positions
    end: Positions
    valid: Mask
    symbol: Mask

    @staticmethod
    def empty(n: int) -> ByteRange:
        """Return ``n`` rows without a range."""
        return ByteRange(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.bool_))

    def keep(self, rows: Positions, extents: Extents) -> None:
        """Let these rows show values of type string, symbol, binary or null."""
        self.start[rows], self.end[rows] = extents.start, extents.end
        self.valid[rows] = extents.code != 0x40
        self.symbol[rows] = (extents.code == 0xA3) | (extents.code == 0xB3)

    def place(self, row: int, text: bytes | None, words: Words) -> None:
        """Let one row show bytes that are not in the block."""
        self.valid[row], self.symbol[row] = text is not None, False
        self.start[row], self.end[row] = words.defer(text or b"")


class Words:
    """A padded buffer with loads at arbitrary positions.

    Args:
        raw: the bytes; copied once, because the padding has to follow them.
        start: first byte of interest, inclusive; position 0 from here on.
        end: byte after the last one of interest, exclusive. Where enough bytes follow it, they are the padding and
            nothing is copied; what they hold does not matter.
    """

    def __init__(self, raw: NDArray[np.uint8], start: int, end: int) -> None:
        padded = raw[start : end + PADDING]
        raw = raw[start:end]
        if raw.size > MAX_BLOCK_BYTES:
            raise LocalProtocolError(f"a block of {raw.size} bytes: expected at most {MAX_BLOCK_BYTES}")
        self._deferred: list[bytes] = []
        self._deferred_bytes = 0
        if padded.size - raw.size < PADDING:
            padded = np.concatenate((raw, np.zeros(PADDING, np.uint8)))
        self._set(padded)

    def _set(self, padded: NDArray[np.uint8]) -> None:
        self.bytes = padded
        count = padded.size - 7
        self._big: NDArray[np.uint64] = np.ndarray((count,), ">u8", padded, strides=(1,))
        self._little: NDArray[np.uint64] = np.ndarray((count,), "<u8", padded, strides=(1,))

    def defer(self, extra: bytes) -> tuple[int, int]:
        """Note bytes that the next ``append`` adds; return the range where they will be."""
        start = self.bytes.size - PADDING + self._deferred_bytes
        self._deferred.append(extra)
        self._deferred_bytes += len(extra)
        return start, start + len(extra)

    def append(self, extra: bytes = b"") -> int:
        """Add what was deferred and then ``extra`` after the block's own bytes; return where ``extra`` starts."""
        start = self.bytes.size - PADDING
        end = start + self._deferred_bytes + len(extra)
        if end > start:
            if end > MAX_BLOCK_BYTES:
                raise LocalProtocolError(f"a block's text grew past {MAX_BLOCK_BYTES} bytes: decode smaller blocks")
            # In one go: a copy of each part may be megabytes. (And joined, which Python does without its lock.)
            added = [np.frombuffer(each, np.uint8) for each in (b"".join(self._deferred), extra) if each]
            self._set(np.concatenate((self.bytes[:start], *added, np.zeros(PADDING, np.uint8))))
            self._deferred, self._deferred_bytes = [], 0
        return end - len(extra)

    def big(self, position: Positions) -> NDArray[np.int64]:
        """Return the eight bytes at each position as one big-endian number, its bits in an int64."""
        return self._big[position].astype(np.uint64, copy=False).view(np.int64)

    def little(self, position: Positions) -> NDArray[np.uint64]:
        """Return the eight bytes at each position, first byte lowest."""
        return self._little[position].astype(np.uint64, copy=False)

    def extents(self, position: Positions) -> Extents:
        """Return the code and the extent of the value at each position; a descriptor or no code at all has none.

        The end may lie outside the message, and ``code`` may be no format code: the caller checks both.
        """
        word = self.big(position)
        code = (word >> 56) & 0xFF
        if code.size and (code == code[0]).all():
            return self._alike(position, word, code)
        size_width = SIZE_WIDTH[code]
        start = position + 1 + size_width
        size = np.where(size_width == 1, (word >> 48) & 0xFF, (word >> 24) & 0xFFFFFFFF)
        return Extents(code, start, start + np.where(size_width == 0, FIXED_WIDTH[code], size))

    @staticmethod
    def _alike(position: Positions, word: Codes, code: Codes) -> Extents:
        """Return ``extents`` of values that all have one format code, as most steps of most blocks do."""
        width = int(SIZE_WIDTH[code[0]])
        start = position + (1 + width)
        if width:
            return Extents(code, start, start + ((word >> 48) & 0xFF if width == 1 else (word >> 24) & 0xFFFFFFFF))
        return Extents(code, start, start + FIXED_WIDTH[code[0]])

    def equal(self, start: Positions, end: Positions, text: bytes) -> Mask:
        """Return where the range holds exactly ``text``."""
        same: Mask = (end - start) == len(text)
        if not same.any():
            return same
        if len(text) < 8:
            bits = np.uint64((1 << 8 * len(text)) - 1)
            same &= self.little(np.where(same, start, 0)) & bits == np.uint64(int.from_bytes(text, "little"))
            return same
        # Only ranges of the right length are looked into: the bytes of a shorter one may lie outside the buffer.
        some = start if same.all() else start[same]
        alike = np.ones(some.size, np.bool_)
        for offset in (*range(0, len(text) - 7, 8), len(text) - 8):
            alike &= self.little(some + offset) == np.uint64(int.from_bytes(text[offset : offset + 8], "little"))
        same[same] = alike
        return same
