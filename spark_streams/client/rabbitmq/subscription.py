"""Subscribes to a stream: grants credit, receives chunks, and bounds how many chunks the broker sends ahead.

A credit is one chunk, of one record or of thousands. Ten hide a round trip where chunks are large; where each chunk has
only one record, a round trip would carry ten records, and a frame of credit would follow each of them. So a reader has
a ``CreditWindow``: few large chunks ahead, many small ones, hardly any beyond its range.

Brokers do not begin to send while the remaining credit is at most half of the first (S-73), so the window is never
smaller than the first credit, and the reader fills it again when a quarter of it is used up.

Spec: Streams Protocol Reference, Subscribe, Credit, Deliver, ConsumerUpdate; docs/specifications.md,
S-61 to S-65, S-71 to S-73, S-81, S-141 to S-143.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeGuard

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.client.rabbitmq.pushdown import FilterValues
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import final
from spark_streams.errors import DeadlineExceeded, Refused, SparkStreamsError
from spark_streams.wire.columnar.byte_view import Readable
from spark_streams.wire.rabbitmq.chunk import SELECTIONS, ChunkHeader
from spark_streams.wire.rabbitmq.consumer_commands import (
    DELIVER_KEY,
    ConsumerUpdate,
    ConsumerUpdateAnswer,
    Credit,
    CreditAnswer,
    OffsetSpecification,
    Subscribe,
    SubscribeAnswer,
    Unsubscribe,
    UnsubscribeAnswer,
    decode_deliver,
)
from spark_streams.wire.rabbitmq.frames import Command, Frame, ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import Metadata, MetadataAnswer, MetadataUpdate

FIRST_CREDIT: Final = 10
"""The first credit of a subscription, and the smallest window."""
LARGEST_WINDOW: Final = 1_000
BYTES_AHEAD: Final = 4 << 20
"""The chunks of a window have about this many bytes together."""
_WEIGHT: Final = 8
"""The averages cover about this many chunks."""


@dataclass(frozen=True)
class Consumer:
    """A named consumer of RabbitMQ streams.

    Args:
        name: its reference: the name of its stored offsets, and of the group with one active consumer at a time.
        single_active: whether reading waits until this consumer is the active one.
    """

    name: str
    single_active: bool


@dataclass(frozen=True)
class Delivered:
    """One received chunk.

    Args:
        header: its header.
        buffer: the bytes with the chunk, from ``start`` (inclusive) to ``end`` (exclusive).
        start: where its header begins.
        end: where the chunk ends, exclusive.
    """

    header: ChunkHeader
    buffer: Readable
    start: int
    end: int


def properties_of(filters: FilterValues | None, consumer: Consumer | None, super_stream: str | None) -> dict[str, str]:
    """Return the properties of a subscription with a filter, a single active consumer, or both."""
    properties: dict[str, str] = {}
    if filters is not None:
        properties.update({f"filter.{i}": value for i, value in enumerate(filters.values)})
        properties["match-unfiltered"] = "true" if filters.match_unfiltered else "false"
        properties[SELECTIONS] = "true"
    if consumer is not None and consumer.single_active:
        properties.update({"single-active-consumer": "true", "name": consumer.name})
        if super_stream is not None:
            properties["super-stream"] = super_stream
    return properties


class Subscription:
    """An open subscription; the only one with its id on the connection.

    Args:
        connection: the connection.
        stream: the stream's name.
        offset: where to begin.
        credit: chunks that may be under way.
        properties: the properties from ``properties_of``.

    Raises:
        PeerError: the broker refused; the error has the code's name.
        DeadlineExceeded: another consumer of the group is the active one.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        offset: OffsetSpecification,
        credit: int,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._offset = offset
        self._what = f"stream '{stream}': subscribe"
        self._gone = False
        properties = properties or {}
        self._active = "single-active-consumer" not in properties
        if not self._active and not connection.versions:
            # Such a broker would deliver to every member of the group at once.
            version = connection.properties.get("version", "an unknown version")
            raise Refused(
                "single-active-consumer",
                f"needs RabbitMQ 3.11 or later, this is {version}: leave out option 'singleActiveConsumer'",
                self._what,
            )
        number = self._number = connection.new_subscription_id()
        try:
            connection.request(Subscribe(number, stream, offset, credit, properties), SubscribeAnswer, self._what)
        except SparkStreamsError:
            connection.subscription_ids.discard(number)
            raise
        if not self._active:
            self._become_active(properties["name"])

    def _become_active(self, group: str) -> None:
        deadline = Deadline(self._connection.timeout_ms)
        others = []
        while not self._active:
            try:
                left = deadline.left_s("")
            except DeadlineExceeded:
                self.close()
                raise final(
                    DeadlineExceeded(
                        f"stream '{self._stream}': another consumer of '{group}' is the active one, for longer than "
                        f"option 'requestTimeout' ({deadline.timeout_ms} ms): stop it, use another 'consumerName', or "
                        "leave out 'singleActiveConsumer'"
                    )
                ) from None
            event = self._connection.receive(left)
            if event is not None and not self._handled(event):
                others.append(event)
        self._connection.events.extendleft(reversed(others))

    def next(self, timeout_s: float) -> Delivered | None:
        """Return the next chunk, None when none comes within ``timeout_s`` seconds.

        Raises:
            Refused: the broker has dropped the subscription: the stream was deleted, or its node is gone; or another
                consumer of the group became the active one.
            TransportError, RemoteProtocolError: the connection broke.
        """
        until = time.monotonic() + timeout_s
        while (event := self._connection.receive(max(0.0, until - time.monotonic()))) is not None:
            if self._is_mine(event):
                return self._delivered(event)
            self._handled(event)
        return None

    def _delivered(self, frame: Frame) -> Delivered:
        start = decode_deliver(frame).chunk_start
        return Delivered(ChunkHeader.decode(frame.buffer, start, frame.end), frame.buffer, start, frame.end)

    def _handled(self, event: Command | Frame) -> bool:
        """Handle an event that concerns this subscription and is no chunk; return whether it was such an event."""
        if isinstance(event, MetadataUpdate) and event.stream == self._stream:
            self._gone = True
            raise refusal(ResponseCode.STREAM_NOT_AVAILABLE, f"stream '{self._stream}': the broker dropped the reader")
        if isinstance(event, ConsumerUpdate) and event.subscription_id == self._number:
            # The broker stores no offset for the query: reading continues where this subscription was to start.
            answer = ConsumerUpdateAnswer(event.correlation_id, ResponseCode.OK, self._offset)
            self._connection.send(answer.encode())
            if self._active and not event.active:
                raise refusal(
                    ResponseCode.STREAM_NOT_AVAILABLE,
                    f"stream '{self._stream}': another consumer of the group is the active one now",
                )
            self._active = bool(event.active)
            return True
        if isinstance(event, CreditAnswer) and event.subscription_id == self._number:
            raise refusal(event.code, f"stream '{self._stream}': credit")
        return False

    def grant(self, chunks: int) -> None:
        """Let the broker send ``chunks`` more chunks."""
        self._connection.send(Credit(self._number, chunks).encode())

    def look_again(self) -> bool:
        """Make the broker look for chunks again; return whether it found one, which ``next`` then returns.

        A broker handles the frames of a connection one after the other, and at a credit it sends the available chunks
        before it handles the next frame. So when the answer to a further request has come, these chunks have come too.
        """
        self.grant(1)
        self._connection.request(Metadata((self._stream,)), MetadataAnswer, f"{self._what}: barrier")
        return any(map(self._is_mine, self._connection.events))

    def _is_mine(self, event: Command | Frame) -> TypeGuard[Frame]:
        return isinstance(event, Frame) and subscription_of(event) == self._number

    def close(self) -> None:
        """Unsubscribe, and drop the chunks still under way; never raise: abandon a connection that fails."""
        unsubscribe(self._connection, {self._number: self._stream}, asks=not self._gone)
        self._connection.subscription_ids.discard(self._number)


def subscription_of(event: Command | Frame) -> int:
    """Return the id of the subscription that an event is about, -1 for an event about none.

    Raises:
        RemoteProtocolError: a Deliver frame is broken.
    """
    if isinstance(event, (ConsumerUpdate, CreditAnswer)):
        return event.subscription_id
    if isinstance(event, Frame) and event.key == DELIVER_KEY:
        return decode_deliver(event).subscription_id
    return -1


def unsubscribe(connection: Connection, streams: Mapping[int, str], *, asks: bool = True) -> None:
    """End subscriptions, and drop their chunks that are still under way; never raise: abandon a connection that fails.

    Args:
        connection: the connection.
        streams: id to stream of each subscription.
        asks: whether the broker still has them.
    """
    try:
        if asks and not connection.broken:
            asked = [(Unsubscribe(number), f"stream '{stream}': unsubscribe") for number, stream in streams.items()]
            connection.ask_all(asked, UnsubscribeAnswer)
        connection.events = deque(event for event in connection.events if subscription_of(event) not in streams)
    except SparkStreamsError:  # one of the events may be a broken Deliver frame
        connection.abandon()


class CreditWindow:
    """The credit of one subscription that began with ``FIRST_CREDIT``."""

    def __init__(self) -> None:
        self._outstanding = self._trusted = FIRST_CREDIT
        self._bytes = 0.0
        self._records = 0.0

    def consumed(self, chunk_bytes: int, records: int, wanted: int) -> int:
        """Count a received chunk, and return the credit to grant now, 0 for none yet.

        Args:
            chunk_bytes: its size in bytes.
            records: how many offsets it uses up.
            wanted: how many offsets of the range are still to come.
        """
        self._outstanding -= 1
        self._trusted += 1
        if not self._bytes:
            self._bytes, self._records = float(chunk_bytes), float(records)
        self._bytes += (chunk_bytes - self._bytes) / _WEIGHT
        self._records += (records - self._records) / _WEIGHT
        ahead = min(BYTES_AHEAD / (self._bytes + 1), wanted / (self._records + 1), LARGEST_WINDOW)
        # A stream may begin with small chunks, and all others may be large: with a credit by the size of the first, the
        # broker would send hundreds of MB, all of which have to be received before the next request is answered.
        window = max(FIRST_CREDIT, min(int(ahead), self._trusted))
        owed = window - self._outstanding
        if owed < window // 4:
            return 0
        self._outstanding = window
        return owed
