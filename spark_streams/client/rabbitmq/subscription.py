"""One subscription: credit out, chunks in; and how many chunks a reader lets the broker send ahead.

A credit is one chunk, of one record or of thousands. Ten hide a round trip where chunks are large; where each has but a
record, ten would make every round trip carry ten records, and a frame of credit follow each of them. So a reader has a
``CreditWindow``: few large chunks ahead, many small ones, hardly any behind its range.

Brokers do not begin to send while the credit left is at most half of the first (S-73), so the window is never smaller
than the first credit, and is filled again when a quarter of it is used up.

Spec: Streams Protocol Reference, Subscribe, Credit, Deliver, ConsumerUpdate; docs/specifications.md,
S-61 to S-65, S-71 to S-73, S-81, S-141 to S-143.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.client.rabbitmq.pushdown import FilterValues
from spark_streams.client.retry import Deadline
from spark_streams.errors import DeadlineExceeded, Refused, RemoteProtocolError, SparkStreamsError
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
from spark_streams.wire.rabbitmq.frames import Command, Frame
from spark_streams.wire.rabbitmq.response_codes import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import Metadata, MetadataAnswer, MetadataUpdate

FIRST_CREDIT: Final = 10
"""What a subscription begins with, and the smallest window."""
LARGEST_WINDOW: Final = 1_000
BYTES_AHEAD: Final = 4 << 20
"""A window has chunks of about so many bytes."""
_WEIGHT: Final = 8
"""The averages are of about so many chunks."""


@dataclass(frozen=True)
class Consumer:
    """A named consumer of RabbitMQ streams.

    Args:
        name: its reference: of stored offsets, and of the group that one consumer at a time is active in.
        single_active: whether reading waits until this consumer is the active one.
    """

    name: str
    single_active: bool


@dataclass(frozen=True)
class Delivered:
    """One chunk as it came.

    Args:
        header: of the chunk.
        buffer: holds the chunk, from ``start`` (inclusive) on.
        start: where its header begins.
        end: exclusive.
    """

    header: ChunkHeader
    buffer: bytes
    start: int
    end: int


def properties_of(filters: FilterValues | None, consumer: Consumer | None, super_stream: str | None) -> dict[str, str]:
    """Return the properties that say what a subscription wants."""
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
        connection: which.
        stream: the stream's name.
        offset: where to begin.
        credit: chunks that may be on the way.
        properties: of ``properties_of``.

    Raises:
        PeerError: the broker refused; the code's name is in it.
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
            # It would deliver to every member of the group at once.
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
                fault = DeadlineExceeded(
                    f"stream '{self._stream}': another consumer of '{group}' is the active one, for longer than option "
                    f"'requestTimeout' ({deadline.timeout_ms} ms): stop it, use another 'consumerName', or leave out "
                    "'singleActiveConsumer'"
                )
                fault.retriable = False
                raise fault from None
            event = self._connection.receive(left)
            if event is not None and not self._handled(event):
                others.append(event)
        self._connection.put_back(others)

    def next(self, timeout_s: float) -> Delivered | None:
        """Return the next chunk, None when none comes within ``timeout_s`` seconds.

        Raises:
            Refused: the broker has dropped the subscription: the stream was deleted, or its node is gone.
            TransportError, RemoteProtocolError: the connection broke.
        """
        deadline = Deadline(max(1, int(timeout_s * 1000)))
        while True:
            event = self._connection.receive(timeout_s)
            if event is None:
                return None
            if isinstance(event, Frame) and event.key == DELIVER_KEY:
                if self._is_mine(event):
                    return self._delivered(event)
            else:
                self._handled(event)
            try:
                timeout_s = deadline.left_s("")
            except DeadlineExceeded:
                timeout_s = 0.0

    def _delivered(self, frame: Frame) -> Delivered:
        start = decode_deliver(frame).chunk_start
        return Delivered(ChunkHeader.decode(frame.buffer, start, frame.end), frame.buffer, start, frame.end)

    def _handled(self, event: Command | Frame) -> bool:
        """Deal with what is about this subscription and no chunk; return whether it was."""
        if isinstance(event, MetadataUpdate) and event.stream == self._stream:
            self._gone = True
            raise refusal(ResponseCode.STREAM_NOT_AVAILABLE, f"stream '{self._stream}': the broker dropped the reader")
        if isinstance(event, ConsumerUpdate) and event.subscription_id == self._number:
            # Nothing is stored on the broker: reading goes on where this subscription was to start.
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
        """Let the broker send so many chunks more."""
        self._connection.send(Credit(self._number, chunks).encode())

    def look_again(self) -> bool:
        """Have the broker look for more once more; return whether it found a chunk, which ``next`` then returns.

        A broker deals with one frame of a connection after the other, and with a credit it sends what there is before
        it looks at the next frame. So when the answer to a further request is here, whatever it found is here too.
        """
        self.grant(1)
        events = self.barrier()
        self._connection.put_back(events)
        return any(self._is_mine(event) for event in events)

    def first(self) -> Delivered | None:
        """Return the first chunk that the broker found for the initial credit, None when it found none."""
        events = self.barrier()
        mine = [event for event in events if self._is_mine(event)]
        self._connection.put_back([event for event in events if not self._is_mine(event)])
        return self._delivered(mine[0]) if mine else None  # type: ignore[arg-type]

    def _is_mine(self, event: Command | Frame) -> bool:
        if not isinstance(event, Frame) or event.key != DELIVER_KEY:
            return False
        return decode_deliver(event).subscription_id == self._number

    def barrier(self) -> list[Command | Frame]:
        """Ask for something small; return what came before its answer, which the caller takes or puts back."""
        self._connection.request(Metadata((self._stream,)), MetadataAnswer, f"{self._what}: barrier")
        return self._connection.pending()

    def close(self) -> None:
        """Unsubscribe and drop what was still on the way; never raises: a connection that fails is given up."""
        connection = self._connection
        if not self._gone and not connection.broken:
            try:
                connection.ask(Unsubscribe(self._number), UnsubscribeAnswer, f"stream '{self._stream}': unsubscribe")
            except SparkStreamsError:
                connection.abandon()
        try:
            connection.put_back([event for event in connection.pending() if not self._is_about_this(event)])
        except RemoteProtocolError:
            connection.abandon()  # a broken Deliver frame among them
        connection.subscription_ids.discard(self._number)

    def _is_about_this(self, event: Command | Frame) -> bool:
        if isinstance(event, (ConsumerUpdate, CreditAnswer)):
            return event.subscription_id == self._number
        return self._is_mine(event)


class CreditWindow:
    """The credit of one subscription that began with ``FIRST_CREDIT``."""

    def __init__(self) -> None:
        self._outstanding = FIRST_CREDIT
        self._bytes = 0.0
        self._records = 0.0

    def consumed(self, chunk_bytes: int, records: int, wanted: int) -> int:
        """Count a chunk that came, and return the credit to grant now, 0 for none yet.

        Args:
            chunk_bytes: its size.
            records: how many offsets it uses up.
            wanted: how many offsets of the range are still to come.
        """
        self._outstanding -= 1
        if not self._bytes:
            self._bytes, self._records = float(chunk_bytes), float(records)
        self._bytes += (chunk_bytes - self._bytes) / _WEIGHT
        self._records += (records - self._records) / _WEIGHT
        ahead = min(BYTES_AHEAD / (self._bytes + 1), wanted / (self._records + 1), LARGEST_WINDOW)
        window = max(FIRST_CREDIT, int(ahead))
        owed = window - self._outstanding
        if owed < window // 4:
            return 0
        self._outstanding = window
        return owed
