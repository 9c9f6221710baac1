"""The sessions and links of a connection's engine.

Spec: AMQP 1.0 part 2 §2.5 (sessions), §2.6 (links), §2.7.2, §2.7.3, §2.7.7, §2.7.8 (their frames).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from spark_streams.wire.amqp.engine.endpoints import Condition, Endpoint, Half, Step
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.outgoing_frames import OutgoingFrames
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT, IncomingSession, Violation
from spark_streams.wire.amqp.engine.termini import Terminus
from spark_streams.wire.amqp.performatives import ATTACH, BEGIN, DETACH, END, SERIAL, Performative
from spark_streams.wire.amqp.values import Array, Symbol, UByte, UInt, ULong, UShort, by_symbol

UNSETTLED, SETTLED, MIXED = range(3)
"""How the sender of a link settles (§2.8.2)."""
_SYMBOLS: Final = 0xA3
"""The format code of an array of symbols."""
_WINDOW: Final = 0x7FFF_FFFF
_SENDER_SETTLES, _RECEIVER_SETTLES, _SOURCE, _TARGET, _COUNT, _MOST, _DESIRED, _PROPERTIES = 3, 4, 5, 6, 9, 10, 12, 13
"""Places of attach's fields."""

Deliveries = IncomingDeliveries | OutgoingDeliveries


def symbols(names: Sequence[str]) -> Array | None:
    """Return names as a field with several symbols; None for no name."""
    return Array(_SYMBOLS, tuple(Symbol(name) for name in names)) if names else None


def texts(value: Any) -> tuple[str, ...]:
    """Return the texts of a field with several symbols, or one."""
    return tuple(str(item) for item in (value.items if isinstance(value, Array) else (value,)) if isinstance(item, str))


@dataclass(frozen=True)
class Attach:
    """Our attach of a link. Spec: §2.7.3.

    Args:
        source, target: the termini; None if there is none.
        settles: how the sender settles.
        receiver_settles: how the receiver does; 0 for first.
        offered: capabilities that we offer.
        properties: the link's.
    """

    source: Terminus | None = None
    target: Terminus | None = None
    settles: int = UNSETTLED
    receiver_settles: int = 0
    offered: Sequence[str] = ()
    properties: Mapping[str, Any] | None = None


class Link(Endpoint):
    """One link of a session.

    Args:
        session: the session.
        name: the link's name.
        handle: ours.
        deliveries: its deliveries, incoming or outgoing.

    Attributes:
        session, handle, deliveries: as given.
        heard: the peer's attach; None before.
        closed: whether the peer has ended its terminus, too, and not only detached the link.
    """

    def __init__(self, session: Session, name: str, handle: int, deliveries: Deliveries) -> None:
        super().__init__(name)
        self.session = session
        self.handle = handle
        self.deliveries = deliveries
        self.heard: Performative | None = None
        self.closed = False
        self._presettled = False

    @property
    def sends(self) -> bool:
        """Whether we send."""
        return isinstance(self.deliveries, OutgoingDeliveries)

    @property
    def incoming(self) -> IncomingDeliveries:
        """Its incoming deliveries."""
        assert isinstance(self.deliveries, IncomingDeliveries), "we send on it"
        return self.deliveries

    @property
    def outgoing(self) -> OutgoingDeliveries:
        """Its outgoing deliveries."""
        assert isinstance(self.deliveries, OutgoingDeliveries), "the peer sends on it"
        return self.deliveries

    # --- what the peer says; each raises RemoteProtocolError where the field cannot be decoded, or has another type

    def field(self, index: int, kind: type, default: Any) -> Any:
        """Return a field of the peer's attach."""
        return default if self.heard is None else self.heard.field(index, kind, default)

    @property
    def source(self) -> Terminus | None:
        """The source."""
        return Terminus.of(self.field(_SOURCE, object, None))

    @property
    def target(self) -> Terminus | None:
        """The target."""
        return Terminus.of(self.field(_TARGET, object, None))

    @property
    def settles(self) -> int:
        """How the sender settles."""
        return int(self.field(_SENDER_SETTLES, UByte, MIXED))

    @property
    def receiver_settles(self) -> int:
        """How the receiver settles."""
        return int(self.field(_RECEIVER_SETTLES, UByte, 0))

    @property
    def refused(self) -> bool:
        """Whether the peer's attach has no terminus of its own: a detach with the reason follows (§2.6.3)."""
        return self.field(_TARGET if self.sends else _SOURCE, object, None) is None

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the peer takes; 0 for any."""
        return int(self.field(_MOST, ULong, 0))

    @property
    def desired(self) -> tuple[str, ...]:
        """The capabilities that the peer desires."""
        return texts(self.field(_DESIRED, object, None))

    @property
    def properties(self) -> dict[str, Any]:
        """The link's properties."""
        return {str(name): value for name, value in self.field(_PROPERTIES, dict, {}).items()}

    def on_attach(self, attach: Performative) -> None:
        """Note the peer's attach."""
        self.they(Step.OPENS)
        self.heard = attach
        self._begin()

    # --- what we say

    def attach(self, attach: Attach) -> None:
        """Attach it; the attach tells the peer the largest message that is taken.

        Raises:
            LocalProtocolError: a field cannot be encoded; nothing is sent then.
            RemoteProtocolError: a field of the peer's attach cannot be read; the caller has to detach the link then.
        """
        self._say(attach)
        self._begin()

    def _say(self, attach: Attach) -> None:
        source, target = attach.source and attach.source.encoded, attach.target and attach.target.encoded
        modes = UByte(attach.settles), UByte(attach.receiver_settles)
        largest = None if self.sends else ULong(self.incoming.max_message_bytes)
        fields: list[Any] = [self.name, UInt(self.handle), not self.sends, *modes, source, target]
        fields += [None, None, UInt(0) if self.sends else None, largest]
        self.session.say(ATTACH, [*fields, symbols(attach.offered), None, by_symbol(attach.properties)])
        self.we(Step.OPENS)
        self._presettled = attach.settles == SETTLED

    def _begin(self) -> None:
        """Let messages pass, once both sides have attached the link."""
        if self.ours is not Half.OPEN or self.heard is None:
            return
        deliveries = self.deliveries
        if isinstance(deliveries, IncomingDeliveries):
            deliveries.handle, deliveries.delivery_count = self.handle, self.heard.number(_COUNT, 0)
        else:
            presettled = self._presettled and self.settles == SETTLED
            deliveries.open(self.handle, self.session.outgoing, presettled=presettled)

    @property
    def pending(self) -> bool:
        """Whether frames wait to be written, or for the session's window."""
        return self.session.outgoing.pending or (self.sends and self.outgoing.is_begun)

    def go_on(self, most_bytes: int) -> None:
        """Write the due part of a large message, about this many bytes, and due flows."""
        deliveries = self.deliveries
        if isinstance(deliveries, IncomingDeliveries):
            if deliveries.handle is not None and deliveries.session.flow_due:
                deliveries.flow(0)  # one flow reports both the link and the session
            return
        deliveries.go_on(most_bytes)
        if not deliveries.is_begun:
            deliveries.give_back()

    def detach(self, condition: Condition | None = None, *, closed: bool = True) -> None:
        """Detach it, with an error or without, unless it is detached. An unanswered attach is refused (§2.6.3).

        Args:
            condition: the error.
            closed: whether its terminus ends, too.
        """
        if self.ours is Half.NEW:
            self._say(Attach())
        deliveries = self.deliveries
        if isinstance(deliveries, OutgoingDeliveries):
            deliveries.end()
        if self.we(Step.CLOSES):
            self.session.say(DETACH, [UInt(self.handle), closed, *([condition.encoded] if condition else [])])
            self.session.forget(self)
        if isinstance(deliveries, IncomingDeliveries):
            deliveries.drop()


class Session(Endpoint):
    """One session.

    Args:
        channel: ours.
        counts: its counts of the peer's transfers.
        outgoing: the outgoing frames of the connection.

    Attributes:
        channel, counts, outgoing: as given.
        links: its links by our handles; those that both sides have detached are gone.
        heard: its links by the peer's handles.
    """

    def __init__(self, channel: int, counts: IncomingSession, outgoing: OutgoingFrames) -> None:
        super().__init__(f"session {channel}")
        self.channel = channel
        self.counts = counts
        self.outgoing = outgoing
        self.links: dict[int, Link] = {}
        self.heard: dict[int, Link] = {}
        self._names: dict[tuple[str, bool], Link] = {}
        self._handle_max = SERIAL

    @property
    def done(self) -> bool:
        """Whether both sides have ended it."""
        return self.ended and self.ours is Half.CLOSED

    def say(self, code: int, fields: list[Any]) -> None:
        """Write a frame, unless the session has ended; the peer's end is answered. Pending settlements go first."""
        if self.ours is Half.OPEN and (code == END or not self.ended):
            self.outgoing.settle(self.counts)
            self.outgoing.say(self.channel, code, fields)

    def begin(self, remote: int | None = None) -> None:
        """Begin it.

        Args:
            remote: the peer's channel of a session that it has begun; None for one of ours.
        """
        self.we(Step.OPENS)
        answers = None if remote is None else UShort(remote)
        # Microsoft's client for Python (azure-eventhub 5.15) fails where handle-max is null instead of its default.
        self.say(BEGIN, [answers, UInt(0), UInt(self.counts.window), UInt(_WINDOW), UInt(SERIAL)])

    def on_begin(self, begin: Performative) -> None:
        """Note the peer's begin.

        Raises:
            Violation: it takes fewer links than there are.
        """
        self.they(Step.OPENS)
        ours = self.counts.outgoing
        ours.channel, ours.window = self.channel, begin.number(2, 0)
        self.counts.next_transfer = begin.number(1, 0)
        self._handle_max = begin.number(4, SERIAL)
        self._check(max(self.links, default=0))

    def _check(self, handle: int) -> None:
        if handle > self._handle_max:
            raise Violation(RESOURCE_LIMIT, f"the peer's handle-max is {self._handle_max}, and a link needs {handle}")

    def named(self, name: str, *, sends: bool) -> Link | None:
        """Return the link with a name, on which we or the peer sends; None for none, and for one that has ended."""
        link = self._names.get((name, sends))
        return None if link is None or Half.CLOSED in (link.ours, link.theirs) else link

    def link(self, name: str, deliveries: Deliveries) -> Link:
        """Return a new link, which is not attached.

        Raises:
            Violation: the peer takes no more links (handle-max, §2.7.2).
        """
        handle = next(number for number in count() if number not in self.links)
        self._check(handle)
        link = self.links[handle] = Link(self, name, handle, deliveries)
        self._names[name, link.sends] = link
        return link

    def forget(self, link: Link) -> None:
        """Forget a link that both sides have detached."""
        if link.ended and link.ours is Half.CLOSED:
            self.links.pop(link.handle, None)
            if self._names.get((link.name, link.sends)) is link:
                del self._names[link.name, link.sends]

    def receiver(self, name: str, max_message_bytes: int) -> Link:
        """Return a new link on which the peer sends, to be attached."""
        return self.link(name, IncomingDeliveries(self.counts, max_message_bytes))

    def sender(self, name: str) -> Link:
        """Return a new link on which we send, to be attached."""
        return self.link(name, OutgoingDeliveries(self.counts.outgoing))

    def end(self) -> None:
        """End it; do nothing if it has ended."""
        self.say(END, [])
        if self.we(Step.CLOSES):
            self.counts.end()
