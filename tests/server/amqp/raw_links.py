"""Links of the raw peer: what a test does with them, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import proton
from proton import Delivery, Terminus

from tests.server.amqp.raw_words import Event, Refused, encode

if TYPE_CHECKING:
    from tests.server.amqp.raw_peer import Peer

WAIT_S = 5.0
_tags = itertools.count(1)


class PeerLink:
    """What senders and receivers share."""

    def __init__(self, peer: Peer, link: Any) -> None:
        self.peer = peer
        self.link = link

    def answered(self, timeout_s: float = WAIT_S) -> None:
        """Wait for the answering attach; raises Refused when a detach follows it."""
        self.peer.pump(
            lambda: self.link.state & (proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED), timeout_s
        )
        terminus = self.link.remote_source if self.link.is_receiver else self.link.remote_target
        if terminus.type == Terminus.UNSPECIFIED:
            self.peer.pump(lambda: self.closed or self.detached, timeout_s)
        self.check()

    @property
    def pending(self) -> bool:
        return not self.link.state & (proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED)

    @property
    def closed(self) -> bool:
        """Whether the other side sent detach with closed=true."""
        return bool(self.link.state & proton.Endpoint.REMOTE_CLOSED)

    @property
    def detached(self) -> bool:
        """Whether the other side sent detach with closed=false."""
        return self.link in self.peer.detached

    @property
    def condition(self) -> str | None:
        condition = self.link.remote_condition
        return condition.name if condition else None

    def check(self) -> None:
        if self.closed or self.detached:
            condition = self.link.remote_condition
            if condition is None:
                raise Refused(None, "closed without an error")
            raise Refused(condition.name, condition.description, condition.info)

    def wait_closed(self, timeout_s: float = WAIT_S) -> str | None:
        self.peer.pump(lambda: self.closed or self.detached, timeout_s)
        return self.condition

    @property
    def properties(self) -> dict[Any, Any]:
        """Link properties of the answering attach."""
        return dict(self.link.remote_properties or {})

    def close(self) -> None:
        self.link.close()
        self.peer.pump(lambda: self.closed)

    def detach(self) -> None:
        self.link.detach()
        self.peer.pump(lambda: self.detached or self.closed)


class Receiver(PeerLink):
    """A link that receives. Deliveries are accepted as they are taken, unless ``settle`` is False."""

    @property
    def echoed(self) -> dict[Any, Any]:
        """The filter set that the node says is in force."""
        data = self.link.remote_source.filter
        data.rewind()
        return dict(data.get_object() or {}) if data.next() else {}

    def _next(self, settle: bool) -> Event | None:
        delivery = self.link.current
        if delivery is None or delivery.partial or not delivery.readable:
            return None
        encoded = self.link.recv(delivery.pending) or b""
        self.link.advance()
        if settle:
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        return Event(encoded, delivery)

    def arrived(self, settle: bool = True) -> list[Event]:
        """Take what is here already."""
        events = []
        while (event := self._next(settle)) is not None:
            events.append(event)
        return events

    def take(self, count: int, *, settle: bool = True, credit: bool = True, timeout_s: float = WAIT_S) -> list[Event]:
        """Take exactly ``count`` events, granting credit for them."""
        if credit:
            self.link.flow(count)
        events: list[Event] = []

        def enough() -> bool:
            self.check()
            while len(events) < count and (event := self._next(settle)) is not None:
                events.append(event)
            return len(events) >= count

        self.peer.pump(enough, timeout_s)
        return events

    def drain(self, credit: int = 100_000, *, settle: bool = True) -> list[Event]:
        """Take all there is now: the node says by itself when it has no more (AMQP 1.0 part 2 §2.6.7)."""
        self.link.drain(credit)
        events: list[Event] = []

        def exhausted() -> bool:
            self.check()
            events.extend(self.arrived(settle))
            return self.link.credit == 0 and self.link.queued == 0

        self.peer.pump(exhausted)
        self.link.drain_mode = False
        return events

    def bodies(self, events: list[Event] | None = None) -> list[Any]:
        return [event.body for event in (self.drain() if events is None else events)]


class Sender(PeerLink):
    """A link that sends, unsettled."""

    def send(self, message: Any, *, timeout_s: float = WAIT_S, **sections: Any) -> None:
        """Send one event and wait until it is accepted; raises Refused for any other outcome."""
        delivery = self.put(message, **sections)
        self.peer.pump(lambda: delivery.settled or self.closed or self.detached, timeout_s)
        self.check()
        if delivery.remote_state != Delivery.ACCEPTED:
            condition = delivery.remote.condition
            outcome = str(delivery.remote_state)
            raise Refused(condition.name if condition else outcome, condition.description if condition else outcome)
        delivery.settle()

    def put(self, message: Any, **sections: Any) -> Delivery:
        """Send one event without waiting for its outcome."""
        self.peer.pump(lambda: self.link.credit > 0 or self.closed or self.detached)
        self.check()
        delivery = self.link.delivery(f"tag-{next(_tags)}")
        self.link.stream(encode(message, **sections))
        self.link.advance()
        return delivery

    def send_all(self, messages: Iterable[Any], **sections: Any) -> None:
        """Send many and wait until all are accepted."""
        deliveries = [self.put(message, **sections) for message in messages]
        self.peer.pump(lambda: all(d.settled for d in deliveries))
        assert {d.remote_state for d in deliveries} <= {Delivery.ACCEPTED}
        for delivery in deliveries:
            delivery.settle()
