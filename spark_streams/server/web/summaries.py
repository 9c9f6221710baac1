"""Sums up streams and partitions for the pages: events, bytes, offsets and times.

The sum of a stream takes its partitions' numbers from memory. Times are read from the disk, a batch's header or, where
producers give the times, one batch; so they are made for the partitions of one page, in a thread.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from spark_streams.errors import LogError
from spark_streams.log import Partition, Stream
from spark_streams.log.format.timestamps import NO_TIMESTAMP
from spark_streams.log.storage.readable_partition import PartitionClosed

STEP_PARTITIONS = 64
"""Partitions whose times are read before other work of the thread has its turn."""


@dataclass(frozen=True)
class StreamSummary:
    """A stream as a whole.

    Args:
        name: the stream's name.
        partitions: how many there are, closed ones too.
        events: retained events; an offset that holds none, as after a compaction, is counted too.
        bytes: bytes that the segments hold.
        created_ms: when it was created; None where that was not noted.
        readable: whether the user may read it; the numbers of one that may not be read are 0.
        writable: whether the user may publish to it.
        configurable: whether the user may delete it.
    """

    name: str
    partitions: int
    events: int
    bytes: int
    created_ms: int | None
    readable: bool = True
    writable: bool = True
    configurable: bool = True

    @property
    def super_stream(self) -> bool:
        """Whether RabbitMQ's clients see a super stream: it has several partitions."""
        return self.partitions > 1


@dataclass(frozen=True)
class PartitionSummary:
    """A partition.

    Args:
        id: its identifier.
        first_offset: the first retained event's offset.
        next_offset: 1 + the last event's offset.
        bytes: bytes that the segments hold.
        segments: how many there are.
        first_ms: the time of the first retained event; ``NO_TIMESTAMP`` where it has none, None where there is none.
        last_ms: the time of the last event, likewise.
        successors: the partitions that it was split into; none while it takes events.
    """

    id: str
    first_offset: int
    next_offset: int
    bytes: int
    segments: int
    first_ms: int | None
    last_ms: int | None
    successors: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        """Retained events."""
        return self.next_offset - self.first_offset


def counted(stream: Stream) -> tuple[int, int, int]:
    """Return a stream's retained events, the events that were ever appended to its partitions, and its bytes."""
    events = ever = size = 0
    for partition in stream.partitions.values():
        following = partition.next_offset
        events += following - partition.first_offset
        ever += following
        size += partition.stored_bytes
    return events, ever, size


def summary_of(stream: Stream) -> StreamSummary:
    """Return the summary of a stream for somebody who may do everything."""
    events, _, size = counted(stream)
    return StreamSummary(stream.name, len(stream.partitions), events, size, stream.created_ms)


def summaries_of(partitions: Sequence[Partition]) -> Generator[object, None, list[PartitionSummary]]:
    """Return the summaries of partitions, in steps; one that goes meanwhile is left out."""
    found = []
    for number, partition in enumerate(partitions, 1):
        if number % STEP_PARTITIONS == 0:
            yield None
        try:
            found.append(_summary_of(partition))
        except PartitionClosed:
            continue
    return found


def _summary_of(partition: Partition) -> PartitionSummary:
    first, following = partition.first_offset, partition.next_offset
    return PartitionSummary(
        partition.id,
        first,
        following,
        partition.stored_bytes,
        partition.segment_count,
        time_at(partition, first) if first < following else None,
        time_at(partition, following - 1) if first < following else None,
        partition.successors,
    )


def time_at(partition: Partition, offset: int) -> int | None:
    """Return the time of an event, ``NO_TIMESTAMP`` where it has none; None where it is not there, or is damaged."""
    try:
        batch = partition.batch_with(offset)
        if batch is None:
            return None
        if batch.append_time or batch.max_timestamp == NO_TIMESTAMP:
            return batch.max_timestamp
        records = partition.read(offset, 1)
    except PartitionClosed:
        raise
    except (LogError, ValueError):
        return None
    return int(records.timestamps[0]) if records is not None and len(records) else None
