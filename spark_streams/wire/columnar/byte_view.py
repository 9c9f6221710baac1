"""View one buffer's bytes: read numbers and texts at many positions in one NumPy operation.

One unaligned load reads eight bytes at any position. Nothing is read outside the buffer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError

Readable = bytes | bytearray | memoryview
"""Contiguous bytes."""
Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]
Octets = NDArray[np.uint64]
"""Eight bytes for each row, the first byte lowest."""

WORD: Final = 8
_LONG: Final = 256
"""Texts of more bytes are compared whole, not word by word."""
PADDING: Final = 16
"""The number of bytes after the last one, so that an eight-byte load at any position up to the end stays inside."""
MAX_BLOCK_BYTES: Final = 2**31 - 1 - 4096
"""The most bytes of a block: Arrow's views and string offsets are int32, so callers split larger blocks."""


def loads(buffer: Readable | NDArray[np.uint8], kind: str, step: int = 1) -> NDArray[Any]:
    """Return the numbers that begin at every ``step``-th byte of a buffer, as an unaligned view of the buffer.

    Args:
        buffer: the bytes, at least as many as one number has.
        kind: NumPy's name of their type, such as ``>u4``.
        step: the distance in bytes between the beginnings of two numbers.
    """
    every: NDArray[Any] = np.ndarray(
        ((len(buffer) - np.dtype(kind).itemsize) // step + 1,), kind, buffer, strides=(step,)
    )
    return every


def numbers_at(buffer: Readable, positions: Positions, kind: str) -> NDArray[np.int64]:
    """Return the numbers of type ``kind``, such as ``>u4``, at these positions, all inside ``buffer``."""
    numbers: NDArray[np.int64] = loads(buffer, kind)[positions]
    return numbers


def run_ends(totals: Positions, most: int, most_rows: int | None = None) -> list[int]:
    """Return the ends of consecutive runs of rows, each as long as its limits allow; it has at least one row.

    Args:
        totals: the size of each row and all rows before it together.
        most: the size of a run at most.
        most_rows: rows of a run at most.
    """
    ends: list[int] = []
    most_rows = len(totals) if most_rows is None else most_rows
    end = before = 0
    while end < len(totals):
        end = min(max(end + 1, int(np.searchsorted(totals, before + most, side="right"))), end + most_rows)
        ends.append(end)
        before = int(totals[end - 1])
    return ends


class Words:
    """A buffer with loads of eight bytes at any position.

    Args:
        raw: the bytes; not copied unless they are fewer than eight.
    """

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        self._set(raw if raw.size >= WORD else np.concatenate((raw, np.zeros(WORD, np.uint8))))

    def _set(self, raw: NDArray[np.uint8]) -> None:
        self.bytes = raw
        self._last = raw.size - WORD
        self._little: Octets = loads(raw, "<u8")

    def little(self, position: Positions) -> Octets:
        """Return the eight bytes from each position on, first byte lowest, with zeros for bytes after the buffer."""
        if not position.size or int(position.max()) <= self._last:
            return self._little[position].astype(np.uint64, copy=False)
        clipped = np.minimum(position, self._last)
        beyond = np.minimum(position - clipped, WORD).astype(np.uint64) << np.uint64(3)
        # A shift by 64 bits is undefined, so shift by half, and by the rest.
        half = beyond >> np.uint64(1)
        shifted: Octets = (self._little[clipped] >> half) >> (beyond - half)
        return shifted

    def holds(self, start: Positions, text: bytes) -> Mask:
        """Return where ``text`` begins; every start must have at least as many bytes after it in the buffer."""
        size = len(text)
        if size < WORD:
            bits = np.uint64((1 << 8 * size) - 1)
            same: Mask = self.little(start) & bits == np.uint64(int.from_bytes(text, "little"))
            return same
        if size > _LONG and start.size:
            rows = loads(self.bytes, f"V{size}")[start].view(np.uint8).reshape(-1, size)
            return np.asarray((rows == np.frombuffer(text, np.uint8)).all(axis=1))
        same = np.ones(start.size, np.bool_)
        for offset in (*range(0, size - 7, WORD), *((size - WORD,) if size % WORD else ())):
            same &= self._little[start + offset] == np.uint64(int.from_bytes(text[offset : offset + WORD], "little"))
        return same

    def equal(self, start: Positions, end: Positions, text: bytes) -> Mask:
        """Return which ranges hold exactly ``text``."""
        same: Mask = (end - start) == len(text)
        if same.all():
            return self.holds(start, text)
        # Compare only ranges of the right length: the bytes of a shorter one may lie outside the buffer.
        if same.any():
            same[same] = self.holds(start[same], text)
        return same


class PaddedWords(Words):
    """Bytes with padding, so that a load at any position up to their end stays inside; callers can add texts.

    Args:
        raw: the bytes; copied once, because the padding has to follow them.
        start: first byte of interest, inclusive; it becomes position 0.
        end: byte after the last one of interest, exclusive. If enough bytes follow it, they are the padding and
            nothing is copied; their content does not matter.

    Raises:
        LocalProtocolError: there are more bytes than Arrow's views can address.
    """

    def __init__(self, raw: NDArray[np.uint8], start: int, end: int) -> None:
        padded = raw[start : end + PADDING]
        raw = raw[start:end]
        if raw.size > MAX_BLOCK_BYTES:
            raise LocalProtocolError(f"a block of {raw.size} bytes: expected at most {MAX_BLOCK_BYTES}")
        if padded.size - raw.size < PADDING:
            padded = np.concatenate((raw, np.zeros(PADDING, np.uint8)))
        super().__init__(padded)

    def _set(self, raw: NDArray[np.uint8]) -> None:
        super()._set(raw)
        self._big: Octets = loads(raw, ">u8")

    def append(self, extra: bytes) -> int:
        """Add bytes after the block's own; return where they start."""
        start = self.bytes.size - PADDING
        if start + len(extra) > MAX_BLOCK_BYTES:
            raise LocalProtocolError(f"a block's text grew past {MAX_BLOCK_BYTES} bytes: decode smaller blocks")
        if extra:
            # One concatenation: a copy of each part may be megabytes.
            added = np.frombuffer(extra, np.uint8)
            self._set(np.concatenate((self.bytes[:start], added, np.zeros(PADDING, np.uint8))))
        return start

    def big(self, position: Positions) -> NDArray[np.int64]:
        """Return the eight bytes at each position as one big-endian number, its bits in an int64."""
        return self._big[position].astype(np.uint64, copy=False).view(np.int64)
