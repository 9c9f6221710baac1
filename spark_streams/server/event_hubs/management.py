"""Answers the requests of clients to ``$management``: about a hub, and about one of its partitions.

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from spark_streams.errors import CorruptLog
from spark_streams.log import NO_TIMESTAMP, Partition, Stream
from spark_streams.log.reference_log import wall_clock_ms
from spark_streams.server.amqp import error_conditions as conditions
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.server.amqp.requests import Reply, Request
from spark_streams.wire.amqp.dialects.event_hubs import ARGUMENT_OUT_OF_RANGE, HUB_TYPE, PARTITION_TYPE
from spark_streams.wire.amqp.event_hubs import NONE_ENQUEUED_MS, Newest
from spark_streams.wire.amqp.management import READ
from spark_streams.wire.amqp.values import Array, Int, Long, Timestamp

_STRINGS: Final = 0xA1
_LONG_STRINGS: Final = 0xB1
_STATUSES: Final = {
    conditions.UNAUTHORIZED: HTTPStatus.UNAUTHORIZED,
    conditions.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ARGUMENT_OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
}


def answer(request: Request, stream_of: Callable[[str, str], Stream]) -> Reply:
    """Answer a request.

    Args:
        request: the request.
        stream_of: returns the stream of a hub's name that the peer may read, with the request's own token; or raises
            ``LinkRefused``.

    Raises:
        WrongToken: the request's own token is not valid.
    """
    kind = request.text("type")
    if request.text("operation") != READ or kind not in (HUB_TYPE, PARTITION_TYPE):
        return Reply(
            HTTPStatus.BAD_REQUEST, f"expected {READ} of {HUB_TYPE} or {PARTITION_TYPE}", conditions.NOT_IMPLEMENTED
        )
    try:
        stream = stream_of(request.text("name"), request.text("security_token"))
        if kind == HUB_TYPE:
            return Reply(HTTPStatus.OK, "OK", body=describe_hub(stream))
        return Reply(
            HTTPStatus.OK, "OK", body=describe_partition(stream, partition_of(stream, request.text("partition")))
        )
    except LinkRefused as refusal:
        return Reply(_STATUSES.get(refusal.name, HTTPStatus.BAD_REQUEST), refusal.description, refusal.name)


def describe_hub(stream: Stream) -> dict[str, Any]:
    """Return the description of a hub."""
    names = tuple(stream.partitions)
    return {
        "name": stream.name,
        "type": HUB_TYPE,
        "created_at": Timestamp(stream.created_ms),
        "partition_count": Int(len(names)),
        "partition_ids": Array(_STRINGS if all(len(name) < 256 for name in names) else _LONG_STRINGS, names),
        "georeplication_factor": Int(1),
    }


def describe_partition(stream: Stream, partition: Partition) -> dict[str, Any]:
    """Return the description of a partition."""
    # Both offsets only rise: with the end read first, retention makes the partition look empty, never negative.
    last = newest(partition)
    end, first = partition.next_offset, partition.first_offset
    return {
        "name": stream.name,
        "partition": partition.id,
        "type": PARTITION_TYPE,
        "begin_sequence_number": Long(min(first, end)),
        "last_enqueued_sequence_number": Long(last.sequence_number),
        "last_enqueued_offset": last.offset,
        "last_enqueued_time_utc": Timestamp(last.timestamp_ms),
        "runtime_info_retrieval_time_utc": Timestamp(wall_clock_ms()),
        "is_partition_empty": first >= end,
    }


def newest(partition: Partition) -> Newest:
    """Return the newest event of a partition; retention may have removed it."""
    end = partition.next_offset
    try:
        batch = partition.last_batch()
    except (CorruptLog, OSError):
        batch = None  # a receiver of the partition gets the error
    time_ms = NONE_ENQUEUED_MS if batch is None or batch.max_timestamp == NO_TIMESTAMP else batch.max_timestamp
    return Newest(end - 1, time_ms)


def partition_of(stream: Stream, name: str) -> Partition:
    """Return a partition.

    Raises:
        LinkRefused: there is none of the name (com.microsoft:argument-out-of-range).
    """
    partition = stream.partitions.get(name)
    if partition is None:
        raise LinkRefused(
            ARGUMENT_OUT_OF_RANGE,
            f"The specified partition is invalid for an EventHub partition sender or receiver: '{name:.80}'. It should "
            f"be one of {', '.join(list(stream.partitions)[:20])}.",
        )
    return partition
