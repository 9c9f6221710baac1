"""Sums up streams and partitions for the pages: events, bytes, offsets and times.

The sum of a stream takes its partitions' numbers from memory. Times are read from the disk (a batch's header or, where
producers give the times, one batch), so they are read only for the partitions of one page, in a thread.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_streams.errors import LogError
from spark_streams.log import Partition, Stream
from spark_streams.log.format.record_batch import NO_TIMESTAMP
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.wire.amqp.decode import finished

MOST_TIMED: Final = 64
"""The most partitions of a stream whose times are read for the list of all streams."""
STEP_PARTITIONS: Final = 64
"""Partitions whose times are read before other work of the thread has its turn."""


@dataclass(frozen=True)
class StreamSummary:
    """A stream as a whole.

    Args:
        name: the stream's name.
        partitions: how many there are, closed ones too.
        events: retained events; an offset that holds none, as after a compaction, is counted too.
        bytes: bytes that the segments hold.
        created_ms: when it was created; None for a stream that the user may not read.
        offsets: the first retained offset, and 1 + the last one, of a stream of one partition; None for others.
        first_ms: the earliest of the times of its partitions' first events; None where there is none, or where there
            are more partitions than ``MOST_TIMED``.
        last_ms: the latest of the times of their last events, likewise.
        readable: whether the user may read it; if not, its numbers are 0.
        writable: whether the user may publish to it.
        configurable: whether the user may delete it.
    """

    name: str
    partitions: int
    events: int
    bytes: int
    created_ms: int | None = None
    offsets: tuple[int, int] | None = None
    first_ms: int | None = None
    last_ms: int | None = None
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
        first_ms: the time of the first retained event; ``NO_TIMESTAMP`` where it has none, None where there is none.
        last_ms: the time of the last event, likewise.
        successors: the partitions that it was split into; none while it takes events.
    """

    id: str
    first_offset: int
    next_offset: int
    bytes: int
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
    """Return the summary of a stream for a user who may do everything."""
    events, _, size = counted(stream)
    there = list(stream.partitions.values())
    timed = finished(summaries_of(there)) if len(there) <= MOST_TIMED else []
    first = [each.first_ms for each in timed if each.first_ms not in (None, NO_TIMESTAMP)]
    last = [each.last_ms for each in timed if each.last_ms not in (None, NO_TIMESTAMP)]
    return StreamSummary(
        stream.name,
        len(there),
        events,
        size,
        stream.created_ms,
        (there[0].first_offset, there[0].next_offset) if len(there) == 1 else None,
        min(first, default=None),
        max(last, default=None),
    )


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
