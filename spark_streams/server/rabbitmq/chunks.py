"""Cuts stored records into chunks, encodes them once, and shares them between all subscriptions of a partition.

A stored batch, the records that were appended together, is a chunk. It is cut further where it has too many records,
so that the last chunk is small, and where the timestamp changes (in a stream of create time): a chunk has one timestamp
for all its records. Where a chunk begins depends on the stored batch alone, so every reader sees the same chunks.

Batches are read and encoded a block at a time: the data sections of all its chunks lie one after the other in one
buffer, and each chunk refers to its part. Larger appends to a partition whose chunks the door uses are encoded during
the append, from the columns that are in memory then, which costs a fraction of reading them back.

A chunk's header has the sizes of its trailer and its Bloom filter, which are not sent, as a broker's header does.

Spec: docs/specifications.md, S-31 to S-37, S-41 to S-44, S-62.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa

from spark_streams.errors import LogError
from spark_streams.log import Partition, Records
from spark_streams.log.format.record_batch import BatchHeader, Header, from_stored
from spark_streams.log.format.records import record_headers
from spark_streams.log.format.varint import Longs
from spark_streams.log.storage.batch_walk import notes_of_batch
from spark_streams.server.rabbitmq.chunk_cache import CachedChunks, Chunk, ChunkCache
from spark_streams.server.rabbitmq.filter_values import BLOOM_NOTE
from spark_streams.server.rabbitmq.publish_append import PUBLISHERS_NOTE, trailer_bytes
from spark_streams.server.rabbitmq.stored_form import unescape
from spark_streams.server.turns import Timer
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Readable
from spark_streams.wire.columnar.interleave import Ranges, interleave
from spark_streams.wire.rabbitmq.chunk import ChunkHeader, ChunkType, checksum

MAX_RECORDS: Final = 8_192
"""The most records of a chunk, as at brokers."""
LAST_RECORDS: Final = 1_024
"""The most records of a stored batch's last chunk: a reader that starts at the last chunk gets no more (ADR 11)."""
READ_BYTES: Final = 1 << 20
"""Bytes to read and encode at a time: enough that columns pay, and few enough for a processor's cache."""
ONE_BATCH: Final = 1
"""Bytes to read instead, for one stored batch and no more."""
LARGE_APPEND_RECORDS: Final = 128
LARGE_APPEND_BYTES: Final = 64 << 10
"""An append of so many records or bytes or more is encoded at once; smaller ones are encoded together when read."""
BLOCKS_AHEAD: Final = 16
"""Blocks to encode ahead, some 16 MiB: a client takes long to process one read, and then wants more."""

EPOCH: Final = 1
"""The epoch of all chunks: the leader never changes."""


class Chunks:
    """The chunks of one partition.

    Args:
        partition: of the log; its appends are followed until ``close``.
        cache: shared by the partitions of a node.
    """

    def __init__(self, partition: Partition, cache: ChunkCache | None = None) -> None:
        self._partition = partition
        self._cache = ChunkCache() if cache is None else cache
        self._lock = self._cache.lock
        self._blocks: list[CachedChunks] = []
        self._unkept: CachedChunks | None = None
        self._last_id = (-1, 0)
        self._closed = False
        partition.add_observer(self._appended)

    def run(self, offset: int, limit: int, read_bytes: int = READ_BYTES) -> list[Chunk]:
        """Return consecutive chunks, from the one with an offset on, or from the first one that is retained after it.

        Args:
            offset: an offset in the log or below it.
            limit: the most chunks to return.
            read_bytes: about how many bytes to read where nothing is encoded yet; at least one stored batch is read.

        Returns:
            The chunks; an empty list at the end of the log.

        Raises:
            CorruptLog: the stored bytes fail their check.
            PartitionClosed: the stream was deleted, or the log closed.
        """
        # Encoded chunks may outlive their records: chunks that retention has removed are not served any more.
        offset = max(offset, self._partition.first_offset)
        block = self._holding(offset) or self._read(offset, read_bytes)
        if block is None:
            return []
        start = max(0, bisect_right(block.chunks, offset, key=_FIRST_OFFSET) - 1)
        return block.chunks[start : start + limit]

    def prepare(self, offset: int) -> int | None:
        """Encode the chunks that ``run`` will return from an offset on, unless they are encoded; raise as ``run`` does.

        Returns:
            The offset that follows the encoded chunks. None at the end of the log, or where the cache keeps nothing:
            chunks that are encoded further ahead would be lost before they are needed.
        """
        offset = max(offset, self._partition.first_offset)
        block = self._holding(offset) or self._read(offset, READ_BYTES)
        return None if block is None or block is self._unkept else block.next

    def _read(self, offset: int, read_bytes: int) -> CachedChunks | None:
        records = self._partition.read(offset, read_bytes, whole=True)
        if records is None:
            return None
        block = CachedChunks(self.forget, *_of_records(records))
        if not self._kept(block):
            self._unkept = block
        return block

    def _holding(self, offset: int) -> CachedChunks | None:
        with self._lock:
            index = bisect_right(self._blocks, offset, key=_FIRST) - 1
            for block in (self._blocks[index] if index >= 0 else None, self._unkept):
                if block is not None and block.first <= offset < block.next:
                    return block
        return None

    def last(self) -> Chunk | None:
        """Return the last chunk, None when nothing is retained; raise as ``run`` does."""
        found = self.run(self._partition.next_offset - 1, 1, ONE_BATCH)
        return found[-1] if found else None

    def last_id(self) -> int:
        """Return the last chunk's id, 0 when nothing is retained; the chunk is encoded only if its id is not known."""
        end = self._partition.next_offset
        if end <= self._partition.first_offset:
            return 0
        known_end, known = self._last_id
        if known_end == end:
            return known
        batch = self._partition.last_batch()
        if batch is None:
            return 0
        if batch.append_time:
            end = batch.next_offset
            known = int(_cuts(batch.first_offset, end)[-1])
        else:
            last = self.last()
            if last is None:
                return 0
            end, known = last.next_offset, last.first_offset
        self._last_id = end, known
        return known

    def forget(self, block: CachedChunks) -> None:
        """Forget a block that the cache has dropped."""
        del self._blocks[bisect_right(self._blocks, block.first, key=_FIRST) - 1]  # no two begin at the same offset

    def close(self) -> None:
        """Release all chunks, because the stream is gone."""
        self._partition.remove_observer(self._appended)
        with self._lock:
            self._closed = True
            for block in self._blocks:
                self._cache.remove(block)
            self._blocks.clear()
            self._unkept = None

    def _appended(self, values: pa.LargeBinaryArray, batches: Sequence[tuple[BatchHeader, bytes]]) -> None:
        """Encode values that were appended; called in the appending thread."""
        if len(values) < LARGE_APPEND_RECORDS and values.nbytes < LARGE_APPEND_BYTES:
            return
        if all(header.append_time for header, _ in batches):
            self._kept(CachedChunks(self.forget, *_of_values(values, batches)))

    def _kept(self, block: CachedChunks) -> bool:
        """Keep a block in the cache; return whether it is kept."""
        with self._lock:
            index = bisect_right(self._blocks, block.first, key=_FIRST) - 1
            if index >= 0 and self._blocks[index].first == block.first:
                # The new block has the same batches and more, or is a large read in place of a small one.
                self._cache.remove(self._blocks.pop(index))
            kept = not self._closed and self._cache.add(block)
            if kept:
                insort(self._blocks, block, key=_FIRST)
        return kept


class Prefetch:
    """Encodes the next chunks of one subscription while its client processes earlier ones, so that both work at once.

    It encodes a block at a time, so that other connections have their turn in between.

    Args:
        chunks: of the stream.
        loop: the server's.
    """

    def __init__(self, chunks: Chunks, loop: asyncio.AbstractEventLoop) -> None:
        self._chunks = chunks
        self._following = 0
        self._ends: deque[int] = deque()
        self._timer = Timer(loop)

    def from_offset(self, offset: int) -> None:
        """Encode until ``BLOCKS_AHEAD`` blocks are ready from an offset on, or the log has nothing more to encode."""
        self._following = offset
        while self._ends and self._ends[0] <= offset:
            self._ends.popleft()
        self._queue()

    def _queue(self) -> None:
        if not self._timer.due and len(self._ends) < BLOCKS_AHEAD:
            self._timer.start(0, self._step)

    def _step(self) -> None:
        try:
            end = self._chunks.prepare(self._ends[-1] if self._ends else self._following)
        except (LogError, OSError):
            return  # the next delivery meets the error again, and handles it
        if end is not None:
            self._ends.append(end)
            self._queue()

    def stop(self) -> None:
        """Stop encoding."""
        self._ends.clear()
        self._timer.stop()


_FIRST: Final = attrgetter("first")
_FIRST_OFFSET: Final = attrgetter("first_offset")


def _of_records(records: Records) -> tuple[list[Chunk], memoryview, memoryview]:
    """Return the chunks of these records, and the buffers with their data and with where their entries end."""
    batch_rows = np.array(records.batch_rows, np.int64)
    noted = np.frombuffer(records.buffer, np.uint8)[records.value_ends[batch_rows]].tolist()  # how many headers
    beside = [_beside_stored(records, row) if n else (0, 0) for row, n in zip(batch_rows.tolist(), noted, strict=True)]
    first, starts, ends = int(records.offsets[0]), records.value_starts, records.value_ends
    return _encoded(records.buffer, starts, ends, first, records.timestamps, batch_rows, beside)


def _of_values(
    values: pa.LargeBinaryArray, batches: Sequence[tuple[BatchHeader, bytes]]
) -> tuple[list[Chunk], memoryview, memoryview]:
    """Return the same as ``_of_records``, for values that were stored in batches of append time."""
    bounds, content = layout(values)
    headers = [header for header, _ in batches]
    first = headers[0].base_offset
    batch_rows = np.array([header.base_offset for header in headers], np.int64) - first
    instants = from_stored(
        np.array([header.max_timestamp for header in headers], np.int64),
        np.array([header.extended for header in headers], np.bool_),
    )
    timestamps = np.repeat(instants, np.diff(batch_rows, append=len(values)))
    beside = [_beside(notes_of_batch(encoded, header)) for header, encoded in batches]
    return _encoded(content.data, bounds[:-1], bounds[1:], first, timestamps, batch_rows, beside)


def _beside(notes: Iterable[Header]) -> tuple[int, int]:
    """Return the sizes of the trailer and the Bloom filter that a stored batch's chunk has at a broker."""
    trailer = bloom = 0
    for name, value in notes:
        if name == PUBLISHERS_NOTE:
            trailer = trailer_bytes(value or b"{}")
        elif name == BLOOM_NOTE:
            bloom = len(value or b"")
    return trailer, bloom


def _beside_stored(records: Records, row: int) -> tuple[int, int]:
    """Return the same as ``_beside`` for the stored batch that begins at a row; other writers' notes may not decode."""
    try:
        return _beside(record_headers(records, row))
    except ValueError:
        return 0, 0  # the messages are served all the same


def _encoded(
    buffer: Readable,
    starts: Longs,
    ends: Longs,
    first_offset: int,
    timestamps: Longs,
    batch_rows: Longs,
    beside: list[tuple[int, int]],
) -> tuple[list[Chunk], memoryview, memoryview]:
    """Encode the chunks of consecutive records.

    Args:
        buffer: holds the stored messages.
        starts: int64[n], first byte of each, inclusive.
        ends: int64[n], end of each, exclusive.
        first_offset: the first one's offset.
        timestamps: int64[n], in ms.
        batch_rows: the rows at which a stored batch begins.
        beside: for each stored batch what ``_beside`` returns.
    """
    cut_before = np.zeros(len(starts), np.bool_)
    cut_before[batch_rows] = True
    cut_before[1:] |= timestamps[1:] != timestamps[:-1]
    rows = _cut(np.flatnonzero(cut_before), len(starts))
    firsts, instants = (rows + first_offset).tolist(), timestamps[rows].tolist()
    of_batch = np.searchsorted(batch_rows, rows, side="right") - 1
    sizes_beside = [beside[batch] for batch in of_batch.tolist()]
    starts = unescape(buffer, starts, ends)
    lengths = ends - starts
    heads = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    data = memoryview(interleave(heads, Ranges(buffer, starts, ends)))
    edges = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths + 4, out=edges[1:])
    stops = [*edges[rows].tolist(), int(edges[-1])]
    counts = np.diff(rows, append=len(lengths))
    ends_in_chunk = memoryview((edges[1:] - np.repeat(edges[rows], counts)).astype(np.uint32).tobytes())
    firsts_of = [*(4 * rows).tolist(), 4 * len(lengths)]
    chunks = []
    heads_of = zip(firsts, counts.tolist(), instants, sizes_beside, strict=True)
    for number, (first, count, instant, sizes) in enumerate(heads_of):
        part = data[stops[number] : stops[number + 1]]
        header = ChunkHeader(ChunkType.USER, count, count, instant, EPOCH, first, checksum(part), len(part), *sizes)
        entry_ends = ends_in_chunk[firsts_of[number] : firsts_of[number + 1]]
        chunks.append(Chunk(first, first + count, header.encode(), part, entry_ends))
    return chunks, data, ends_in_chunk


def _cut(rows: Longs, count: int) -> Longs:
    """Return where each chunk of ``count`` records begins; a chunk must not reach across any of ``rows``."""
    sizes = np.diff(rows, append=count)
    if sizes.max() <= LAST_RECORDS:
        return rows
    return np.concatenate([_cuts(row, row + size) for row, size in zip(rows.tolist(), sizes.tolist(), strict=True)])


def _cuts(first: int, end: int) -> Longs:
    """Return where each chunk of the records from ``first`` (inclusive) to ``end`` (exclusive) begins."""
    last = first + (end - 1 - first) // LAST_RECORDS * LAST_RECORDS
    return np.append(np.arange(first, last, MAX_RECORDS), last)
