"""Finds the chunks at positions of many streams: a probe is a subscription with one credit.

A silence never means that there is nothing: the broker handles the frames of a connection one after the other, and
answers a request after a subscription's once it has sent the chunk that it found. One such request, a barrier, is
enough for the probes of many streams.

Spec: docs/specifications.md, S-61 to S-65.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import present
from spark_streams.client.rabbitmq.subscription import subscription_of, unsubscribe
from spark_streams.errors import PeerError, SparkStreamsError
from spark_streams.wire.rabbitmq.chunk import ChunkHeader
from spark_streams.wire.rabbitmq.consumer_commands import (
    OffsetSpecification,
    Subscribe,
    SubscribeAnswer,
    decode_deliver,
)
from spark_streams.wire.rabbitmq.frames import Frame
from spark_streams.wire.rabbitmq.stream_commands import Metadata, MetadataAnswer

PROBES_AT_ONCE: Final = 16
"""The most probes that are under way: the broker sends a whole chunk, of some MB at most, for each."""

Probed = ChunkHeader | PeerError | None
"""The header that a probe found, None when there is no chunk now; or the broker's refusal."""


def probe_all(
    connection: Connection, wanted: Mapping[str, OffsetSpecification], properties: Mapping[str, str] | None = None
) -> dict[str, Probed]:
    """Return the header of the first user chunk of each stream from a starting position on, in the order of ``wanted``.

    Args:
        connection: the connection to a node that has the streams.
        wanted: stream to starting position.
        properties: properties of the subscriptions.

    Raises:
        TransportError, RemoteProtocolError: the connection broke, or an answer did not come in time.
    """
    found: dict[str, Probed] = {}
    left = iter(wanted.items())
    while some := dict(islice(left, PROBES_AT_ONCE)):
        found.update(_probe_some(connection, some, properties or {}))
    return found


def probe(
    connection: Connection, stream: str, offset: OffsetSpecification, properties: Mapping[str, str] | None = None
) -> ChunkHeader | None:
    """Return the header of the first user chunk from a starting position on, None when there is none now.

    Raises:
        PeerError: the broker refused.
        TransportError, RemoteProtocolError: as for ``probe_all``.
    """
    return present(probe_all(connection, {stream: offset}, properties)[stream])


def _probe_some(
    connection: Connection, wanted: Mapping[str, OffsetSpecification], properties: Mapping[str, str]
) -> dict[str, Probed]:
    numbers = {stream: connection.new_subscription_id() for stream in wanted}
    try:
        asked = [
            (Subscribe(numbers[stream], stream, offset, 1, properties), f"stream '{stream}': subscribe")
            for stream, offset in wanted.items()
        ]
        found: dict[str, Probed] = {
            stream: answer if isinstance(answer, PeerError) else None
            for stream, answer in zip(wanted, connection.answers(asked, SubscribeAnswer), strict=True)
        }
        probing = {numbers[stream]: stream for stream, fault in found.items() if fault is None}
        if probing:
            stream = next(iter(probing.values()))
            connection.request(Metadata((stream,)), MetadataAnswer, f"stream '{stream}': subscribe: barrier")
            _take_headers(connection, probing, found)
            unsubscribe(connection, probing)
        return found
    except SparkStreamsError:
        connection.abandon()  # subscriptions may be open, and their chunks under way
        raise
    finally:
        connection.subscription_ids.difference_update(numbers.values())


def _take_headers(connection: Connection, probing: Mapping[int, str], found: dict[str, Probed]) -> None:
    for event in connection.events:
        stream = probing.get(subscription_of(event))
        if stream is not None and isinstance(event, Frame) and found[stream] is None:
            start = decode_deliver(event).chunk_start
            found[stream] = ChunkHeader.decode(event.buffer, start, event.end)
