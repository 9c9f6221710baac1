"""Write rows of heads and bodies one after the other into one buffer, for frames and RabbitMQ chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Positions, Readable, Words
from spark_streams.wire.columnar.gather import write_views

_RUN: Final = 32
"""The average number of rows of an evenly spaced run from which on one copy of the run pays."""

Heads = NDArray[np.uint8]
"""Bytes of the same width for each row, shape (n, width), width at most 12."""


Field = bytes | tuple[NDArray[Any], str]


def heads(rows: int, *fields: Field) -> Heads:
    """Return heads that consist of constant bytes and of numbers.

    Args:
        rows: how many there are.
        fields: the same bytes for all, or a number of each and NumPy's name of its type, such as ``>u4``.
    """
    widths = [len(field) if isinstance(field, bytes) else np.dtype(field[1]).itemsize for field in fields]
    # All bytes of a row at once, with zeros in the place of its numbers, and then these.
    row = b"".join([field if isinstance(field, bytes) else bytes(np.dtype(field[1]).itemsize) for field in fields])
    written = np.empty((rows, len(row)), np.uint8)
    written[:] = np.frombuffer(row, np.uint8)
    at = 0
    for field, width in zip(fields, widths, strict=True):
        if not isinstance(field, bytes):
            written[:, at : at + width] = np.asarray(field[0], field[1]).view(np.uint8).reshape(rows, width)
        at += width
    return written


class Ranges(NamedTuple):
    """Byte ranges in a buffer, one for each row, the start inclusive and the end exclusive."""

    buffer: Readable | pa.Buffer | NDArray[np.uint8]
    starts: Positions
    ends: Positions


def grouped(
    count: int, groups: Iterable[tuple[Positions, NDArray[np.uint8]]]
) -> tuple[NDArray[np.uint8], Positions, Positions]:
    """Return rows of several widths as what ``Ranges`` has.

    Args:
        count: how many rows there are.
        groups: the rows of one width, and their bytes, shape (n, width); each row is in one group.
    """
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    pieces, total = list[NDArray[np.uint8]](), 0
    for rows, content in groups:
        width = content.shape[1]
        starts[rows] = total + width * np.arange(rows.size, dtype=np.int64)
        ends[rows] = starts[rows] + width
        total += content.size
        pieces.append(content.reshape(-1))
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces), starts, ends


def interleave(*columns: Heads | Ranges) -> pa.Buffer:
    """Return the bytes of row 0 of every column, then of row 1, and so on.

    Raises:
        LocalProtocolError: the columns point into more bytes than Arrow's views can address.
    """
    n = len(columns[0].starts if isinstance(columns[0], Ranges) else columns[0])
    if not n:
        return pa.py_buffer(b"")
    widths = [_width(column) for column in columns]
    if None not in widths:
        return _equal(columns, [width or 0 for width in widths], n)
    views = np.empty((n, len(columns), 2), np.uint64)
    content: list[pa.Buffer] = []
    for index, column in enumerate(columns):
        if isinstance(column, Ranges):
            raw = np.frombuffer(column.buffer, np.uint8)
            if raw.size >= 1 << 31:
                raise LocalProtocolError(f"a buffer of {raw.size} bytes: expected less than 2 GiB")
            write_views(views[:, index], Words(raw), column.starts, column.ends - column.starts, len(content))
            content.append(column.buffer if isinstance(column.buffer, pa.Buffer) else pa.py_buffer(column.buffer))
        else:
            views[:, index] = _inline(column)
    array = pa.Array.from_buffers(pa.binary_view(), n * len(columns), [None, pa.py_buffer(views), *content])
    # Arrow's cast of views copies all ranges one after the other: the fastest way to gather that we measured.
    return pa.py_buffer(layout(array.cast(pa.large_binary()))[1])


def _width(column: Heads | Ranges) -> int | None:
    """Return the number of bytes of every row of a column; None if rows differ."""
    if not isinstance(column, Ranges):
        return int(column.shape[1])
    width = int(column.ends[0] - column.starts[0])
    return width if (column.ends - column.starts == width).all() else None


def _equal(columns: tuple[Heads | Ranges, ...], widths: list[int], n: int) -> pa.Buffer:
    """Write rows of one width: every column is a block of bytes, copied whole."""
    # Arrow's allocator keeps freed memory: new pages for every RabbitMQ chunk would cost more than filling them.
    joined = pa.allocate_buffer(n * sum(widths))
    if not sum(widths):
        return joined
    rows = np.frombuffer(joined, np.uint8).reshape(n, sum(widths))
    at = 0
    for column, width in zip(columns, widths, strict=True):
        if not isinstance(column, Ranges):
            rows[:, at : at + width] = column
        elif width:
            _copy(rows[:, at : at + width], column)
        at += width
    return joined


def _copy(target: NDArray[np.uint8], column: Ranges) -> None:
    """Copy ranges of one width, each run of evenly spaced ranges at once; one by one if the runs are short."""
    n, width = target.shape
    raw, starts = np.frombuffer(column.buffer, np.uint8), column.starts
    steps = np.diff(starts)
    edges = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    if edges.size * _RUN > n or (steps < 0).any():
        windows = np.lib.stride_tricks.as_strided(raw, (raw.size - width + 1, width), (1, 1), writeable=False)
        target[:] = windows[starts]
        return
    begin = 0
    while begin < n:
        step = int(steps[begin]) if begin < n - 1 else width
        following = int(edges[np.searchsorted(edges, begin + 1)]) + 1 if edges.size and edges[-1] > begin else n
        first = int(starts[begin])
        shape = (following - begin, width)
        target[begin:following] = np.lib.stride_tricks.as_strided(raw[first:], shape, (step, 1), writeable=False)
        begin = following


def _inline(heads: Heads) -> NDArray[np.uint64]:
    n, width = heads.shape
    views = np.zeros((n, 16), np.uint8)
    views[:, 0] = width
    views[:, 4 : 4 + width] = heads
    return views.view(np.uint64)
