"""Stored records as chunks: cut, encoded once, and shared by all subscriptions of a partition.

A stored batch, which is what was appended together, is a chunk. It is cut further where it has too many records, and
where the timestamp changes (in a stream of create time): a chunk has one time for all its records. Where a chunk begins
depends on the stored batch alone, so every reader sees the same chunks.

Batches are read and encoded a block at a time: the data sections of all its chunks lie behind one another in one
buffer, of which a chunk's is a part.

Spec: notes, sections 3, 4 and 6.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort
from collections import OrderedDict
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.log import Partition, Records
from spark_streams.server.rabbit.stored_form import unescape
from spark_streams.wire.rabbit.chunk import ChunkHeader, ChunkType
from spark_streams.wire.rabbit.interleave import Ranges, interleave

__all__ = ["ONE_BATCH", "READ_BYTES", "Chunk", "ChunkCache", "Chunks"]

MAX_RECORDS: Final = 16_384
"""Below the 65,535 entries that a chunk's header can count."""
READ_BYTES: Final = 1 << 20
"""Read and encoded at a time: enough that working in columns pays, and little enough for a processor's cache."""
ONE_BATCH: Final = 1
"""To be read instead, for one stored batch and no more."""
CACHED_BYTES: Final = 64 << 20
"""Readers of a tail stand within a few chunks of each other; one encoding serves them all."""
BLOCK_OVERHEAD_BYTES: Final = 2 << 10
"""What an encoded block takes besides its bytes: blocks of one small record must not be kept without end."""
EPOCH: Final = 1
"""There is one leader, and it was never another."""


class Chunk(NamedTuple):
    """One encoded chunk.

    Args:
        first_offset: its id.
        next_offset: 1 + its last record's offset.
        timestamp_ms: of all its records; int64's least for none.
        header: 48 bytes.
        data: the entries.
    """

    first_offset: int
    next_offset: int
    timestamp_ms: int
    header: bytes
    data: memoryview

    @property
    def size(self) -> int:
        """Bytes of header and data."""
        return len(self.header) + len(self.data)


class _Block:
    """Consecutive chunks that were encoded together.

    Args:
        owner: whose they are.
        chunks: at least one.
    """

    __slots__ = ("chunks", "first", "next", "owner", "size")

    def __init__(self, owner: Chunks, chunks: list[Chunk]) -> None:
        self.owner = owner
        self.chunks = chunks
        self.first = chunks[0].first_offset
        self.next = chunks[-1].next_offset
        self.size = sum(chunk.size for chunk in chunks) + BLOCK_OVERHEAD_BYTES


class ChunkCache:
    """The encoded chunks of all partitions that were read lately.

    Args:
        max_bytes: of all together; one block is kept whatever its size.
    """

    def __init__(self, max_bytes: int = CACHED_BYTES) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._blocks: OrderedDict[_Block, None] = OrderedDict()

    def add(self, block: _Block) -> None:
        """Take in a block, and let go of those that were not used for longest."""
        self._blocks[block] = None
        self.bytes += block.size
        while self.bytes > self._max_bytes and len(self._blocks) > 1:
            oldest, _ = self._blocks.popitem(last=False)
            self.bytes -= oldest.size
            oldest.owner.forget(oldest)

    def used(self, block: _Block) -> None:
        """Note that a block was used."""
        self._blocks.move_to_end(block)

    def remove(self, block: _Block) -> None:
        """Let go of a block."""
        del self._blocks[block]
        self.bytes -= block.size


class Chunks:
    """The chunks of one partition.

    Args:
        partition: of the log.
        cache: shared by the partitions of a node.
    """

    def __init__(self, partition: Partition, cache: ChunkCache | None = None) -> None:
        self._partition = partition
        self._cache = ChunkCache() if cache is None else cache
        self._blocks: list[_Block] = []
        self._last: Chunk | None = None

    def run(self, offset: int, limit: int, read_bytes: int = READ_BYTES) -> list[Chunk]:
        """Return consecutive chunks from the one that holds an offset on, or the first one that is retained after it.

        Args:
            offset: in or below the log.
            limit: how many at most.
            read_bytes: about how much to read where nothing is encoded yet; at least one stored batch.

        Returns:
            None of them at the end of the log.

        Raises:
            CorruptLog: what is stored there fails its check.
            PartitionClosed: the stream was deleted, or the log closed.
        """
        # Encoded chunks may outlive what they were made of: what retention has removed is not served any more.
        offset = max(offset, self._partition.first_offset)
        index = bisect_right(self._blocks, offset, key=_FIRST) - 1
        block = self._blocks[index] if index >= 0 else None
        if block is None or block.next <= offset:
            records = self._partition.read(offset, read_bytes, whole=True)
            if records is None:
                return []
            block = self._keep(_encoded(records))
        else:
            self._cache.used(block)
        start = max(0, bisect_right(block.chunks, offset, key=_FIRST_OFFSET) - 1)
        return block.chunks[start : start + limit]

    def last(self) -> Chunk | None:
        """Return the last chunk, None when nothing is retained; raises as ``run`` does."""
        end = self._partition.next_offset
        if end <= self._partition.first_offset:
            return None
        if self._last is None or self._last.next_offset != end:
            found = self.run(end - 1, 1, ONE_BATCH)
            self._last = found[-1] if found else None
        return self._last

    def last_id(self) -> int:
        """Return the last chunk's id, 0 when nothing is retained; it is not encoded for that where it is known."""
        if self._last is not None and self._last.next_offset == self._partition.next_offset:
            return self._last.first_offset
        batch = self._partition.last_batch()
        if batch is not None and batch.append_time:
            return batch.next_offset - 1 - (batch.next_offset - 1 - batch.first_offset) % MAX_RECORDS
        last = self.last()
        return 0 if last is None else last.first_offset

    def forget(self, block: _Block) -> None:
        """Let go of a block: the cache is full."""
        self._blocks.remove(block)

    def close(self) -> None:
        """Let go of all of them: the stream is gone."""
        for block in self._blocks:
            self._cache.remove(block)
        self._blocks.clear()
        self._last = None

    def _keep(self, chunks: list[Chunk]) -> _Block:
        block = _Block(self, chunks)
        index = bisect_right(self._blocks, block.first, key=_FIRST) - 1
        if index >= 0 and self._blocks[index].first == block.first:
            # The same batches and more, or a large read where a small one was.
            self._cache.remove(self._blocks.pop(index))
        insort(self._blocks, block, key=_FIRST)
        self._cache.add(block)
        return block


_FIRST: Final = attrgetter("first")
_FIRST_OFFSET: Final = attrgetter("first_offset")


def _encoded(records: Records) -> list[Chunk]:
    starts = unescape(records.buffer, records.value_starts, records.value_ends)
    ends = records.value_ends
    lengths = ends - starts
    heads = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    data = memoryview(interleave(heads, Ranges(records.buffer, starts, ends)))
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths + 4, out=edges[1:])
    rows = _first_rows(records)
    firsts, stops = records.offsets[rows].tolist(), edges[rows].tolist()
    instants = records.timestamps[rows].tolist()
    firsts.append(int(records.offsets[-1]) + 1)
    stops.append(int(edges[-1]))
    chunks = []
    for number, instant in enumerate(instants):
        first, following = firsts[number], firsts[number + 1]
        part = data[stops[number] : stops[number + 1]]
        count = following - first
        header = ChunkHeader(ChunkType.USER, count, count, instant, EPOCH, first, zlib.crc32(part), len(part))
        chunks.append(Chunk(first, following, instant, header.encode(), part))
    return chunks


def _first_rows(records: Records) -> NDArray[np.int64]:
    """Return the row at which each chunk begins."""
    begins = np.zeros(len(records), np.bool_)
    begins[list(records.batch_rows)] = True
    begins[1:] |= records.timestamps[1:] != records.timestamps[:-1]
    rows = np.flatnonzero(begins)
    sizes = np.diff(rows, append=len(records))
    if sizes.max() <= MAX_RECORDS:
        return rows
    return np.concatenate(
        [np.arange(row, row + size, MAX_RECORDS) for row, size in zip(rows.tolist(), sizes.tolist(), strict=True)]
    )
