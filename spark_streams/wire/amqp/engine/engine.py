"""One connection, without I/O and without a clock: bytes in, endpoints that the peer opens and closes, bytes out.

::

    received bytes --> IncomingFrames --> transfers, flows, dispositions --> deliveries of links
                                      --> open … close                   --> endpoints
    written bytes  <-- what was said of endpoints, transfers, what sessions owe

Both peers of a connection follow the same rules; but only one that ``serves`` lets its peer begin sessions and attach
links.

Spec: AMQP 1.0 part 2 §2.2 (the header), §2.4 (connections), §2.4.5 (idle time-out), §2.5.1, §2.6.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.wire.amqp.engine.endpoints import Condition, Endpoint, Half, Step
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.incoming_frames import IncomingFrames
from spark_streams.wire.amqp.engine.links import Link, Session, symbols, texts
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.outgoing_frames import OutgoingFrames
from spark_streams.wire.amqp.engine.session import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    IncomingSession,
    Unfinished,
    Violation,
)
from spark_streams.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    END,
    FLOW,
    OPEN,
    Performative,
    read_performative,
)
from spark_streams.wire.amqp.transfer_frames import HEAD_BYTES
from spark_streams.wire.amqp.values import UInt, UShort, by_symbol

_MAX_FRAME_SIZE, _CHANNEL_MAX, _IDLE_TIME_OUT, _OFFERED, _PROPERTIES = 2, 3, 4, 7, 9
"""Places of open's fields."""
_WRITTEN_BYTES: Final = 1 << 20
"""About how many bytes of a large message are made into frames at a time."""


@dataclass(frozen=True)
class Options:
    """What we declare for a connection, and what the peer may do on it. Spec: §2.7.1.

    Args:
        container: our name.
        max_frame_bytes: the largest frame that we take.
        session_bytes: bytes that the peer may have under way on one session, and in unfinished messages of all.
        hostname: the peer's name.
        desired, offered: capabilities.
        properties: the connection's.
        max_sessions: how many sessions the peer may have.
        idle_ms: how long the peer may be silent; 0 for no limit. We tell it half of that (§2.4.5).
        serves: whether the peer may begin sessions and attach links.
        max_message_bytes: the largest message that is taken on a link that the peer attaches.
        outcomes: whether the outcomes of our deliveries are tracked.
        all_fields: whether frames have all their fields, null ones at their end too.
    """

    container: str
    max_frame_bytes: int
    session_bytes: int
    hostname: str | None = None
    desired: Sequence[str] = ()
    offered: Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    max_sessions: int = 65_536
    idle_ms: int = 0
    serves: bool = False
    max_message_bytes: int = 0
    outcomes: bool = True
    all_fields: bool = False

    @property
    def fields(self) -> list[Any]:
        """The fields of open."""
        idle = UInt(self.idle_ms // 2) if self.idle_ms else None
        channels = UShort(self.max_sessions - 1) if self.serves else None
        sizes = [UInt(self.max_frame_bytes), channels, idle, None, None]
        capabilities = symbols(self.offered), symbols(self.desired)
        return [self.container, self.hostname, *sizes, *capabilities, by_symbol(self.properties)]


class Engine:
    """One connection, after SASL.

    Args:
        options: of the connection.
        read_bytes: bytes that can be received into ``room`` at once.

    Attributes:
        incoming: splits the received bytes.
        connection: its state; the half ``theirs`` is open once the peer's open has come.
        container: the peer's name.
    """

    def __init__(self, options: Options, read_bytes: int = 0) -> None:
        self.incoming = IncomingFrames(options.max_frame_bytes, self._on_endpoint)
        self.connection = Endpoint("the connection")
        self.container = ""
        self._options = options
        self._buffer = bytearray(read_bytes and read_bytes + options.max_frame_bytes)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._rest = bytearray()
        self._needed = HEAD_BYTES
        self._heard: Performative | None = None
        self._unfinished = Unfinished(options.session_bytes) if options.serves else None
        self._sessions: dict[int, Session] = {}
        """By our channel."""
        self._begun: dict[int, Session] = {}
        """By the peer's channel."""
        self._outgoing = OutgoingFrames(all_fields=options.all_fields)
        self._spoke, self._silent_s = True, 0.0

    # --- what the peer has said

    @property
    def offered(self) -> tuple[str, ...]:
        """The capabilities that the peer offers."""
        return () if self._heard is None else texts(self._heard.field(_OFFERED, object, None))

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the peer's open.

        Raises:
            RemoteProtocolError: they are no map.
        """
        found = {} if self._heard is None else self._heard.field(_PROPERTIES, dict, {})
        return {str(name): str(value) for name, value in found.items()}

    @property
    def full(self) -> bool:
        """Whether the peer takes no further session."""
        most = 0xFFFF if self._heard is None else self._heard.field(_CHANNEL_MAX, UShort, 0xFFFF)
        return len(self._sessions) > most

    # --- what comes

    @property
    def room(self) -> memoryview:
        """The memory for the next bytes; it follows an incomplete frame, which moves to the beginning."""
        stop = self.incoming.stop
        if stop:
            self._buffer[: self._end - stop] = self._buffer[stop : self._end]
            self.incoming.stop, self._end = 0, self._end - stop
        return self._view[self._end :]

    def received_into(self, count: int) -> None:
        """Take ``count`` bytes that were received into ``room``.

        Raises:
            Violation: the peer broke a rule.
        """
        self._end += count
        for _ in self.incoming.read(self._view, self.incoming.stop, self._end):
            pass
        self.incoming.arrived.clear()

    def received(self, data: bytes) -> Iterator[Endpoint | None]:
        """Take bytes; yield each endpoint that the peer opens or closes, and None where the caller may pause.

        Raises:
            Violation: the peer broke a rule; earlier frames are taken.
        """
        self._spoke = True
        if self._rest:
            self._rest += data
            data = bytes(self._rest) if len(self._rest) >= self._needed else b""
        if data:
            view = memoryview(data)
            yield from self.incoming.read(view, 0, len(data))
            self._rest = bytearray(view[self.incoming.stop :])
            framed = self.incoming.started and len(self._rest) >= 4
            self._needed = int.from_bytes(self._rest[:4], "big") if framed else HEAD_BYTES

    def _on_endpoint(self, frame: memoryview, code: int | None) -> Endpoint | None:
        """Take a frame about an endpoint, known or not; return the endpoint.

        Raises:
            Violation: the frame is not permitted in this state.
            RemoteProtocolError: a field has a wrong type.
        """
        if code is None:
            if 4 * frame[4] != len(frame):
                raise Violation(FRAMING_ERROR, "a frame has no performative that can be read")
            return None
        if not OPEN <= code <= CLOSE:
            raise Violation(FRAMING_ERROR, f"0x{code:02x} is no performative")
        channel, said = int.from_bytes(frame[6:8], "big"), read_performative(bytes(frame))
        if code == OPEN:
            self.connection.they(Step.OPENS)
            self._heard, self.container = said, said.field(0, str, "")
            self._outgoing.max_frame_bytes = said.number(_MAX_FRAME_SIZE, 0xFFFF_FFFF)
            self._outgoing.idle_s = said.number(_IDLE_TIME_OUT, 0) / 1000
            return self.connection
        if self._heard is None:
            raise Violation(ILLEGAL_STATE, "the first frame is no open")
        if code == CLOSE:
            self.connection.they(Step.CLOSES, said.field(0, object, None))
            self.incoming.ended = True
            return self.connection
        if code == BEGIN:
            return self._on_begin(channel, said)
        session = self._begun.get(channel)
        if session is None:
            raise Violation(NOT_ALLOWED, f"no such channel: {channel}")
        if code == ATTACH:
            return self._on_attach(channel, session, said)
        if code == END:
            del self._begun[channel]
            session.they(Step.CLOSES, said.field(0, object, None))
            self._drop_done()
            return session
        handle = said.number(4 if code == FLOW else 0, 0)
        link = session.heard.pop(handle, None) if code == DETACH else None
        if link is None:
            raise Violation(INVALID_FIELD, f"no such handle: {handle}")
        link.closed = said.field(1, bool, False)
        link.they(Step.CLOSES, said.field(2, object, None))
        session.forget(link)
        return link

    def _on_begin(self, channel: int, begin: Performative) -> Session:
        if channel in self._begun:
            raise Violation(ILLEGAL_STATE, f"channel {channel} has a session")
        if channel >= self._options.max_sessions:
            most = self._options.max_sessions - 1
            raise Violation(FRAMING_ERROR, f"channel {channel} is above the channel-max, {most}")
        session = self._sessions.get(begin.field(0, UShort, 0)) if begin.has(0) else None
        if session is None and self._options.serves and not begin.has(0):
            if self.full:
                raise Violation(RESOURCE_LIMIT, "the peer begins more sessions than its own channel-max allows")
            session = self._new_session()
        if session is None:
            raise Violation(ILLEGAL_STATE, "the peer begins a session of its own")
        session.on_begin(begin)
        self._begun[channel] = session
        self.incoming.begin(channel, session.counts)
        if session.ours is Half.NEW:
            session.begin(channel)
        return session

    def _on_attach(self, channel: int, session: Session, attach: Performative) -> Link:
        # An attach has the role of the peer that sends it: true for a receiver.
        name, handle, sends = attach.field(0, str, ""), attach.number(1, 0), attach.field(2, bool, False)
        link, before = session.named(name, sends=sends), session.heard.get(handle)
        if before is not None and before.ours is not Half.CLOSED:  # some peers attach a refused link again at once
            raise Violation(HANDLE_IN_USE, f"handle {handle} has a link")
        if link is not None and link.theirs is not Half.NEW:
            raise Violation(INVALID_FIELD, f"link name already in use: {name:.200}")
        if link is None:
            if not self._options.serves:
                raise Violation(ILLEGAL_STATE, "the peer attaches a link of its own")
            counts, most = session.counts, self._options.max_message_bytes
            incoming = IncomingDeliveries(counts, most, self._unfinished)
            link = session.link(name, OutgoingDeliveries(counts.outgoing) if sends else incoming)
        session.heard[handle] = link
        self.incoming.attach(channel, handle, link.deliveries)
        link.on_attach(attach)
        return link

    # --- what we say

    def open(self) -> None:
        """Open the connection; do nothing if it is open."""
        if self.connection.we(Step.OPENS):
            self._outgoing.say(0, OPEN, self._options.fields)

    def session(self) -> Session:
        """Begin a session."""
        session = self._new_session()
        session.begin()
        return session

    def _new_session(self) -> Session:
        self._drop_done()
        options = self._options
        channel = next(number for number in range(65_536) if number not in self._sessions)
        sizes = options.session_bytes, options.max_frame_bytes
        counts = IncomingSession(*sizes, outcomes=options.outcomes, all_fields=options.all_fields)
        session = self._sessions[channel] = Session(channel, counts, self._outgoing)
        return session

    def _drop_done(self) -> None:
        self._sessions = {channel: each for channel, each in self._sessions.items() if not each.done}

    def close(self, condition: Condition | None = None) -> None:
        """Close the connection, with an error or without; do nothing if it is closed. Nothing is written after that."""
        self.open()  # a close before an open is not permitted (§2.4.6)
        if self.connection.ours is Half.OPEN:
            self._outgoing.say(0, CLOSE, [condition.encoded] if condition else [])
            self._outgoing.end()
            self.connection.we(Step.CLOSES)

    @property
    def pending(self) -> bool:
        """Whether frames wait to be written."""
        return self._outgoing.pending

    def written(self) -> bytes:
        """Return the bytes that are due; further ones may be due afterwards.

        With ``serves``, the caller has the sending links write their due frames.
        """
        for session in self._sessions.values():
            for link in () if self._options.serves else session.links.values():
                link.go_on(_WRITTEN_BYTES)
            self._outgoing.settle(session.counts)
        return self._outgoing.take()

    def tick(self, now_s: float) -> float:
        """Send a heartbeat where one is due, and check that the peer is alive.

        Returns:
            When to call again, in seconds of the same clock; 0 for never.

        Raises:
            Violation: the peer has been silent for longer than it may.
        """
        if self.connection.ours is not Half.OPEN:
            return 0.0
        beat_s, idle_s = self._outgoing.beat(now_s), self._options.idle_ms / 1000
        if self._spoke:
            self._silent_s, self._spoke = now_s + idle_s, False
        elif idle_s and now_s >= self._silent_s:
            raise Violation(RESOURCE_LIMIT, f"no frame has come for {idle_s:g} s, the idle time-out")
        return min((at for at in (beat_s, idle_s and self._silent_s) if at), default=0.0)
