"""Stored records as chunks: cut, encoded once, and shared by all subscriptions of a partition.

A stored batch, which is what was appended together, is a chunk. It is cut further where it has too many records, and,
in a stream of create time, where the timestamp changes: a chunk has one time for all its records. Where a chunk
begins depends on the stored batch alone, so every reader sees the same chunks.

Spec: notes, sections 3, 4 and 6.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from spark_streams.log import NO_TIMESTAMP, Partition, Records
from spark_streams.server.rabbit.stored_form import unescape
from spark_streams.wire.rabbit.chunk import encode_chunk

__all__ = ["Chunk", "Chunks"]

MAX_RECORDS: Final = 16_384
"""Below the 65,535 entries that a chunk's header can count."""
READ_BYTES: Final = 1 << 20
CACHED_BYTES: Final = 8 << 20
"""Readers of the tail stand within a few chunks of each other; one encoding serves them all."""
EPOCH: Final = 1
"""There is one leader, and it was never another."""


@dataclass(frozen=True)
class Chunk:
    """One encoded chunk.

    Args:
        first_offset: its id.
        next_offset: 1 + its last record's offset.
        timestamp_ms: of all its records; int64's least for none.
        encoded: header and data.
    """

    first_offset: int
    next_offset: int
    timestamp_ms: int
    encoded: bytes


class Chunks:
    """The chunks of one partition.

    Args:
        partition: of the log.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._cached: OrderedDict[int, Chunk] = OrderedDict()
        self._bytes = 0

    def at(self, offset: int) -> Chunk | None:
        """Return the chunk that holds an offset, or the first one that is retained after it.

        Returns:
            None at the end of the log.

        Raises:
            CorruptLog: what is stored there fails its check.
            PartitionClosed: the stream was deleted, or the log closed.
        """
        chunk = self._cached.get(offset)
        if chunk is not None:
            self._cached.move_to_end(offset)
            return chunk
        if offset >= self._partition.next_offset:
            return None
        records = self._partition.read(offset, READ_BYTES, whole=True)
        if records is None or not len(records.offsets):
            return None
        found = None
        for chunk in _encoded(records, self._partition.config.timestamp_type == "create"):
            self._keep(chunk)
            if found is None and chunk.next_offset > offset:
                found = chunk
        return found

    def last(self) -> Chunk | None:
        """Return the last chunk, None when nothing is retained."""
        end = self._partition.next_offset
        return self.at(end - 1) if end > self._partition.first_offset else None

    def _keep(self, chunk: Chunk) -> None:
        replaced = self._cached.pop(chunk.first_offset, None)
        self._bytes += len(chunk.encoded) - (len(replaced.encoded) if replaced is not None else 0)
        self._cached[chunk.first_offset] = chunk
        while self._bytes > CACHED_BYTES and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            self._bytes -= len(oldest.encoded)


def _encoded(records: Records, create_time: bool) -> Iterator[Chunk]:
    starts = unescape(records.buffer, records.value_starts, records.value_ends)
    ends = records.value_ends
    for first, end in _cuts(records, create_time):
        instant = int(records.timestamps[first])
        yield Chunk(
            int(records.offsets[first]),
            int(records.offsets[end - 1]) + 1,
            instant,
            encode_chunk(
                records.buffer,
                starts[first:end],
                ends[first:end],
                first_offset=int(records.offsets[first]),
                timestamp_ms=NO_TIMESTAMP if instant == NO_TIMESTAMP else instant,
                epoch=EPOCH,
            ),
        )


def _cuts(records: Records, create_time: bool) -> Iterator[tuple[int, int]]:
    """Yield first row (inclusive) and end (exclusive) of each chunk."""
    count = len(records.offsets)
    for first, end in zip(records.batch_rows, (*records.batch_rows[1:], count), strict=True):
        edges = [first, end]
        if create_time:
            changes = np.flatnonzero(np.diff(records.timestamps[first:end])) + first + 1
            edges = [first, *changes.tolist(), end]
        for start, stop in pairwise(edges):
            for at in range(start, stop, MAX_RECORDS):
                yield at, min(at + MAX_RECORDS, stop)
