"""Gather byte ranges into Arrow arrays.

A ``binary_view`` array has 16 bytes for each row, which point into any buffers. Arrow's cast copies the ranges together
and checks UTF-8; it is the fastest way to gather that we measured (14 to 24 ns a row).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import validity
from spark_streams.wire.columnar.byte_view import Mask, Octets, Positions, Readable, Words

_INLINE: Final = 12
"""The most bytes that a view holds itself; a longer one holds 4 bytes of prefix, a buffer number and an offset."""
_HEAD_MASK: Final = np.array([(1 << (8 * min(n, 4))) - 1 for n in range(_INLINE + 1)], np.uint64)
_TAIL_MASK: Final = np.array([(1 << (8 * max(n - 4, 0))) - 1 for n in range(_INLINE + 1)], np.uint64)


def gather(
    words: Words, start: Positions, length: Positions, kind: pa.DataType, *, valid: Mask | None = None
) -> pa.Array:
    """Return byte ranges as one array.

    Args:
        words: the buffer that holds the ranges.
        start: first byte of each, inclusive.
        length: number of bytes.
        kind: binary, large_binary or string; for a string, the bytes are checked to be UTF-8.
        valid: the rows that are not null; None for all. The range of a null row means nothing.
    """
    nulls = None
    if valid is not None and not valid.all():
        nulls, start, length = validity(valid), np.where(valid, start, 0), np.where(valid, length, 0)
    views = np.empty((start.size, 2), np.uint64)
    write_views(views, words, start, length)
    buffers = [nulls, pa.py_buffer(views), pa.py_buffer(words.bytes)]
    return pa.Array.from_buffers(pa.binary_view(), start.size, buffers).cast(kind)


def copied(buffer: Readable | NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
    """Return a copy of byte ranges, large_binary.

    Args:
        buffer: holds the ranges.
        starts: int64[n], first byte of each, inclusive; rising, and none before the end of another range.
        ends: int64[n], end of each, exclusive.
    """
    count = len(starts)
    # The bytes between two ranges are a row too, so every second row is used.
    edges = np.empty(2 * count + 1, np.int64)
    edges[0] = starts[0] if count else 0
    edges[1::2] = starts
    edges[2::2] = ends
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(buffer)]
    )
    return whole.take(pa.array(np.arange(1, 2 * count, 2)))


def write_views(views: NDArray[np.uint64], words: Words, start: Positions, length: Positions, source: int = 0) -> None:
    """Write the views of ranges of one buffer.

    The first four bytes of a long range are left out: only comparisons read them, and the views are only for a cast.

    Args:
        views: the views of all ranges, shape (n, 2).
        words: the buffer.
        start: first byte, inclusive.
        length: how many bytes.
        source: the number of the buffer among those of the array.
    """
    short = length <= _INLINE
    if short.all():
        views[:, 0], views[:, 1] = _inline(words, start, length)
        return
    views[:, 0] = length
    views[:, 1] = (start << 32) | source
    if short.any():
        views[short, 0], views[short, 1] = _inline(words, start[short], length[short])


def _inline(words: Words, start: Positions, length: Positions) -> tuple[Octets, Octets]:
    """Return both halves of the views of ranges of at most 12 bytes; the views hold the bytes themselves."""
    head = words.little(start) & _HEAD_MASK[length]
    return length.view(np.uint64) | (head << np.uint64(32)), words.little(start + 4) & _TAIL_MASK[length]
