"""Finds the offsets that a stream retains, and the first from a time on, exactly, with each broker's best request.

::

    RabbitMQ    first offset              last offset                        first event at a time
    4.3         StreamStats               StreamStats, committed_offset      ResolveOffsetSpec
    3.11        StreamStats               the last user chunk's end          the last chunk's time, then a probe
    before      a probe at `first`        the last user chunk's end          likewise

A probe is a subscription with one credit, see ``probes.py``. Requests about many streams are under way together.

Spec: docs/specifications.md, S-61 to S-65, S-121, S-122.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import present, refusal
from spark_streams.client.rabbitmq.probes import probe, probe_all
from spark_streams.errors import PeerError, RemoteProtocolError
from spark_streams.offsets import MAX_OFFSET
from spark_streams.wire.rabbitmq.chunk import ChunkHeader
from spark_streams.wire.rabbitmq.consumer_commands import (
    OffsetSpecification,
    OffsetType,
    ResolveOffsetSpec,
    ResolveOffsetSpecAnswer,
)
from spark_streams.wire.rabbitmq.frames import ResponseCode
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


def extents(connection: Connection, streams: Sequence[str]) -> dict[str, Extent | PeerError]:
    """Return the offsets that streams use up now, asked for together.

    Returns:
        The extent of each stream, or the error for it: the broker refused, with the code's name (there is no such
        stream, no permission …), or the node does not know it yet (``errors.is_unavailable``).

    Raises:
        TransportError, RemoteProtocolError: the connection broke, or an offset is above 2^63-1.
    """
    if StreamStats.KEY in connection.versions:
        return _by_stats(connection, _stats(connection, streams))
    return _by_probes(connection, streams)


def extent(connection: Connection, stream: str) -> Extent:
    """Return the offsets that a stream uses up now.

    Raises:
        PeerError: the error that ``extents`` returns.
        TransportError, RemoteProtocolError: as for ``extents``.
    """
    return present(extents(connection, [stream])[stream])


def settled(
    connection: Connection, streams: Sequence[str], last_chunks: dict[tuple[str, str], int]
) -> dict[str, Extent | PeerError]:
    """Return the offsets of streams as their leader reports them, with at least those of its first report.

    A leader that was just elected learns from the other members, even lagging ones, what is committed: for a moment it
    reports less than the leader before it.

    Args:
        connection: the connection to the leader of all of them.
        streams: the streams' names.
        last_chunks: stream and address to the last chunk that this leader had; the caller keeps it for the next call.

    Returns:
        The extent of each stream, or the error for it, as for ``extents``; stream-not-available also when not all of
        these offsets are committed yet.

    Raises:
        TransportError, RemoteProtocolError: as for ``extents``.
    """
    if StreamStats.KEY not in connection.versions:
        return extents(connection, streams)
    found = _stats(connection, streams)
    for stream, values in found.items():
        if isinstance(values, PeerError):
            continue
        awaited = last_chunks.setdefault((stream, connection.endpoint.address), values.get("last_chunk_id", -1))
        if values.get("committed_chunk_id", -1) < awaited:
            why = "its leader has messages that are not committed: too few members are there"
            found[stream] = _not_ready(stream, why)
    return _by_stats(connection, found)


def _by_probes(connection: Connection, streams: Sequence[str]) -> dict[str, Extent | PeerError]:
    out: dict[str, Extent | PeerError] = {}
    left = streams
    for tries in range(_TRIES):
        if tries:
            time.sleep(_PAUSE_S)
        found = probe_all(connection, dict.fromkeys(left, _FIRST))
        firsts = {stream: each.first_offset for stream, each in found.items() if isinstance(each, ChunkHeader)}
        found.update(probe_all(connection, dict.fromkeys(firsts, _LAST)))
        for stream, each in found.items():
            if isinstance(each, PeerError):
                out[stream] = each
            elif each is not None:
                out[stream] = _checked(stream, firsts[stream], each.next_offset - 1)
            elif stream not in firsts:
                out[stream] = Extent(0, None)
        left = [stream for stream in left if stream not in out]
        if not left:
            return out
    raise RemoteProtocolError(f"stream '{left[0]}': it has a first chunk and never a last one")


def _stats(connection: Connection, streams: Sequence[str]) -> dict[str, Mapping[str, int] | PeerError]:
    asked = [(StreamStats(stream), f"stream '{stream}': stats") for stream in streams]
    found: dict[str, Mapping[str, int] | PeerError] = {
        stream: answer if isinstance(answer, PeerError) else answer.values
        for stream, answer in zip(streams, connection.answers(asked, StreamStatsAnswer), strict=True)
    }
    # For an empty stream that begins above 0 RabbitMQ 4.4 reports the offset before it for first and last chunk; a
    # stream of one message, or of one chunk that is not committed, looks the same. The place of the first chunk
    # decides.
    single = {
        stream: values["first_chunk_id"]
        for stream, values in found.items()
        if isinstance(values, Mapping)
        and 0 <= values.get("first_chunk_id", -1) == values.get("last_chunk_id", -1)
        and values.get("committed_offset") in (-1, values["first_chunk_id"] or -1)  # mostly one message, at 0
    }
    if single and ResolveOffsetSpec.KEY in connection.versions:
        asks = [(ResolveOffsetSpec(stream, _FIRST), f"stream '{stream}': its first offset") for stream in single]
        for (stream, before), answer in zip(
            single.items(), connection.ask_all(asks, ResolveOffsetSpecAnswer), strict=True
        ):
            if answer.ok and answer.offset.value != before:
                ends = dict.fromkeys(("last_chunk_id", "committed_chunk_id", "committed_offset"), before)
                found[stream] = {"first_chunk_id": before + 1, **ends}
    return found


def _not_ready(stream: str, why: str) -> PeerError:
    """Return the error for a node that does not know yet; other members may know, and the node itself soon."""
    return refusal(ResponseCode.STREAM_NOT_AVAILABLE, f"stream '{stream}': stats", why)


def _by_stats(
    connection: Connection, found: Mapping[str, Mapping[str, int] | PeerError]
) -> dict[str, Extent | PeerError]:
    """Return the extents by answers to StreamStats; look at the last chunk where an answer does not tell the end."""
    out: dict[str, Extent | PeerError] = {}
    unknown: dict[str, tuple[int, int]] = {}
    for stream, values in found.items():
        if isinstance(values, PeerError):
            out[stream] = values
            continue
        first, committed = values.get("first_chunk_id", -1), values.get("committed_chunk_id", -1)
        end = values.get("committed_offset", committed)
        if end < 0 <= max(first, values.get("last_chunk_id", -1)):
            # The member was just started, or elected: the stream seems empty, and is not.
            out[stream] = _not_ready(stream, "the node has messages, and does not know yet which of them are committed")
        elif "committed_offset" in values or committed < 0:
            out[stream] = _checked(stream, first, end)
        else:
            unknown[stream] = first, committed
    for stream, last in probe_all(connection, dict.fromkeys(unknown, _LAST)).items():
        first, committed = unknown[stream]
        if isinstance(last, PeerError):
            out[stream] = last
            continue
        # Without a user chunk the stream holds tracking chunks only; the id of the last one is its end.
        out[stream] = _checked(stream, first, committed if last is None else max(committed, last.next_offset - 1))
    return out


def _checked(stream: str, first: int, last: int) -> Extent:
    if max(first, last) > MAX_OFFSET:
        raise RemoteProtocolError(f"stream '{stream}': offset {max(first, last)}: expected up to {MAX_OFFSET}")
    return Extent(max(first, 0), last if last >= 0 else None)


def chunk_at(connection: Connection, stream: str, offset: int) -> ChunkHeader | None:
    """Return the header of the chunk, of any kind, that holds an offset, or of the next one; None without either."""
    return probe(connection, stream, OffsetSpecification(OffsetType.OFFSET, offset), _EVERY_KIND)


def identities(
    connection: Connection, streams: Sequence[str], offsets: Mapping[str, int]
) -> dict[str, str | PeerError | None]:
    """Return the identity of the chunk, of any kind, that holds an offset of each stream; None when none holds it.

    Args:
        connection: the connection to a node that has the streams.
        streams: the streams' names.
        offsets: stream to offset.

    Returns:
        The identity of each stream, or the broker's refusal.

    Raises:
        TransportError, RemoteProtocolError: the connection broke, or an answer did not come in time.
    """
    wanted = {stream: OffsetSpecification(OffsetType.OFFSET, offsets[stream]) for stream in streams}
    found: dict[str, str | PeerError | None] = {}
    for stream, header in probe_all(connection, wanted, _EVERY_KIND).items():
        if header is None or isinstance(header, PeerError):
            found[stream] = header
        else:
            holds = header.first_offset <= offsets[stream] < header.next_offset
            found[stream] = f"{header.first_offset}@{header.timestamp_ms}" if holds else None
    return found


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
