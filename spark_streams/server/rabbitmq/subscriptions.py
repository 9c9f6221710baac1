"""Starts and ends the subscriptions of one connection, and gives them turns to deliver.

A dispatch pass is part of handling the frame that caused it (Subscribe, Credit, the answer to ConsumerUpdate): it sends
all chunks that it may before the connection handles its next frame. While the client does not read, or when there is
much to send, a pass pauses for other connections (``blocked``), and the connection handles no further frame until the
pass has ended. So the answer to any later request shows a client that the pass found nothing more.

Spec: Streams Protocol Reference, Subscribe to Unsubscribe, ConsumerUpdate; docs/specifications.md,
S-61 to S-65, S-71 to S-73, S-121, S-122, S-141 to S-143.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final, NamedTuple

from spark_streams.errors import LogError
from spark_streams.log.storage.readable_partition import PartitionClosed
from spark_streams.server.counters import logger
from spark_streams.server.rabbitmq.session import CommandRefused, Session
from spark_streams.server.rabbitmq.single_active import Group
from spark_streams.server.rabbitmq.subscription import Subscription, start_offset
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.server.turns import Turn
from spark_streams.wire.rabbitmq.consumer_commands import (
    ConsumerUpdate,
    ConsumerUpdateAnswer,
    Credit,
    CreditAnswer,
    OffsetSpecification,
    OffsetType,
    ResolveOffsetSpec,
    Subscribe,
    Unsubscribe,
)
from spark_streams.wire.rabbitmq.frames import ResponseCode

SHARE_BYTES: Final = 512 << 10
"""Bytes that a subscription sends, in one write, before the next one of the connection has its turn."""
TURN_BYTES: Final = 2 << 20
"""Bytes that a connection sends before the others have their turn."""
_AS_SUBSCRIBED: Final = OffsetSpecification(OffsetType.NONE)


class _Update(NamedTuple):
    """A ConsumerUpdate that the client has not answered yet."""

    subscription: Subscription
    active: bool
    timer: asyncio.TimerHandle


class Subscriptions:
    """The subscriptions of one connection.

    Args:
        session: the connection.

    Attributes:
        open: the open ones, by their numbers on the connection.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.open: dict[int, Subscription] = {}
        self._due: dict[Subscription, None] = {}
        self._updates: dict[int, _Update] = {}
        self._queued = False
        self._closed = False

    @property
    def blocked(self) -> bool:
        """Whether a dispatch pass has not ended: no further frame may be handled before ``proceed`` is called."""
        return bool(self._due)

    # --- commands

    def subscribe(self, request: Subscribe) -> None:
        """Open a subscription, answer and deliver.

        Raises:
            CommandRefused: the subscription is not opened.
        """
        if self._closed:
            return
        if request.offset.type == OffsetType.NONE:
            self._session.fail(ResponseCode.UNKNOWN_FRAME, "Subscribe: offset type 0, expected 1 to 5")
            return
        subscription = self._subscribe(request)
        start = 0
        if subscription.group is None:
            try:
                start = subscription.start_at(_AS_SUBSCRIBED)
            except (LogError, OSError) as fault:
                subscription.close()
                raise self._unreadable(request.stream, fault) from fault
        self._session.answer(request)
        self.open[subscription.number] = subscription
        if subscription.group is not None:
            subscription.group.join(subscription)
        else:
            subscription.start(start)
            self._serve(subscription)

    def _subscribe(self, request: Subscribe) -> Subscription:
        node, served = self._session.node, self._session.find("read", request.stream)
        if request.subscription_id in self.open:
            raise CommandRefused(ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS)
        if sum(name.startswith("filter.") for name in request.properties) > node.config.max_filter_values:
            raise CommandRefused(ResponseCode.PRECONDITION_FAILED)
        group = None
        if request.properties.get("single-active-consumer") == "true" and ConsumerUpdate.KEY not in node.config.without:
            group = self._group(request, served)
            if group is None:
                raise CommandRefused(ResponseCode.PRECONDITION_FAILED)
        subscription = Subscription(self._session, served, request, self._woken, self.update)
        subscription.group = group
        return subscription

    def _group(self, request: Subscribe, served: Served) -> Group | None:
        """Return the group that a consumer wants to join; None when its properties name none, or contradict it."""
        name, super_stream = request.properties.get("name"), request.properties.get("super-stream")
        if name is None:
            return None
        # As at brokers: a stream that is no partition of the named super stream is treated as a plain stream.
        index = served.index if super_stream is not None and super_stream == served.super_stream else None
        return self._session.node.groups.of(served.key, name, index)

    def credit(self, command: Credit) -> None:
        """Add credit, and deliver; answer only a refusal."""
        subscription = self.open.get(command.subscription_id)
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        if subscription is not None:
            subscription.add_credit(command.credit)
            if subscription.active:
                self._serve(subscription)
                return
            code = ResponseCode.PRECONDITION_FAILED
        self._session.send(CreditAnswer(code, command.subscription_id).encode())

    def unsubscribe(self, request: Unsubscribe) -> None:
        """Close a subscription and answer.

        Raises:
            CommandRefused: there is none of this number.
        """
        subscription = self.open.pop(request.subscription_id, None)
        if subscription is None:
            raise CommandRefused(ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST)
        self._session.answer(request)
        self._end(subscription)

    def resolve(self, request: ResolveOffsetSpec) -> None:
        """Answer with the offset that a starting position means now.

        Raises:
            CommandRefused: the user may not read the stream, or it does not exist, or it cannot be read.
        """
        if request.offset.type == OffsetType.NONE:
            self._session.fail(ResponseCode.UNKNOWN_FRAME, "ResolveOffsetSpec: offset type 0, expected 1 to 5")
            return
        served = self._session.find("read", request.stream)
        try:
            offset = start_offset(served.partition, self._session.node.chunks(served), request.offset)
        except (LogError, OSError) as fault:
            raise self._unreadable(request.stream, fault) from fault
        self._session.answer(request, offset=OffsetSpecification(OffsetType.OFFSET, offset))

    def _unreadable(self, stream: str, fault: Exception) -> CommandRefused:
        """Return the refusal of a request for a stream that cannot be read."""
        if isinstance(fault, PartitionClosed):
            return CommandRefused(ResponseCode.STREAM_NOT_AVAILABLE)
        logger.error("stream %r cannot be read: %s", stream, fault)
        return CommandRefused(ResponseCode.INTERNAL_ERROR)

    # --- single active consumers

    def consumer_updated(self, answer: ConsumerUpdateAnswer) -> None:
        """Handle the answer to a ConsumerUpdate; ignore an answer without a request."""
        update = self._updates.pop(answer.correlation_id, None)
        if update is None:
            return
        update.timer.cancel()
        subscription = update.subscription
        if self.open.get(subscription.number) is not subscription or subscription.group is None:
            return
        if subscription.group.answered(subscription, update.active):
            self._activate(subscription, answer.offset)

    def _activate(self, subscription: Subscription, wanted: OffsetSpecification) -> None:
        try:
            subscription.start(subscription.start_at(wanted))
        except (LogError, OSError) as fault:
            self._cannot_read(subscription, fault)
            return
        self._serve(subscription)

    def update(self, subscription: Subscription, active: bool) -> None:
        """Send a ConsumerUpdate, that the consumer is active in its group or no more; it has to answer in time."""
        if self._closed:
            return
        if not active:
            subscription.stop()
            self._not_due(subscription)
        session = self._session
        loop, timeout_ms = session.node.loop, session.node.config.consumer_update_timeout_ms
        number = session.correlation()
        timer = loop.call_later(timeout_ms / 1000, self._not_answered, subscription)
        self._updates[number] = _Update(subscription, active, timer)
        session.send(ConsumerUpdate(subscription.number, int(active), correlation_id=number).encode())

    def _not_answered(self, subscription: Subscription) -> None:
        name = subscription.served.name
        logger.warning("stream %r: a consumer does not answer ConsumerUpdate, its connection is closed", name)
        self._session.fail(ResponseCode.INTERNAL_ERROR, f"no answer to ConsumerUpdate in time, stream {name}")

    # --- the end of subscriptions

    def drop(self, streams: Collection[str]) -> set[str]:
        """End the subscriptions of streams that are gone; return those that had any."""
        gone = [subscription for subscription in self.open.values() if subscription.served.name in streams]
        for subscription in gone:
            del self.open[subscription.number]
            if subscription.group is not None:
                subscription.group.end()
            self._end(subscription)
        return {subscription.served.name for subscription in gone}

    def close(self) -> None:
        """End all subscriptions, because the connection has ended."""
        self._closed = True
        while self.open:
            _, subscription = self.open.popitem()
            self._end(subscription)
        for update in self._updates.values():
            update.timer.cancel()
        self._updates.clear()

    def _end(self, subscription: Subscription) -> None:
        for number in [number for number, update in self._updates.items() if update.subscription is subscription]:
            self._updates.pop(number).timer.cancel()
        self._not_due(subscription)
        subscription.close()
        if subscription.group is not None:
            subscription.group.leave(subscription)

    # --- turns

    def _woken(self, subscription: Subscription) -> None:
        """Deliver the new records of a subscription."""
        self._due[subscription] = None
        self._session.guarded(self.deliver)

    def _serve(self, subscription: Subscription) -> None:
        self._due[subscription] = None
        self.deliver()

    def deliver(self) -> None:
        """Let the subscriptions that are due send, one share after the other, while the peer reads."""
        budget, turn = TURN_BYTES, Turn(time.monotonic)  # a search reads from the disk
        while self._due and not self._session.congested:
            subscription = next(iter(self._due))
            del self._due[subscription]
            try:
                used, more = subscription.deliver(min(budget, SHARE_BYTES), turn)
            except (LogError, OSError) as fault:
                self._cannot_read(subscription, fault)
                continue
            budget -= used
            if more:
                self._due[subscription] = None
            if self._due and (budget <= 0 or turn.over):
                self._queue()
                return

    def _queue(self) -> None:
        if not self._queued:
            self._queued = True
            self._session.node.loop.call_soon(self._queued_turn)

    def _queued_turn(self) -> None:
        self._queued = False
        if not self._closed:
            self._session.guarded(self.deliver)
        if not self._due:
            self._session.proceed()

    def _not_due(self, subscription: Subscription) -> None:
        """Take a subscription out of the turn; when no other is due, frames may be handled again."""
        if subscription in self._due:
            del self._due[subscription]
            if not self._closed:
                self._queue()

    def _cannot_read(self, subscription: Subscription, fault: Exception) -> None:
        """End the connection: a consumer that gets nothing more must not mistake that for the end of the stream.

        A stream that is being deleted is no fault: the client hears of it soon.
        """
        if isinstance(fault, PartitionClosed):
            return
        name = subscription.served.name
        logger.error("stream %r cannot be read: %s", name, fault)
        self._session.fail(ResponseCode.INTERNAL_ERROR, f"stream {name} cannot be read, see the server's log")
