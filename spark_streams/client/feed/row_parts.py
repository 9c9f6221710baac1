"""The rows of a task, cut into the parts that are published one by one, each with a digest of all rows up to its end.

Where a part ends depends on the sequence of the rows alone, not on the batches that they came in, so every attempt at a
task cuts its rows alike: after ``MAX_PART_ROWS`` rows, or before the row with which it would have more than
``MAX_PART_BYTES``. A digest covers the part's rows, all rows of the task before it, and the last part's the end of the
task too: other rows, another order or another number of them give another digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["MAX_PART_BYTES", "MAX_PART_ROWS", "PART_SCHEMA", "Part", "Parts"]

MAX_PART_BYTES: Final = 4 << 20
"""Of values and keys: far below what a door takes (16 MiB), and enough that a request's own costs do not count."""
MAX_PART_ROWS: Final = 50_000
_ROW_BYTES: Final = 16
"""What a row counts beside its value and key: lengths, timestamp."""
_END: Final = b"end of the task"

PART_SCHEMA: Final = pa.schema(
    [("value", pa.large_binary()), ("key", pa.string()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)
"""The columns of rows that are published; key and timestamp may be null."""


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a task, published together.

    Args:
        number: of the part within the task, from 0.
        first_row: number of its first row within the task, from 0.
        rows: with ``PART_SCHEMA``.
        digest: 32 bits: of these and all rows before them.
    """

    number: int
    first_row: int
    rows: pa.RecordBatch
    digest: int


class Parts:
    """Cuts the rows of a task into parts; the last part is held back until the end is known."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []
        self._held_bytes: list[NDArray[np.int64]] = []
        self._number = 0
        self._row = 0
        self._crc = 0

    @property
    def last_number(self) -> int:
        """The number of the part that came out last, -1 for none."""
        return self._number - 1

    def add(self, rows: pa.RecordBatch) -> Iterator[Part]:
        """Take rows with ``PART_SCHEMA``; yield the parts that are certainly not the last one."""
        self._held.append(rows)
        self._held_bytes.append(_row_bytes(rows))
        sizes = np.concatenate(self._held_bytes)
        ends = _part_ends(sizes)
        if not ends:
            return
        held = pa.Table.from_batches(self._held)
        last = ends[-1]
        self._held, self._held_bytes = held.slice(last).to_batches(), [sizes[last:]]
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            yield self._part(held.slice(start, end - start), b"")

    def finish(self) -> Iterator[Part]:
        """Yield the last part; none when there was no row."""
        held, self._held, self._held_bytes = self._held, [], []
        if sum(each.num_rows for each in held):
            yield self._part(pa.Table.from_batches(held), _END)

    def _part(self, rows: pa.Table, end: bytes) -> Part:
        columns = {name: rows.column(name).combine_chunks() for name in PART_SCHEMA.names}
        for column in columns.values():
            self._digest(column)
        self._crc = google_crc32c.extend(self._crc, end)
        batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=PART_SCHEMA)
        part = Part(self._number, self._row, batch, int(self._crc))
        self._number += 1
        self._row += rows.num_rows
        return part

    def _digest(self, column: pa.Array) -> None:
        for content in _content(column):
            self._crc = google_crc32c.extend(self._crc, content)


def _content(column: pa.Array) -> Iterator[bytes]:
    """Yield bytes that are the same for equal columns, however they lie in memory, and others for other ones."""
    valid = np.asarray(column.is_valid())
    yield np.packbits(valid).tobytes()
    if pa.types.is_timestamp(column.type):
        yield np.asarray(column.cast(pa.int64()).fill_null(0)).astype("<i8").tobytes()
        return
    binary = column.cast(pa.large_binary()).fill_null(b"") if column.null_count else column.cast(pa.large_binary())
    bounds = _bounds(binary)
    yield np.diff(bounds).astype("<i8").tobytes()
    content = binary.buffers()[2]
    if content is not None:
        yield content.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes()


def _bounds(binary: pa.LargeBinaryArray) -> NDArray[np.int64]:
    return np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]


def _row_bytes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    keys = rows.column("key").cast(pa.large_binary()).fill_null(b"")
    return np.diff(_bounds(rows.column("value"))) + np.diff(_bounds(keys)) + _ROW_BYTES


def _part_ends(sizes: NDArray[np.int64]) -> list[int]:
    """Return where parts end for which a further row is there: they cannot be the last one."""
    total = np.cumsum(sizes)
    ends: list[int] = []
    start, before = 0, 0
    while True:
        # At least one row, however large it is.
        end = max(start + 1, int(np.searchsorted(total, before + MAX_PART_BYTES, side="right")))
        end = min(end, start + MAX_PART_ROWS)
        if end >= len(sizes):
            return ends
        ends.append(end)
        start, before = end, int(total[end - 1])
