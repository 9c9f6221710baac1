"""Finds the offsets that a stream retains, and the first from a time on: by the broker's best request, exact on each.

::

    RabbitMQ    first offset              last offset                        first event at a time
    4.3         StreamStats               StreamStats, committed_offset      ResolveOffsetSpec
    3.11        StreamStats               the last user chunk's end          the last chunk's time, then a probe
    before      a probe at `first`        the last user chunk's end          likewise

A probe is a subscription with one credit. A silence never means that there is nothing: the broker answers a request
after the subscription's once it has sent the chunk that it found (``Subscription.first``).

Spec: docs/specifications.md, S-61 to S-65, S-121, S-122.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from spark_streams.client.log_client import Bounds
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.client.rabbitmq.subscription import Subscription
from spark_streams.errors import PeerError, RemoteProtocolError
from spark_streams.offsets import MAX_OFFSET, format_offset
from spark_streams.wire.rabbitmq.chunk import ChunkHeader
from spark_streams.wire.rabbitmq.consumer_commands import (
    OffsetSpecification,
    OffsetType,
    ResolveOffsetSpec,
    ResolveOffsetSpecAnswer,
)
from spark_streams.wire.rabbitmq.response_codes import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import StreamStats, StreamStatsAnswer

_FIRST: Final = OffsetSpecification(OffsetType.FIRST)
_LAST: Final = OffsetSpecification(OffsetType.LAST)
_EVERY_KIND: Final = {"chunk_selector": "all"}
"""The property of a subscription that selects tracking chunks too; brokers know it, documents do not."""
_TRIES: Final = 20
_PAUSE_S: Final = 0.05
"""The last chunk may not be committed yet: the client tries this often, with this pause, to find it."""


@dataclass(frozen=True)
class Extent:
    """The offsets that a stream uses up, tracking chunks included.

    Args:
        first: the first retained offset; 0 for a stream that never had any.
        last: the last committed offset (inclusive), None when there is none.
    """

    first: int
    last: int | None


def extent(connection: Connection, stream: str) -> Extent:
    """Return the offsets that a stream uses up now.

    Raises:
        Refused: stream-not-available: the node does not know it yet (``errors.is_unavailable``).
        PeerError: the broker refused, with the code's name: there is no such stream, no permission …
        RemoteProtocolError: an offset is above 2^63-1.
    """
    if StreamStats.KEY in connection.versions:
        return _by_stats(connection, stream, _stats(connection, stream))
    for _ in range(_TRIES):
        oldest, newest = probe(connection, stream, _FIRST), probe(connection, stream, _LAST)
        if oldest is None:
            return Extent(0, None)
        if newest is not None:
            return _checked(stream, oldest.first_offset, newest.next_offset - 1)
        time.sleep(_PAUSE_S)
    raise RemoteProtocolError(f"stream '{stream}': it has a first chunk and never a last one")


def settled(connection: Connection, stream: str, last_chunks: dict[tuple[str, str], int]) -> Extent:
    """Return the offsets of a stream by its leader, with at least those that the leader had at the first request.

    A leader that was just elected learns from the other members, even lagging ones, what is committed: for a moment it
    reports less than the leader before it.

    Args:
        connection: the connection to the leader.
        stream: the stream's name.
        last_chunks: stream and address to the last chunk that this leader had; the caller keeps it for the next call.

    Raises:
        Refused: stream-not-available: not all of these offsets are committed yet.
        PeerError, RemoteProtocolError: as for ``extent``.
    """
    if StreamStats.KEY not in connection.versions:
        return extent(connection, stream)
    values = _stats(connection, stream)
    awaited = last_chunks.setdefault((stream, connection.endpoint.address), values.get("last_chunk_id", -1))
    if values.get("committed_chunk_id", -1) < awaited:
        raise _not_ready(stream, "its leader has messages that are not committed: too few members are there")
    return _by_stats(connection, stream, values)


def _stats(connection: Connection, stream: str) -> Mapping[str, int]:
    return connection.request(StreamStats(stream), StreamStatsAnswer, f"stream '{stream}': stats").values


def _not_ready(stream: str, why: str) -> PeerError:
    """Return the error for a node that does not know yet; other members may know, and the node itself soon."""
    return refusal(ResponseCode.STREAM_NOT_AVAILABLE, f"stream '{stream}': stats", why)


def _by_stats(connection: Connection, stream: str, values: Mapping[str, int]) -> Extent:
    first, committed = values.get("first_chunk_id", -1), values.get("committed_chunk_id", -1)
    if values.get("committed_offset", committed) < 0 <= max(first, values.get("last_chunk_id", -1)):
        # The member was just started, or elected: the stream seems empty, and is not.
        raise _not_ready(stream, "the node has messages, and does not know yet which of them are committed")
    if "committed_offset" in values:
        return _checked(stream, first, values["committed_offset"])
    if committed < 0:
        return _checked(stream, first, -1)
    last = probe(connection, stream, _LAST)
    # Without a user chunk the stream holds tracking chunks only; the id of the last one is its end.
    return _checked(stream, first, committed if last is None else max(committed, last.next_offset - 1))


def _checked(stream: str, first: int, last: int) -> Extent:
    if max(first, last) > MAX_OFFSET:
        raise RemoteProtocolError(f"stream '{stream}': offset {max(first, last)}: expected up to {MAX_OFFSET}")
    return Extent(max(first, 0), last if last >= 0 else None)


def to_bounds(found: Extent) -> Bounds:
    """Return an extent as bounds: a first offset above 0 means that retention has removed the offsets before it."""
    truncated = format_offset(found.first - 1) if found.first > 0 else None
    if found.last is None or found.last < found.first:
        return Bounds(None, None, truncated, tells_truncated=True)
    return Bounds(format_offset(found.first), format_offset(found.last), truncated, tells_truncated=True)


def probe(
    connection: Connection, stream: str, offset: OffsetSpecification, properties: Mapping[str, str] | None = None
) -> ChunkHeader | None:
    """Return the header of the first user chunk from a starting position on, None when there is none now."""
    with closing(Subscription(connection, stream, offset, 1, properties)) as subscription:
        delivered = subscription.first()
        return None if delivered is None else delivered.header


def chunk_at(connection: Connection, stream: str, offset: int) -> ChunkHeader | None:
    """Return the header of the chunk, of any kind, that holds an offset, or of the next one; None without either."""
    return probe(connection, stream, OffsetSpecification(OffsetType.OFFSET, offset), _EVERY_KIND)


def identity_at(connection: Connection, stream: str, offset: int) -> str | None:
    """Return the identity of the chunk, of any kind, that holds an offset; None when none holds it."""
    header = chunk_at(connection, stream, offset)
    if header is None or not header.first_offset <= offset < header.next_offset:
        return None
    return f"{header.first_offset}@{header.timestamp_ms}"


def first_at_time(connection: Connection, stream: str, timestamp_ms: int) -> int | None:
    """Return the first offset of the first chunk that is not older; None when every chunk is older.

    Brokers find it by the times of chunks in their order, and assume that these never decrease.
    """
    wanted = OffsetSpecification(OffsetType.TIMESTAMP, timestamp_ms)
    if ResolveOffsetSpec.KEY in connection.versions:
        end = extent(connection, stream).last
        if end is None:
            return None
        found = connection.request(
            ResolveOffsetSpec(stream, wanted),
            ResolveOffsetSpecAnswer,
            f"stream '{stream}': offset at {timestamp_ms} ms",
        ).offset.value
        return found if found <= end else None
    last = probe(connection, stream, _LAST)
    if last is None or last.timestamp_ms < timestamp_ms:
        return None
    header = probe(connection, stream, wanted)
    return (last if header is None else header).first_offset
