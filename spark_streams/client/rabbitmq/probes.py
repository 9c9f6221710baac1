"""Finds the chunks at positions of many streams: a probe is a subscription with one credit.

A silence never means that there is nothing: the broker handles the frames of a connection one after the other, and
answers a request after a subscription's once it has sent the chunk that it found. One such request, a barrier, is
enough for the probes of many streams.

Spec: docs/specifications.md, S-61 to S-65.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refused
from spark_streams.errors import PeerError, SparkStreamsError
from spark_streams.wire.rabbitmq.chunk import ChunkHeader
from spark_streams.wire.rabbitmq.consumer_commands import (
    DELIVER_KEY,
    ConsumerUpdate,
    CreditAnswer,
    OffsetSpecification,
    Subscribe,
    SubscribeAnswer,
    Unsubscribe,
    UnsubscribeAnswer,
    decode_deliver,
)
from spark_streams.wire.rabbitmq.frames import Command, Frame
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
    found = probe_all(connection, {stream: offset}, properties)[stream]
    if isinstance(found, PeerError):
        raise found
    return found


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
            stream: None if answer.ok else refused(answer.code, Subscribe, what, connection.endpoint)
            for stream, answer, (_, what) in zip(wanted, connection.ask_all(asked, SubscribeAnswer), asked, strict=True)
        }
        probing = {numbers[stream]: stream for stream, fault in found.items() if fault is None}
        if probing:
            stream = next(iter(probing.values()))
            connection.request(Metadata((stream,)), MetadataAnswer, f"stream '{stream}': subscribe: barrier")
            _take_headers(connection, probing, found)
            _unsubscribe(connection, probing)
        return found
    except SparkStreamsError:
        connection.abandon()  # subscriptions may be open, and their chunks under way
        raise
    finally:
        connection.subscription_ids.difference_update(numbers.values())


def _take_headers(connection: Connection, probing: Mapping[int, str], found: dict[str, Probed]) -> None:
    for event in connection.events:
        stream = probing.get(_subscription_of(event))
        if stream is not None and isinstance(event, Frame) and found[stream] is None:
            start = decode_deliver(event).chunk_start
            found[stream] = ChunkHeader.decode(event.buffer, start, event.end)


def _unsubscribe(connection: Connection, probing: Mapping[int, str]) -> None:
    """Unsubscribe, and drop the chunks still under way; abandon a connection that fails: the chunks are found."""
    asked = [(Unsubscribe(number), f"stream '{stream}': unsubscribe") for number, stream in probing.items()]
    try:
        connection.ask_all(asked, UnsubscribeAnswer)
        connection.events = deque(event for event in connection.events if _subscription_of(event) not in probing)
    except SparkStreamsError:
        connection.abandon()


def _subscription_of(event: Command | Frame) -> int:
    """Return the id of the subscription that an event is about, -1 for an event about none.

    Raises:
        RemoteProtocolError: a Deliver frame is broken.
    """
    if isinstance(event, (ConsumerUpdate, CreditAnswer)):
        return event.subscription_id
    if isinstance(event, Frame) and event.key == DELIVER_KEY:
        return decode_deliver(event).subscription_id
    return -1
