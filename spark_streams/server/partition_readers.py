"""One partition as consumers see it: recently decoded blocks shared by all links, and who waits for its next event."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

import numpy as np
from cproton_ffi import ffi
from numpy.typing import NDArray

from spark_streams.log import Partition, Records
from spark_streams.server.append_waiters import AppendWaiters
from spark_streams.server.bare_message import bare_starts
from spark_streams.wire.amqp.columns import delivery_annotations

__all__ = ["READ_BYTES", "SEARCHED_BYTES", "PartitionReader", "PartitionReaders", "TransferBlock"]

READ_BYTES: Final = 256 << 10
"""Read at a time: enough that decoding in columns pays, little enough that one read does not hold up other links."""
SEARCHED_BYTES: Final = 1 << 20
"""Read at a time for a link whose filter looks into messages: most of them are not sent."""
CACHED_BLOCKS: Final = 4
"""Links that read a log's tail stand within a block or two of each other."""


class TransferBlock:
    """Events of a partition in rising order; ``prepare`` makes them ready to be sent.

    Attributes:
        offsets, timestamps: int64[n], for filters.
        first, last: the numbers of the first and the last event.
        heads, head_sizes, values, value_sizes: for each event, where its delivery annotations section starts in
            ``annotations`` and its bare message in ``buffer``, and how long they are.
        annotations, buffer: C pointers, which keep their memory alive.
        largest: bytes of the largest transfer.

    """

    heads: list[int]
    head_sizes: list[int]
    values: list[int]
    value_sizes: list[int]
    annotations: Any
    buffer: Any
    largest: int

    def __init__(self, records: Records, partition: str) -> None:
        self.offsets = records.offsets
        self.timestamps = records.timestamps
        self.first = int(records.offsets[0])
        self.last = int(records.offsets[-1])
        self.records = records
        self._partition = partition
        self._sections: NDArray[np.uint8] | None = None

    def only(self, rows: NDArray[np.int64]) -> TransferBlock:
        """Return a block of one or more of these events, by their rising rows."""
        return TransferBlock(self.records.take(rows), self._partition)

    def prepare(self) -> None:
        """Render the delivery annotations and find the bare messages, if that was not done."""
        if self._sections is not None:
            return
        records = self.records
        count = len(records.offsets)
        starts, sizes, pieces, total = np.empty(count, np.int64), np.empty(count, np.int64), [], 0
        for rows, sections in delivery_annotations(records.offsets, records.timestamps, self._partition):
            width = sections.shape[1]
            starts[rows] = total + width * np.arange(len(rows), dtype=np.int64)
            sizes[rows] = width
            pieces.append(sections.reshape(-1))
            total += sections.size
        rendered: NDArray[np.uint8] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        self.annotations = ffi.from_buffer(rendered)
        self.buffer = ffi.from_buffer(records.buffer)
        self.heads = starts.tolist()
        self.head_sizes = sizes.tolist()
        value_starts = bare_starts(records)
        self.values = value_starts.tolist()
        value_sizes = records.value_ends - value_starts
        self.value_sizes = value_sizes.tolist()
        self.largest = int((sizes + value_sizes).max())
        self._sections = rendered

    def message(self, row: int) -> tuple[bytes, bytes]:
        """Return one event's delivery annotations section and its bare message."""
        self.prepare()
        assert self._sections is not None
        head, value = self.heads[row], self.values[row]
        return (
            self._sections[head : head + self.head_sizes[row]].tobytes(),
            self.records.buffer[value : value + self.value_sizes[row]],
        )


class PartitionReader:
    """A partition with its listeners on the loop.

    Args:
        partition: of the log.
        loop: where those who wait are called.

    Attributes:
        waiting: who is called after the next append.

    """

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self.partition = partition
        self.users = 0
        self.waiting = AppendWaiters(partition, loop)
        self._blocks: deque[TransferBlock] = deque(maxlen=CACHED_BLOCKS)

    def block(self, offset: int, size: int = READ_BYTES) -> TransferBlock | None:
        """Return a block that holds the event ``offset``, or begins with the first retained one after it.

        Args:
            offset: where to read.
            size: bytes to read where the log has to be read.

        Returns:
            None at the end of the log.

        Raises:
            CorruptLog: what is stored there fails its check.

        """
        for block in self._blocks:
            if block.first <= offset <= block.last:
                return block
        records = self.partition.read(offset, size)
        if records is None or not len(records.offsets):
            return None
        block = TransferBlock(records, self.partition.id)
        self._blocks.append(block)
        return block

    def close(self) -> None:
        """Drop the cache and all who wait."""
        self._blocks.clear()
        self.waiting.clear()


class PartitionReaders:
    """The feeds in use, one for each partition.

    Args:
        loop: the server's.

    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._feeds: dict[int, PartitionReader] = {}

    def use(self, partition: Partition) -> PartitionReader:
        """Return the partition's feed; give it back with ``release``."""
        feed = self._feeds.get(id(partition))
        if feed is None:
            feed = self._feeds[id(partition)] = PartitionReader(partition, self._loop)
        feed.users += 1
        return feed

    def release(self, feed: PartitionReader) -> None:
        """Give a feed back; its cache goes with its last user."""
        feed.users -= 1
        if feed.users == 0:
            del self._feeds[id(feed.partition)]
            feed.close()
