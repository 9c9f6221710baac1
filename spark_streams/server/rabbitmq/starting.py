"""Where a subscription starts: which record and which chunk each offset specification means.

The unit is the chunk: whatever lies inside of one starts at its first record, and the client leaves out what it did not
ask for, of the first chunk that it is sent and of no other. A filtered subscription therefore starts at the record: of
the chunk's runs, which are chunks to the client, those that lie before it are not sent.

Spec: docs/specifications.md, S-61 to S-65.
"""

from __future__ import annotations

from spark_streams.log import NO_TIMESTAMP, Partition
from spark_streams.server.rabbitmq.chunks import ONE_BATCH, Chunks
from spark_streams.wire.rabbitmq.consumer_commands import OffsetSpecification, OffsetType

__all__ = ["start_offset", "start_record"]


def start_record(partition: Partition, chunks: Chunks, wanted: OffsetSpecification) -> int:
    """Return the offset of the first record that a specification means, or the next one of the log where there is none.

    Args:
        partition: of the log.
        chunks: of the partition.
        wanted: of any type but NONE. An offset below the first record means the first one, as do instants before it; an
            offset or instant beyond the last record means what is appended next. LAST means the last chunk's first.

    Raises:
        CorruptLog: what is stored there fails its check.
        PartitionClosed: the stream was deleted, or the log closed.
    """
    end = partition.next_offset
    if wanted.type == OffsetType.NEXT:
        return end
    if wanted.type == OffsetType.LAST:
        last = chunks.last()
        return end if last is None else last.first_offset
    offset = partition.first_offset
    if wanted.type == OffsetType.OFFSET:
        offset = max(offset, wanted.value)
    elif wanted.type == OffsetType.TIMESTAMP and wanted.value != NO_TIMESTAMP:
        found = partition.offset_for_time(wanted.value)
        offset = end if found is None else found[0]
    return min(offset, end)


def start_offset(partition: Partition, chunks: Chunks, wanted: OffsetSpecification) -> int:
    """Return the id of the chunk that holds that record, or the next offset of the log where there is none yet.

    Args:
        partition: of the log.
        chunks: of the partition.
        wanted: of any type but NONE.

    Raises:
        CorruptLog: what is stored there fails its check.
        PartitionClosed: the stream was deleted, or the log closed.
    """
    offset = start_record(partition, chunks, wanted)
    end = partition.next_offset
    if offset >= end or offset == partition.first_offset or wanted.type == OffsetType.LAST:
        return offset
    holding = chunks.run(offset, 1, ONE_BATCH)
    return holding[0].first_offset if holding else end
