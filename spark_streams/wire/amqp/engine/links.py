"""The sessions and links of a connection's engine.

Spec: AMQP 1.0 part 2 §2.5 (sessions), §2.6 (links), §2.7.2, §2.7.3, §2.7.7, §2.7.8 (their frames).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_streams.wire.amqp.engine.endpoints import Condition, Endpoint, Half, Step
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.session import IncomingSession
from spark_streams.wire.amqp.performatives import ATTACH, BEGIN, DETACH, END, SOURCE, TARGET, Performative
from spark_streams.wire.amqp.values import Described, Symbol, UByte, UInt, ULong

UNSETTLED, SETTLED, MIXED = range(3)
"""How the sender of a link settles (§2.8.2)."""
_WINDOW: Final = 0x7FFF_FFFF
_WRITTEN_BYTES: Final = 1 << 20
"""About the bytes of a large message that are frames at a time."""
_SND_SETTLE_MODE, _SOURCE, _TARGET, _MAX_MESSAGE_SIZE, _PROPERTIES = 3, 5, 6, 10, 13
"""Places of attach's fields."""
_FILTER: Final = 7
"""The place of source's filter."""

Say = Callable[[int, int, list[Any]], None]
"""Writes a frame: channel, code and fields."""


@dataclass(frozen=True)
class Attach:
    """What we say of a link. Spec: §2.7.3; part 3 §3.5.3, §3.5.4.

    Args:
        source, target: the addresses; None for none.
        settles: how the sender settles.
        filters: the source's filter: name to described value.
        copies: whether the source's messages are to stay there.
        properties: the link's.
    """

    source: str | None
    target: str | None
    settles: int = UNSETTLED
    filters: Mapping[str, Any] | None = None
    copies: bool = False
    properties: Mapping[str, Any] | None = None

    @property
    def termini(self) -> list[Described]:
        """The source and the target."""
        filters = {Symbol(name): value for name, value in self.filters.items()} if self.filters else None
        source = [self.source, *[None] * 5, Symbol("copy") if self.copies else None, filters]
        while source and source[-1] is None:
            source.pop()
        return [
            Described(ULong(SOURCE), source),
            Described(ULong(TARGET), [] if self.target is None else [self.target]),
        ]


class Link(Endpoint):
    """One link of a session.

    Args:
        session: the session.
        name: the link's name.
        handle: ours.
        deliveries: what comes or goes on it.

    Attributes:
        session, handle, deliveries: as given.
        answer: the peer's attach; None before.
    """

    def __init__(
        self, session: Session, name: str, handle: int, deliveries: IncomingDeliveries | OutgoingDeliveries
    ) -> None:
        super().__init__(name)
        self.session = session
        self.handle = handle
        self.deliveries = deliveries
        self.answer: Performative | None = None
        self._written: list[bytes | pa.Buffer] = []

    @property
    def sends(self) -> bool:
        """Whether we send."""
        return isinstance(self.deliveries, OutgoingDeliveries)

    @property
    def incoming(self) -> IncomingDeliveries:
        """What comes on it."""
        assert isinstance(self.deliveries, IncomingDeliveries), "we send on it"
        return self.deliveries

    @property
    def outgoing(self) -> OutgoingDeliveries:
        """What goes on it."""
        assert isinstance(self.deliveries, OutgoingDeliveries), "the peer sends on it"
        return self.deliveries

    def attach(self, attach: Attach) -> None:
        """Attach it; the peer is told the largest message that is taken of it."""
        deliveries = self.deliveries
        properties = {Symbol(name): value for name, value in attach.properties.items()} if attach.properties else None
        fields = [self.name, UInt(self.handle), not self.sends, UByte(attach.settles), UByte(0), *attach.termini]
        fields += [None, None, UInt(0) if self.sends else None]
        fields += [ULong(deliveries.max_message_bytes) if isinstance(deliveries, IncomingDeliveries) else None]
        self.we(Step.OPENS)
        self.session.say(ATTACH, [*fields, None, None, properties])

    def attached(self, answer: Performative, max_frame_bytes: int) -> IncomingDeliveries | OutgoingDeliveries:
        """Note the peer's attach; return what takes its frames."""
        self.they(Step.OPENS)
        self.answer = answer
        if isinstance(self.deliveries, IncomingDeliveries):
            self.deliveries.handle, self.deliveries.delivery_count = self.handle, answer.number(9, 0)
        else:
            presettled = self.settles == SETTLED
            self.deliveries.open(self.handle, self._written.append, max_frame_bytes, presettled=presettled)
        return self.deliveries

    def field(self, index: int, kind: type, default: Any) -> Any:
        """Return a field of the peer's attach."""
        return default if self.answer is None else self.answer.field(index, kind, default)

    @property
    def settles(self) -> int:
        """How the sender settles, as the peer says it."""
        return int(self.field(_SND_SETTLE_MODE, UByte, MIXED))

    @property
    def refused(self) -> bool:
        """Whether the peer's attach has no terminus: a detach with the reason follows (§2.6.3)."""
        where = _SOURCE if isinstance(self.deliveries, IncomingDeliveries) else _TARGET
        return self.field(where, object, None) is None

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the peer takes; 0 for any."""
        return int(self.field(_MAX_MESSAGE_SIZE, ULong, 0))

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the peer's attach."""
        found = self.field(_PROPERTIES, object, None)
        return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}

    @property
    def filters(self) -> dict[str, Any]:
        """The filter of the peer's source, which is in force."""
        source = self.field(_SOURCE, object, None)
        fields = source.value if isinstance(source, Described) and isinstance(source.value, list) else []
        found = fields[_FILTER] if len(fields) > _FILTER else None
        return {str(name): value for name, value in found.items()} if isinstance(found, Mapping) else {}

    @property
    def pending(self) -> bool:
        """Whether frames of messages wait to be written, or for the session's window."""
        deliveries = self.deliveries
        return bool(self._written) or (isinstance(deliveries, OutgoingDeliveries) and deliveries.is_begun)

    def frames(self) -> list[bytes | pa.Buffer]:
        """Return frames of messages that are due; further ones may be due afterwards."""
        deliveries = self.deliveries
        if isinstance(deliveries, IncomingDeliveries):
            if deliveries.handle is not None and deliveries.session.flow_due:
                deliveries.flow(0)  # one flow says both
            return []
        if deliveries.handle is None:
            self._written.clear()  # nothing is written after the link's end
        deliveries.go_on(_WRITTEN_BYTES)
        if not deliveries.is_begun:
            deliveries.give_back()
        written = self._written[:]
        self._written.clear()
        return written

    def detach(self, condition: Condition | None = None) -> None:
        """Close it, with an error or without; it may have been closed."""
        deliveries = self.deliveries
        if isinstance(deliveries, OutgoingDeliveries):
            deliveries.end()
        if self.we(Step.CLOSES):
            self.session.say(DETACH, [UInt(self.handle), True, *([condition.encoded] if condition else [])])
        if isinstance(deliveries, IncomingDeliveries):
            deliveries.drop()


class Session(Endpoint):
    """One session of ours.

    Args:
        channel: ours.
        counts: what it counts.
        say: writes a frame.

    Attributes:
        channel, counts: as given.
        links: its links; those that have ended, too.
    """

    def __init__(self, channel: int, counts: IncomingSession, say: Say) -> None:
        super().__init__(f"session {channel}")
        self.channel = channel
        self.counts = counts
        self.links: list[Link] = []
        self._say = say

    @property
    def done(self) -> bool:
        """Whether both sides have ended it."""
        return self.ended and self.ours is Half.CLOSED

    def say(self, code: int, fields: list[Any]) -> None:
        """Write a frame, unless the session has ended; its end is answered."""
        if self.ours is Half.OPEN and (code == END or not self.ended):
            self._say(self.channel, code, fields)

    def begin(self) -> None:
        """Begin it."""
        window = self.counts.window
        self.we(Step.OPENS)
        self.say(BEGIN, [None, UInt(0), UInt(window), UInt(_WINDOW)])

    def _link(self, name: str, deliveries: IncomingDeliveries | OutgoingDeliveries) -> Link:
        """Return a new link, which is not attached."""
        self.links.append(Link(self, name, len(self.links), deliveries))
        return self.links[-1]

    def receiver(self, name: str, max_message_bytes: int) -> Link:
        """Return a new link on which the peer sends, to be attached."""
        return self._link(name, IncomingDeliveries(self.counts, max_message_bytes))

    def sender(self, name: str) -> Link:
        """Return a new link on which we send, to be attached."""
        return self._link(name, OutgoingDeliveries(self.counts.outgoing))

    def end(self) -> None:
        """End it; it may have ended."""
        self.say(END, [])
        if self.we(Step.CLOSES):
            self.counts.end()
