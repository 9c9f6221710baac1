"""One connection's subscriptions: chunks go out while there is credit.

A dispatch pass is part of dealing with the frame that caused it (Subscribe, Credit, the answer to ConsumerUpdate): all
it may send is sent before the next frame of the connection is looked at. While the client does not read, a pass stops
(``blocked``), and the connection looks at no further frame until it went on. So the answer to any later request tells
a client that the pass found nothing more.

Spec: Streams Protocol Reference, Subscribe to Unsubscribe, ConsumerUpdate; notes, sections 6 to 9, 12 and 14.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spark_streams.errors import LogError
from spark_streams.log.stored_batches import StoredBatch
from spark_streams.server.rabbit.chunks import Chunk
from spark_streams.server.rabbit.publishers import BLOOM_NOTE
from spark_streams.server.rabbit.single_active import Group
from spark_streams.wire.rabbit.bloom import may_match
from spark_streams.wire.rabbit.codes import ResponseCode
from spark_streams.wire.rabbit.consuming import (
    DELIVER_KEY,
    ConsumerUpdate,
    ConsumerUpdateAnswer,
    Credit,
    CreditAnswer,
    OffsetSpecification,
    OffsetType,
    ResolveOffsetSpec,
    ResolveOffsetSpecAnswer,
    Subscribe,
    SubscribeAnswer,
    Unsubscribe,
    UnsubscribeAnswer,
)
from spark_streams.wire.rabbit.frames import frame_head

if TYPE_CHECKING:
    from spark_streams.server.rabbit.connection import RabbitConnection
    from spark_streams.server.rabbit.topology import Served

__all__ = ["Subscription", "Subscriptions"]

logger = logging.getLogger("spark_streams.server")

_SIGN_BIT: Final = 0x8000
"""Brokers read the credit as a signed number (notes, section 7)."""


class Subscription:
    """One subscription.

    Args:
        connection: its connection.
        number: its id there.
        served: the stream.
        request: what the client asked for.
    """

    def __init__(self, connection: RabbitConnection, served: Served, request: Subscribe) -> None:
        self.number = request.subscription_id
        self.served = served
        self.group: Group | None = None
        self.blocked = False
        self._connection = connection
        self._chunks = connection.node.chunks(served)
        self._feed = connection.node.feeds.use(served.partition)
        self._asked = request.offset
        self._credit = _signed(request.credit)
        self._threshold = self._credit // 2 if connection.node.config.half_credit else 0
        self._active = False
        self._next = 0
        properties = request.properties
        self._filters = [value.encode() for name, value in properties.items() if name.startswith("filter.")]
        self._unfiltered = properties.get("match-unfiltered", "false") == "true"
        self._walk: Iterator[StoredBatch] | None = None
        self._matched_until = 0
        self._timer: asyncio.TimerHandle | None = None
        self._version = 2 if connection.client_versions.get(DELIVER_KEY) == 2 else 1

    # --- starting and stopping

    def start(self) -> None:
        """Begin to deliver where the client asked for."""
        self.activate(OffsetSpecification(OffsetType.NONE))

    def activate(self, offset: OffsetSpecification) -> None:
        """Begin to deliver; type NONE means where the client subscribed."""
        wanted = self._asked if offset.type == OffsetType.NONE else offset
        self._next = resolve(self._connection, self.served, wanted)
        self._active = True
        self.deliver()

    def deactivate(self) -> None:
        """Deliver no more; the credit is kept."""
        self._active = False
        self._feed.forget(self.deliver)

    def update(self, active: bool) -> None:
        """Tell the consumer that it is the active one of its group, or no more."""
        config = self._connection.node.config
        self._connection.ask_consumer(self, active)
        self._timer = self._connection.node.loop.call_later(
            config.consumer_update_timeout_ms / 1000, self._connection.drop
        )

    def answered(self, active: bool, offset: OffsetSpecification) -> None:
        """Take the answer to ``update``."""
        self._stop_timer()
        if self.group is not None:
            self.group.answered(self, active, offset)

    def close(self) -> None:
        """End it."""
        self.deactivate()
        self._stop_timer()
        self._connection.node.feeds.release(self._feed)
        group, self.group = self.group, None
        if group is not None:
            group.leave(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- delivering

    def credit(self, more: int) -> bool:
        """Add credit, and deliver; return False for a consumer that is not the active one of its group."""
        self._credit += _signed(more)
        if self.group is not None and not self._active:
            return False
        self.deliver()
        return True

    def deliver(self) -> None:
        """Send what there is, while there is credit and the client reads."""
        self.blocked = False
        if not self._active or self._credit <= self._threshold:
            return
        while self._credit > 0:
            if self._connection.congested:
                self.blocked = True
                return
            try:
                chunk = self._following()
            except LogError as fault:
                # The stream is being deleted, of which the client hears soon, or its file is damaged.
                logger.warning("stream %r: nothing more is delivered: %s", self.served.name, fault)
                return
            if chunk is None:
                self._feed.wait(self.deliver)
                return
            self._send(chunk)
            self._credit -= 1
            self._next = chunk.next_offset

    def _send(self, chunk: Chunk) -> None:
        if self._version == 2:
            last = self._chunks.last()
            committed = last.first_offset if last is not None else chunk.first_offset
            head = struct.pack(">BQ", self.number, max(committed, chunk.first_offset))
        else:
            head = bytes((self.number,))
        size = len(head) + len(chunk.encoded)
        self._connection.send(frame_head(size, DELIVER_KEY, self._version) + head + chunk.encoded)

    def _following(self) -> Chunk | None:
        """Return the next chunk that is wanted, None when there is none yet."""
        if self._filters and self._next >= self._matched_until and not self._skip_to_match():
            return None
        return self._chunks.at(self._next)

    def _skip_to_match(self) -> bool:
        """Go on to the next stored batch whose bloom filter may hold a wanted value; return whether there is one."""
        while True:
            if self._walk is None:
                if self._next >= self.served.partition.next_offset:
                    return False
                self._walk = self.served.partition.batches(self._next)
            for batch in self._walk:
                if batch.next_offset <= self._next:
                    continue
                bloom = next((value for name, value in batch.notes if name == BLOOM_NOTE), None) or b""
                if may_match(bloom, self._filters, self._unfiltered):
                    self._next = max(self._next, batch.first_offset)
                    self._matched_until = batch.next_offset
                    return True
                self._next = batch.next_offset
            self._walk = None


class Subscriptions:
    """The subscriptions of one connection.

    Args:
        connection: theirs.
    """

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection
        self._open: dict[int, Subscription] = {}

    @property
    def blocked(self) -> bool:
        """Whether a dispatch pass waits for the client to read: no further frame may be looked at."""
        return any(subscription.blocked for subscription in self._open.values())

    def subscribe(self, request: Subscribe) -> None:
        """Open a subscription and deliver, or answer why not."""
        code, subscription = self._subscribe(request)
        self._connection.answer(request, SubscribeAnswer, code)
        if subscription is None:
            return
        if subscription.group is None:
            subscription.start()
        else:
            subscription.group.join(subscription)

    def _subscribe(self, request: Subscribe) -> tuple[ResponseCode, Subscription | None]:
        node = self._connection.node
        if not self._connection.may("read", request.stream):
            return ResponseCode.ACCESS_REFUSED, None
        served = node.topology.find(request.stream)
        if served is None:
            return ResponseCode.STREAM_DOES_NOT_EXIST, None
        if request.subscription_id in self._open:
            return ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS, None
        if request.offset.type == OffsetType.NONE:
            return ResponseCode.PRECONDITION_FAILED, None
        properties = request.properties
        group = None
        if properties.get("single-active-consumer") == "true":
            name = properties.get("name")
            if not name:
                return ResponseCode.PRECONDITION_FAILED, None
            index = None
            if "super-stream" in properties:
                if served.super_stream != properties["super-stream"]:
                    return ResponseCode.PRECONDITION_FAILED, None
                index = served.index
            group = node.groups.of(served.key, name, index)
            if group is None:
                return ResponseCode.PRECONDITION_FAILED, None
        subscription = Subscription(self._connection, served, request)
        subscription.group = group
        self._open[request.subscription_id] = subscription
        return ResponseCode.OK, subscription

    def credit(self, command: Credit) -> None:
        """Add credit; only a refusal is answered."""
        subscription = self._open.get(command.subscription_id)
        if subscription is None:
            code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
        elif not subscription.credit(command.credit):
            code = ResponseCode.PRECONDITION_FAILED
        else:
            return
        self._connection.send(CreditAnswer(code, command.subscription_id).encode())

    def unsubscribe(self, request: Unsubscribe) -> None:
        """Close a subscription, or answer that there is none."""
        subscription = self._open.pop(request.subscription_id, None)
        code = ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST if subscription is None else ResponseCode.OK
        self._connection.answer(request, UnsubscribeAnswer, code)
        if subscription is not None:
            subscription.close()

    def resolve(self, request: ResolveOffsetSpec) -> None:
        """Answer which offset a starting position means now."""
        code, offset = ResponseCode.OK, 0
        served = self._connection.node.topology.find(request.stream)
        if not self._connection.may("read", request.stream):
            code = ResponseCode.ACCESS_REFUSED
        elif served is None:
            code = ResponseCode.STREAM_DOES_NOT_EXIST
        elif request.offset.type == OffsetType.NONE:
            code = ResponseCode.PRECONDITION_FAILED
        else:
            offset = resolve(self._connection, served, request.offset)
        found = OffsetSpecification(OffsetType.OFFSET, offset)
        self._connection.answer(request, ResolveOffsetSpecAnswer, code, offset=found)

    def consumer_updated(self, subscription: Subscription, active: bool, answer: ConsumerUpdateAnswer) -> None:
        """Take a consumer's answer to ConsumerUpdate."""
        if self._open.get(subscription.number) is subscription:
            subscription.answered(active, answer.offset)

    def update_of(self, subscription: Subscription, active: bool, correlation_id: int) -> bytes:
        """Return the frame that tells a consumer what it is now."""
        return ConsumerUpdate(subscription.number, int(active), correlation_id=correlation_id).encode()

    def resume(self) -> None:
        """Go on with the passes that were stopped: the client reads again."""
        for subscription in list(self._open.values()):
            if subscription.blocked:
                subscription.deliver()

    def drop(self, stream: str) -> bool:
        """Close the subscriptions of a stream that is gone; return whether there were any."""
        gone = [number for number, subscription in self._open.items() if subscription.served.name == stream]
        for number in gone:
            self._open.pop(number).close()
        return bool(gone)

    def streams(self) -> dict[str, Served]:
        """Return the streams that are subscribed to, by name."""
        return {subscription.served.name: subscription.served for subscription in self._open.values()}

    def close(self) -> None:
        """Close all: the connection has ended."""
        while self._open:
            _, subscription = self._open.popitem()
            subscription.close()


def resolve(connection: RabbitConnection, served: Served, wanted: OffsetSpecification) -> int:
    """Return the first offset of the chunk that a starting position means, or the next offset where there is none.

    Spec: notes, section 6: the unit is the chunk.
    """
    partition, chunks = served.partition, connection.node.chunks(served)
    end = partition.next_offset
    if wanted.type == OffsetType.NEXT:
        return end
    if wanted.type == OffsetType.FIRST:
        return partition.first_offset
    if wanted.type == OffsetType.LAST:
        last = chunks.last()
        return end if last is None else last.first_offset
    if wanted.type == OffsetType.TIMESTAMP:
        found = partition.offset_for_time(wanted.value)
        offset = end if found is None else found[0]
    else:
        offset = min(max(wanted.value, partition.first_offset), end)
    chunk = chunks.at(offset) if offset < end else None
    return end if chunk is None else chunk.first_offset


def _signed(credit: int) -> int:
    return credit - 2 * _SIGN_BIT if credit >= _SIGN_BIT else credit
