"""Names the rows of a task in errors, and cuts them into parts with a running digest, for publishers of all protocols.

Exactly-once publishing compares the digests between attempts at a task. The end of a part depends on the sequence of
the rows alone, not on the batches that they came in, so every attempt cuts its rows alike: ``RowBlocks`` after a fixed
number of rows, ``Parts`` after a number of rows or of bytes. A digest covers the part's rows and all rows of the task
before it; the last part's digest covers the end of the task too: other rows, another order or another number of them
give another digest. Earlier runs have stored digests that later ones compare with, so the digested content and its
order must never change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import run_ends

BLOCK_ROWS: Final = 1_024
"""Rows of a block, unless a sub-entry batch holds more: one checksum covers that many rows."""
DIGEST_BITS: Final = 10
"""Bits of a block's digest: other rows go unnoticed in one case of 1,024."""
MAX_PART_BYTES: Final = 4 << 20
"""Bytes of values and keys: far below a door's limit (16 MiB), and so many that a request's overhead is negligible."""
MAX_PART_ROWS: Final = 50_000
_ROW_BYTES: Final = 16
"""Bytes that a row counts beside its value and key: lengths, timestamp."""
_END: Final = b"end of the task"

PART_SCHEMA: Final = pa.schema(
    [("value", pa.large_binary()), ("key", pa.string()), ("timestamp", pa.timestamp("us", tz="UTC"))]
)
"""The columns of rows that are published to a feed; key and timestamp may be null."""

Destinations = Mapping[str, NDArray[np.int64]]
"""Stream to the numbers of its rows, within the block, in ascending order."""

Label = Callable[[int], str]
"""The number of a row, from 0, to its name in errors, such as ``row 17 (key 'customer-4')``."""

_Part = TypeVar("_Part")


@dataclass(frozen=True)
class TaskIdentity:
    """The identity that a task has on every attempt, which makes publishing exactly once.

    Args:
        reference: the publisher's reference, the same for this query and Spark partition in every micro-batch.
        batch: number of the micro-batch.
    """

    reference: str
    batch: int


class RowLabels:
    """The names of a task's rows in errors, by the labels that came with the rows; itself a ``Label``."""

    def __init__(self, labels: Iterable[tuple[int, Label]] = ()) -> None:
        self._labels = deque(labels)
        self.rows = 0
        """How many rows were added."""

    def add(self, rows: int, label: Label) -> None:
        """Add the label of the next rows."""
        self._labels.append((self.rows, label))
        self.rows += rows

    def __call__(self, row: int) -> str:
        """Return the name of a row, by its number within the task, from 0."""
        first, label = next((each for each in reversed(self._labels) if each[0] <= row), (0, "row {}".format))
        return label(row - first)

    def take(self, end: int) -> RowLabels:
        """Return the labels of the rows before row ``end``, and keep those of later rows only."""
        taken = []
        while self._labels and self._labels[0][0] < end:
            taken.append(self._labels.popleft())
        self._labels.extendleft(taken[-1:])  # its rows may end after ``end``
        return RowLabels(taken)


class _DigestedRows(ABC, Generic[_Part]):
    """Holds the last part back until the end of the task is known, and digests each part that it returns.

    Args:
        begin: the first bytes of the digest: everything else that has to be the same on every attempt.
    """

    def __init__(self, begin: bytes = b"") -> None:
        self._held: list[pa.Table] = []
        self._crc = int(google_crc32c.value(begin))
        self.rows = 0
        """How many rows the returned parts have."""

    def finish(self) -> list[_Part]:
        """Return the last part; none when there was no row."""
        held, self._held = self._held, []
        return [self._next(pa.concat_tables(held), _END)] if any(rows.num_rows for rows in held) else []

    def _cut(self, rows: pa.Table, ends: Sequence[int]) -> list[_Part]:
        """Add rows; return the parts that are certainly not the last one.

        Args:
            rows: the next rows.
            ends: the ends of parts that a further row follows, counted over the held rows and these.
        """
        self._held.append(rows)
        if not ends:
            return []
        held = pa.concat_tables(self._held)
        self._held = [held.slice(ends[-1])]
        return [self._next(held.slice(start, end - start), b"") for start, end in zip([0, *ends], ends, strict=False)]

    def _next(self, rows: pa.Table, end: bytes) -> _Part:
        part = self._part(rows, end)
        self.rows += rows.num_rows
        return part

    @abstractmethod
    def _part(self, rows: pa.Table, end: bytes) -> _Part:
        """Return a part of these rows; the digest covers ``end`` after them."""

    def _digest(self, content: bytes | NDArray[np.uint8]) -> None:
        self._crc = google_crc32c.extend(self._crc, content)


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a task with one digest.

    Args:
        first_row: number of the first row within the task, from 0.
        rows: how many rows it has.
        digest: the digest of these and all rows before them; 0 for blocks without digests.
        places: the streams that the rows go to.
    """

    first_row: int
    rows: int
    digest: int
    places: Destinations


class RowBlocks(_DigestedRows[tuple[RowBlock, pa.Table]]):
    """Cuts the rows of a task into blocks of a fixed number of rows; their digests cover where rows go, too.

    Args:
        place: returns where the rows of a block go, given the number of its first row and its rows; it is called once
            for each block, in their order.
        block_rows: rows of a block.
        begin: the first bytes of the digest: everything else that has to be the same on every attempt.
        digested: whether digests are needed.
    """

    def __init__(
        self,
        place: Callable[[int, pa.Table], Destinations],
        block_rows: int = BLOCK_ROWS,
        begin: bytes = b"",
        digested: bool = True,
    ) -> None:
        super().__init__(begin)
        self.block_rows = block_rows
        self._place = place
        self._digested = digested

    def add(self, rows: pa.Table) -> list[tuple[RowBlock, pa.Table]]:
        """Add rows; return the blocks that are certainly not the last one.

        Args:
            rows: the next rows; the digest covers column ``payload`` (large_binary) and no other column.

        Raises:
            DeliveryFailed: ``place`` raised it; ``finish`` raises it too.
        """
        count = rows.num_rows + sum(held.num_rows for held in self._held)
        return self._cut(rows, range(self.block_rows, count, self.block_rows))

    def _part(self, rows: pa.Table, end: bytes) -> tuple[RowBlock, pa.Table]:
        places = self._place(self.rows, rows)
        if self._digested:
            for content in _binary(rows.column("payload").combine_chunks()):
                self._digest(content)
            for stream in sorted(places):
                chosen = places[stream]
                # Most tasks have one stream: its name alone is that of all rows.
                self._digest(b"%d %b" % (len(chosen), stream.encode()))
                if len(chosen) < rows.num_rows:
                    self._digest(chosen.astype("<u4").tobytes())
            self._digest(end)
        digest = self._crc >> (32 - DIGEST_BITS) if self._digested else 0
        return RowBlock(self.rows, rows.num_rows, digest, places), rows


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a task, published together.

    Args:
        number: the number of the part within the task, from 0.
        first_row: number of its first row within the task, from 0.
        rows: the rows, with ``PART_SCHEMA``.
        digest: the digest of these and all rows before them, 32 bits.
    """

    number: int
    first_row: int
    rows: pa.RecordBatch
    digest: int


class Parts(_DigestedRows[Part]):
    """Cuts the rows of a task into parts of ``MAX_PART_ROWS`` or ``MAX_PART_BYTES``, whichever comes first.

    A part ends before the row that would exceed the bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sizes = np.zeros(0, np.int64)
        self.last_number = -1
        """The number of the last part returned, -1 for none."""

    def add(self, rows: pa.RecordBatch) -> list[Part]:
        """Add rows with ``PART_SCHEMA``; return the parts that are certainly not the last one."""
        sizes = np.concatenate([self._sizes, _row_bytes(rows)])
        ends = run_ends(np.cumsum(sizes), MAX_PART_BYTES, MAX_PART_ROWS)[:-1]  # the last run may go on
        self._sizes = sizes[ends[-1] :] if ends else sizes
        return self._cut(pa.Table.from_batches([rows]), ends)

    def _part(self, rows: pa.Table, end: bytes) -> Part:
        columns = [rows.column(name).combine_chunks() for name in PART_SCHEMA.names]
        for column in columns:
            for content in _content(column):
                self._digest(content)
        self._digest(end)
        self.last_number += 1
        batch = pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)
        return Part(self.last_number, self.rows, batch, self._crc)


def _content(column: pa.Array) -> Iterator[bytes | NDArray[np.uint8]]:
    """Yield bytes that are equal for equal columns, whatever their layout in memory, and differ for others."""
    yield np.packbits(np.asarray(column.is_valid())).tobytes()
    if pa.types.is_timestamp(column.type):
        yield np.asarray(column.cast(pa.int64()).fill_null(0)).astype("<i8").tobytes()
        return
    binary = column.cast(pa.large_binary())
    yield from _binary(binary.fill_null(b"") if column.null_count else binary)


def _binary(values: pa.LargeBinaryArray) -> Iterator[bytes | NDArray[np.uint8]]:
    """Yield the lengths of values without null, and then the values, without a copy."""
    bounds, content = layout(values)
    yield np.diff(bounds).astype("<i8").tobytes()
    yield content


def _row_bytes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    keys = rows.column("key").cast(pa.large_binary()).fill_null(b"")
    return np.diff(layout(rows.column("value"))[0]) + np.diff(layout(keys)[0]) + _ROW_BYTES
