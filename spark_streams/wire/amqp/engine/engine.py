"""One connection of a client, without I/O and without a clock: bytes in, the state of its endpoints, bytes out.

::

    socket --recv_into--> room --> IncomingFrames --> transfers, flows, dispositions --> deliveries of links
                                                  --> open … close                   --> endpoints
    socket <-------------------------- written() <-- what was said of endpoints, transfers, what sessions owe

Spec: AMQP 1.0 part 2 §2.2 (the header), §2.4 (connections), §2.4.5 (idle time-out), §2.5.1, §2.6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.wire.amqp.engine.endpoints import Condition, Endpoint, Half, Step
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.incoming_frames import IncomingFrames
from spark_streams.wire.amqp.engine.links import Link, Session
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.session import (
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    IncomingSession,
    Violation,
)
from spark_streams.wire.amqp.performatives import (
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    Performative,
    encode_frame,
    performative_code,
    read_performative,
)
from spark_streams.wire.amqp.sasl import AMQP_HEADER
from spark_streams.wire.amqp.transfer_frames import HEAD_BYTES
from spark_streams.wire.amqp.values import Array, Symbol, UInt, UShort

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_MAX_FRAME_SIZE, _CHANNEL_MAX, _IDLE_TIME_OUT, _OFFERED, _PROPERTIES = 2, 3, 4, 7, 9
"""Places of open's fields."""
_SYMBOLS: Final = 0xA3
_MOST_CHANNELS: Final = 65_536


@dataclass(frozen=True)
class Open:
    """What we say of a connection. Spec: §2.7.1.

    Args:
        container: our name.
        hostname: the peer's.
        desired: capabilities that we want.
        max_frame_bytes: the largest frame that we take.
    """

    container: str
    hostname: str
    desired: Sequence[str]
    max_frame_bytes: int


class Engine(IncomingFrames):
    """One connection of a client, after SASL.

    Args:
        opening: what we say of it.
        read_bytes: bytes that can be received at once.
        session_bytes: bytes that the peer may have under way on one session.

    Attributes:
        buffer: holds the received bytes.
        connection: its state; ``they`` have opened it once the peer's open has come.
    """

    def __init__(self, opening: Open, read_bytes: int, session_bytes: int) -> None:
        super().__init__(opening.max_frame_bytes)
        self.buffer = bytearray(read_bytes + opening.max_frame_bytes)
        self.connection = Endpoint("the connection")
        self._session_bytes = session_bytes
        self._view = memoryview(self.buffer)
        self._end = 0
        self._answer: Performative | None = None
        self._used: dict[int, Session] = {}
        """By our channel."""
        self._begun: dict[int, Session] = {}
        """By the peer's channel."""
        self._attached: dict[tuple[int, int], Link] = {}
        """By the peer's channel and handle."""
        self._has_header = False
        self._said: list[Any] = [AMQP_HEADER]
        self._wrote, self._heartbeat_s = True, 0.0
        desired = Array(_SYMBOLS, tuple(Symbol(name) for name in opening.desired))
        sizes = [UInt(opening.max_frame_bytes), None, None, None, None]
        self.connection.we(Step.OPENS)
        self._say(0, OPEN, [opening.container, opening.hostname, *sizes, None, desired])

    # --- what the peer has said

    @property
    def offered(self) -> tuple[str, ...]:
        """The capabilities that the peer offers."""
        value = None if self._answer is None else self._answer.field(_OFFERED, object, None)
        items = value.items if isinstance(value, Array) else (value,)
        return tuple(str(item) for item in items if isinstance(item, str))

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the peer's open."""
        found = {} if self._answer is None else self._answer.field(_PROPERTIES, object, {})
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that the peer takes."""
        return 0 if self._answer is None else int(self._answer.number(_MAX_FRAME_SIZE, 0xFFFF_FFFF))

    @property
    def idle_s(self) -> float:
        """Seconds without a frame of ours after which the peer closes the connection; 0 for never."""
        return 0.0 if self._answer is None else self._answer.number(_IDLE_TIME_OUT, 0) / 1000

    @property
    def full(self) -> bool:
        """Whether the peer takes no further session."""
        most = _MOST_CHANNELS if self._answer is None else self._answer.field(_CHANNEL_MAX, UShort, 0xFFFF) + 1
        return sum(not each.done for each in self._used.values()) >= most

    # --- what comes

    @property
    def room(self) -> memoryview:
        """Where to receive the next bytes; behind an incomplete frame, which moves to the beginning."""
        if self.stop:
            self.buffer[: self._end - self.stop] = self.buffer[self.stop : self._end]
            self.stop, self._end = 0, self._end - self.stop
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """Take ``count`` bytes that were received into ``room``.

        Raises:
            Violation: the peer broke a rule.
        """
        self._end += count
        for start, end in self.read(self._view, self.stop, self._end):
            self._control(start, end)
        self.arrived.clear()

    def _control(self, at: int, end: int) -> None:
        """Read what is about endpoints, and what is about none that is known here."""
        if at < end and not self._has_header:
            at += len(AMQP_HEADER)
            self._has_header = True
            header = bytes(self._view[at - len(AMQP_HEADER) : at])
            if header != AMQP_HEADER:
                raise Violation(FRAMING_ERROR, f"the header is {header!r}, expected {AMQP_HEADER!r}")
        while at < end:
            size = int.from_bytes(self._view[at : at + 4], "big")
            if not HEAD_BYTES <= size <= self._max_frame_bytes:
                raise Violation(FRAMING_ERROR, f"a frame of {size} bytes, expected 8 to {self._max_frame_bytes}")
            frame = self._view[at : at + size]
            code = performative_code(frame)
            if code is None and 4 * frame[4] != size:
                raise Violation(FRAMING_ERROR, "a frame has no performative that can be read")
            if self._answer is None and code != OPEN:
                raise Violation(ILLEGAL_STATE, "the first frame is no open")
            if code in (TRANSFER, FLOW, DISPOSITION):
                raise Violation(INVALID_FIELD, f"performative 0x{code:02x}: there is no such session or link")
            if code in (OPEN, DETACH, END, CLOSE):
                self._endpoint(code, int.from_bytes(frame[6:8], "big"), read_performative(bytes(frame)))
            at += size

    def _endpoint(self, code: int, channel: int, said: Performative) -> None:
        if code == OPEN:
            self.connection.they(Step.OPENS)
            self._answer = said
        elif code == CLOSE:
            self.connection.they(Step.CLOSES, said.field(0, object, None))
        elif code == DETACH:
            link = self._attached.pop((channel, said.number(0, 0)), None)
            if link is not None:
                link.they(Step.CLOSES, said.field(2, object, None))
        elif (session := self._begun.pop(channel, None)) is not None:
            session.they(Step.CLOSES, said.field(0, object, None))

    def _begin(self, channel: int, begin: Performative) -> IncomingSession | None:
        session = self._used.get(begin.field(0, UShort, 0)) if begin.has(0) else None
        if session is None:
            raise Violation(ILLEGAL_STATE, "the peer begins a session of its own")
        session.they(Step.OPENS)
        self._begun[channel] = session
        counts = session.counts
        counts.outgoing.channel, counts.outgoing.window = session.channel, begin.number(2, 0)
        counts.next_transfer = begin.number(1, 0)
        return counts

    def _attach(self, channel: int, attach: Performative) -> IncomingDeliveries | OutgoingDeliveries | None:
        named = attach.field(0, str, ""), attach.field(2, bool, False)
        links = self._begun[channel].links if channel in self._begun else ()
        link = next((each for each in links if (each.name, each.sends) == named and not each.answer), None)
        if link is None:
            raise Violation(ILLEGAL_STATE, "the peer attaches a link of its own")
        self._attached[channel, attach.number(1, 0)] = link
        return link.attached(attach, self.max_frame_bytes)

    # --- what we say

    def session(self) -> Session:
        """Begin a session."""
        self._used = {channel: each for channel, each in self._used.items() if not each.done}
        channel = next(number for number in range(_MOST_CHANNELS) if number not in self._used)
        counts = IncomingSession(self._session_bytes, self._max_frame_bytes)
        session = self._used[channel] = Session(channel, counts, self._say)
        session.begin()
        return session

    def close(self, condition: Condition | None = None) -> None:
        """Close the connection; it may have been closed."""
        if self.connection.we(Step.CLOSES):
            self._say(0, CLOSE, [condition.encoded] if condition else [])

    def _say(self, channel: int, code: int, fields: list[Any]) -> None:
        self._said += self._due()  # what is settled goes out before a detach
        self._said.append(encode_frame(channel, code, fields))

    def _due(self) -> list[Any]:
        pieces: list[Any] = []
        for session in self._used.values():
            for link in session.links:
                pieces += link.frames()
            pieces.append(session.counts.frames())
        return pieces

    def written(self) -> bytes:
        """Return the bytes that are due; further ones may be due afterwards."""
        said, self._said = self._said, []
        if self.connection.ours is Half.OPEN:  # nothing follows a close
            said += self._due()
        written = b"".join(said)
        self._wrote |= bool(written)
        return written

    def tick(self, now_s: float) -> float:
        """Say that we are there, where the peer has heard nothing for half of its idle time-out.

        Returns:
            When to call again, in seconds of the same clock; 0 for never.
        """
        half_s = self.idle_s / 2
        if not half_s:
            return 0.0
        if self._wrote:
            self._heartbeat_s, self._wrote = now_s + half_s, False
        elif now_s >= self._heartbeat_s:
            self._said.append(EMPTY_FRAME)
            self._heartbeat_s = now_s + half_s
        return self._heartbeat_s
