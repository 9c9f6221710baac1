"""Runs the publishers of one connection, with a bounded number of messages under way, and reports their errors.

The pool handles all frames that the broker sends meanwhile. When the connection breaks, or the broker drops a
publisher, it waits as readers do, connects and declares anew, and publishes again what is not confirmed, in the same
order and under the same ids: with a reference the broker drops what it already has. An error names the first row of any
stream that is not confirmed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

from spark_streams.client.digested_rows import Label
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.client.rabbitmq.stream_publisher import Entries, StreamPublisher
from spark_streams.client.retry import LONG_BACKOFF, Attempts, Deadline
from spark_streams.errors import DeadlineExceeded, DeliveryFailed, PeerError, Refused, SparkStreamsError, TransportError
from spark_streams.wire.rabbitmq.frames import Command, Frame, ResponseCode, code_name
from spark_streams.wire.rabbitmq.publish_decode import (
    CONFIRM_KEY,
    PUBLISH_ERROR_KEY,
    DeclarePublisher,
    DeclarePublisherAnswer,
    DeletePublisher,
    DeletePublisherAnswer,
    decode_confirm,
    decode_publish_error,
)
from spark_streams.wire.rabbitmq.publish_encode import RabbitPublishing
from spark_streams.wire.rabbitmq.stream_commands import MetadataUpdate

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_PUBLISHERS: Final = 256
"""A publisher's id has one byte."""
MAX_KEPT_BYTES: Final = 16 << 20
"""No more is sent while so many bytes are not confirmed, which may have to be sent again."""
FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 1.0
"""Seconds to wait before the pool declares a publisher again: the first pause, and the longest one."""
ALARM: Final = (
    "the broker takes no publishers while it has an alarm, mostly since its disk is nearly full (its setting "
    "disk_free_limit): make room there; 'rabbitmq-diagnostics alarms' names the alarm"
)
_ALARMED: Final = code_name(ResponseCode.PRECONDITION_FAILED)
_DROPPED: Final = code_name(ResponseCode.STREAM_NOT_AVAILABLE)
"""The code of each MetadataUpdate, whatever the reason."""


def delete_publishers(connection: Connection) -> None:
    """Delete the publishers of a connection, all of whose messages are confirmed, in one round trip.

    Raises:
        TransportError, PeerError: the connection broke.
    """
    # A publisher that the broker has dropped meanwhile is gone too, whatever it answers.
    asked = [(DeletePublisher(number), f"delete publisher {number}") for number in connection.publisher_ids]
    connection.ask_all(asked, DeletePublisherAnswer)
    connection.publisher_ids.clear()


class PublisherPool:
    """Publishes to any number of streams, for one thread at a time.

    Args:
        connection: the pool's own connection: no other code may publish or subscribe on it.
        reference: the reference of all publishers; empty for none.
        how: how to publish.
        connect: returns another connection when this one is broken.
    """

    def __init__(
        self,
        connection: Connection,
        reference: str,
        how: RabbitPublishing,
        connect: Callable[[], Connection],
    ) -> None:
        self.connection = connection
        self._connect = connect
        self._attempts = Attempts(LONG_BACKOFF)
        self._reference = reference
        self._how = how
        self._publishers: dict[str, StreamPublisher] = {}
        self._by_number: dict[int, StreamPublisher] = {}
        """The publishers that are declared; the others are declared again before anything more is sent."""
        self._last_number = -1
        self._dropped: set[str] = set()

    def publish(self, stream: str, entries: Entries, label: Label) -> None:
        """Send entries; wait while too many messages are not confirmed.

        Args:
            stream: the stream to publish to.
            entries: the entries.
            label: names rows in errors.

        Raises:
            DeliveryFailed: the broker refused a row of this or an earlier call, or no connection came back before the
                broker had confirmed all rows.
            NotFound, Refused: the broker does not permit us to publish there.
            TransportError, PeerError: no connection came back, and all earlier rows were confirmed.
        """
        # Send a part of both limits at a time, so that the broker has work while it confirms the others.
        fit = MAX_KEPT_BYTES // 4 * len(entries.values) // max(1, entries.values.nbytes)
        for piece in entries.pieces(max(1, min(self._how.max_in_flight // 2, fit))):
            self.wait(max(0, self._how.max_in_flight - len(piece.values)))
            publisher = self.ask(partial(self._publisher, stream, piece, label))
            try:
                publisher.send(piece, label)
            except (TransportError, PeerError) as fault:
                self._restore(fault)  # sends this piece again, too

    def wait(self, limit: int) -> None:
        """Wait until all publishers are declared, and at most ``limit`` messages of ``MAX_KEPT_BYTES`` unconfirmed.

        Raises:
            DeliveryFailed, TransportError, PeerError: as for ``publish``.
        """
        self._take_all()
        deadline = Deadline(self._how.request_timeout_ms)
        while (before := self.unconfirmed) > limit or self._kept_bytes > MAX_KEPT_BYTES or self._undeclared:
            if self.turn(deadline) or self.unconfirmed < before:
                deadline.restart()

    def flush(self) -> None:
        """Return once all messages are confirmed.

        Raises:
            DeliveryFailed, TransportError, PeerError: as for ``publish``.
        """
        self.wait(0)

    def turn(self, deadline: Deadline | None = None) -> bool:
        """Serve the connection: heartbeats, confirms; replace it if it broke, while messages are not confirmed.

        Args:
            deadline: until when to wait for bytes of the broker; None for not at all.

        Returns:
            Whether messages were sent again.

        Raises:
            DeliveryFailed, TransportError, PeerError: as for ``publish``.
        """
        fault: SparkStreamsError | None = None
        try:
            wait_s = 0.0 if deadline is None or self._undeclared else deadline.left_s("no confirm")
        except DeadlineExceeded as late:
            raise self._named(late) from late  # another connection would not make the broker confirm
        try:
            if self.unconfirmed or not self.connection.broken:
                self.connection.turn(wait_s)
        except (TransportError, PeerError) as lost:
            fault = lost
        self._take_all()
        undeclared = self._undeclared
        if undeclared and fault is None:
            why = "the broker dropped the publisher: the stream was deleted, or its node is gone"
            fault = refusal(ResponseCode.STREAM_NOT_AVAILABLE, f"stream '{undeclared[0].stream}'", why)
        if fault is None or (fault.retriable and not self.unconfirmed):
            return False  # the next call that needs a connection opens another one
        self._restore(fault)
        return True

    @property
    def unconfirmed(self) -> int:
        """Messages that have been sent and not confirmed."""
        return sum(publisher.unconfirmed for publisher in self._publishers.values())

    @property
    def _kept_bytes(self) -> int:
        return sum(publisher.kept_bytes for publisher in self._publishers.values())

    @property
    def _undeclared(self) -> list[StreamPublisher]:
        """Publishers with unconfirmed messages that the broker has dropped."""
        if len(self._by_number) == len(self._publishers):
            return []
        return [p for p in self._publishers.values() if self._by_number.get(p.number) is not p]

    # --- another connection

    def ask(self, question: Callable[[Connection], _T]) -> _T:
        """Ask something on the connection: on another one whenever it breaks, and again while a stream has no leader.

        Raises:
            DeliveryFailed, TransportError, PeerError: as for ``publish``.
        """
        while True:
            try:
                if self.connection.broken:
                    self._return()
                return question(self.connection)
            except (TransportError, PeerError) as fault:
                if not (self.connection.broken or fault.retriable):
                    raise
                self._restore(fault)

    def _restore(self, fault: SparkStreamsError) -> None:
        """Go on after a fault: wait, connect anew, and send again what is not confirmed.

        Raises:
            DeliveryFailed: nothing helped, and rows are not confirmed; or the broker refused a row before the fault.
            TransportError, PeerError: nothing helped.
        """
        while True:
            if isinstance(fault, TransportError):
                self.connection.abandon()
            self._take_all()
            try:
                self._attempts.after(fault)
                self._return()
                return
            except (TransportError, PeerError) as again:
                if again is fault:
                    raise self._named(fault) from fault
                fault = again

    def _return(self) -> None:
        """Make sure of a connection, declare each publisher with unconfirmed messages on it, and send these again."""
        if self.connection.broken:
            self.connection = self._connect()
            self._by_number.clear()
            self._publishers = {name: each for name, each in self._publishers.items() if each.unconfirmed}
        for publisher in self._undeclared:
            number = self._declared(publisher.stream)
            self._add(number, publisher)
            publisher.send_again(self.connection, number)

    # --- publishers

    def declare(self, streams: Iterable[str]) -> None:
        """Declare publishers of several streams in one round trip, as many as there is room for.

        A stream that the broker refuses has none after this; ``publish`` asks again, and waits, or raises the reason.

        Raises:
            TransportError, PeerError: the connection broke.
        """
        new = (stream for stream in streams if stream not in self._publishers)
        wanted = list(zip(self._free_numbers(), new, strict=False))
        if len(wanted) < 2:
            return
        asked = [self._declaration(number, stream) for number, stream in wanted]
        answers = self.ask(lambda connection: connection.ask_all(asked, DeclarePublisherAnswer))
        for (number, stream), answer in zip(wanted, answers, strict=True):
            if answer.ok:
                self._add(number, self._new(number, stream))

    def _free_numbers(self) -> Iterator[int]:
        """Yield free ids, the most recently used last, so that late frames for a dropped publisher reach no other."""
        numbers = ((self._last_number + 1 + n) % MAX_PUBLISHERS for n in range(MAX_PUBLISHERS))
        return (number for number in numbers if number not in self._by_number)

    def _declaration(self, number: int, stream: str) -> tuple[DeclarePublisher, str]:
        return DeclarePublisher(number, self._reference, stream), f"stream '{stream}': declare publisher"

    def _new(self, number: int, stream: str) -> StreamPublisher:
        return StreamPublisher(self.connection, number, stream, self._how)

    def _add(self, number: int, publisher: StreamPublisher) -> None:
        self._publishers[publisher.stream] = self._by_number[number] = publisher
        self._last_number = number
        self.connection.publisher_ids.add(number)

    def _publisher(self, stream: str, entries: Entries, label: Label, _: Connection) -> StreamPublisher:
        publisher = self._publishers.get(stream)
        if publisher is None:
            if len(self._publishers) == MAX_PUBLISHERS:
                self._delete_all()
            try:
                number = self._declared(stream)
            except PeerError as fault:
                if stream not in self._dropped or self.connection.broken or fault.retriable:
                    raise
                # The stream existed a moment ago: an error that names the row helps more than "no such stream".
                why = getattr(fault, "condition", type(fault).__name__)
                raise DeliveryFailed("not taken", why, _again(fault), label(int(entries.rows[0])), stream) from fault
            publisher = self._new(number, stream)
            self._add(number, publisher)
        return publisher

    def _declared(self, stream: str) -> int:
        """Declare a publisher; wait while the broker accepts none because of an alarm, which may pass soon.

        RabbitMQ answers precondition-failed then; once a publisher of the connection is declared, it answers nothing
        until the alarm is over. Our log answers precondition-failed for a partition that was split, which does not
        pass.

        Returns:
            Its number.

        Raises:
            NotFound, Refused: the broker does not permit us to publish there, or the alarm lasts.
        """
        number = next(self._free_numbers())
        deadline, pause_s = Deadline(self._how.request_timeout_ms), FIRST_PAUSE_S
        refused: Refused | None = None
        while True:
            try:
                if refused is not None:
                    self._pause(min(pause_s, deadline.left_s("")))
                    pause_s = min(LAST_PAUSE_S, 2 * pause_s)
                request, what = self._declaration(number, stream)
                self.connection.request(request, DeclarePublisherAnswer, what)
                return number
            except Refused as fault:
                if fault.condition != _ALARMED or self.connection.is_reference_log:
                    raise
                if refused is None:
                    _log.warning("%s: waiting for up to %d ms: %s", fault.context, self._how.request_timeout_ms, ALARM)
                refused = fault
            except DeadlineExceeded as fault:
                if refused is None:
                    raise
                lasted = f"for longer than option 'requestTimeout' ({self._how.request_timeout_ms} ms): {ALARM}"
                raise Refused(refused.condition, lasted, refused.context) from fault

    def _pause(self, seconds: float) -> None:
        """Wait for ``seconds``, and serve the connection meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.connection.turn(left)
        self._take_all()

    def _delete_all(self) -> None:
        """Wait for all confirms, then delete all publishers, to make room for those of other streams."""
        self.wait(0)
        delete_publishers(self.connection)
        self._publishers.clear()
        self._by_number.clear()

    # --- what the broker says

    def _take_all(self) -> None:
        events = self.connection.events
        while events:
            self._take(events.popleft())

    def _take(self, event: Command | Frame) -> None:
        if isinstance(event, Frame) and event.key == CONFIRM_KEY:
            confirmed = decode_confirm(event.buffer, event.start, event.end)
            publisher = self._by_number.get(confirmed.publisher_id)
            if publisher is not None and publisher.confirmed(confirmed.ids):
                self._attempts.progressed()
        elif isinstance(event, Frame) and event.key == PUBLISH_ERROR_KEY:
            errors = decode_publish_error(event.buffer, event.start, event.end)
            publisher = self._by_number.get(errors.publisher_id)
            if publisher is not None and len(errors.ids):
                raise publisher.refused(errors)
        elif isinstance(event, MetadataUpdate) and event.stream in self._publishers:
            publisher = self._publishers[event.stream]
            self._dropped.add(event.stream)
            # What is not confirmed stays with it, and is sent again; the next row may declare another one.
            if not publisher.unconfirmed:
                del self._publishers[event.stream]
            self._by_number.pop(publisher.number, None)
            self.connection.publisher_ids.discard(publisher.number)

    def _named(self, fault: SparkStreamsError) -> SparkStreamsError:
        """Return the error for a fault that stayed: it names the first row that is not confirmed, if any."""
        waiting = [(row, p) for p in self._publishers.values() if (row := p.first_row) is not None]
        if not waiting:
            return fault
        _, first = min(waiting, key=lambda each: each[0])
        if isinstance(fault, DeadlineExceeded) and not self.connection.broken:
            return first.abandoned(
                "no-confirm",
                f"{fault}: the broker has taken rows and does not say that it has them, as while it has a disk alarm "
                "('rabbitmq-diagnostics alarms')",
            )
        if isinstance(fault, PeerError) and not self.connection.broken:
            return first.abandoned(fault.condition, _again(fault))
        return first.abandoned("connection-lost", str(fault))


def _again(fault: PeerError) -> str:
    return f"the broker dropped the publisher ({_DROPPED}), and when it was declared again: {fault}"
