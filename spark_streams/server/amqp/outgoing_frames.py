"""The bytes for one connection's peer: proton's frames, and between them the door's own about producers' deliveries.

The door's own frames are the dispositions of what producers sent, and flows. Only proton knows what the door has sent
on a session, so it is made to write a flow of the session whenever one is due, and the numbers of the receiving side
are put into that.

Spec: AMQP 1.0 part 2 §2.7.4 (flow), §2.7.6 (disposition).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import proton
from cproton_ffi import lib

from spark_streams.server.amqp.deliveries import Deliveries, IncomingSession, ranges
from spark_streams.server.amqp.engine import Engine
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.wire.amqp.performatives import (
    ACCEPTED,
    DISPOSITION,
    ERROR,
    FLOW,
    REJECTED,
    encode_frame,
    performative_code,
    read_performative,
)
from spark_streams.wire.amqp.values import Described, Symbol, UInt, ULong
from spark_streams.wire.columnar.byte_view import Positions

_LINK_FIELDS: Final = 4
"""The fields of a flow before those of a link."""
_ACCEPTED: Final = Described(ULong(ACCEPTED), [])


class OutgoingFrames:
    """What is to be written on one connection.

    Args:
        engine: the connection's engine.
        session_bytes: the capacity of a session, see ``AmqpConfig``.
    """

    def __init__(self, engine: Engine, session_bytes: int) -> None:
        self._engine = engine
        self._session_bytes = session_bytes
        self._ready: list[bytes] = []

    def output(self) -> bytes | None:
        """Take bytes for the peer.

        Returns:
            Bytes; empty when nothing is pending now, None when nothing ever will be.
        """
        if self._ready:
            ready = b"".join(self._ready)
            self._ready.clear()
            return ready
        return self._engine.output()

    def open(self, deliveries: Deliveries, link: Any) -> None:
        """Learn the channel and the handle of a link (a C pointer) that proton has just opened."""
        self._end_frame()
        lib.pn_link_flow(link, 1)  # the only credit that proton ever knows of
        for frame in self._emitted():
            if performative_code(frame) == FLOW:
                deliveries.session.channel = int.from_bytes(frame[6:8], "big")
                deliveries.handle = read_performative(frame).field(_LINK_FIELDS, UInt, None)
            else:
                self._ready.append(frame)

    def flow(self, session: IncomingSession, deliveries: Deliveries | None = None) -> None:
        """Tell the peer the session's window, and a link's credit."""
        if not self._open or session.impl is None:
            return
        self._end_frame()
        lib.pn_session_set_incoming_capacity(session.impl, self._session_bytes)  # proton writes a flow after this
        link: list[Any] = []
        if deliveries is not None and deliveries.handle is not None:
            numbers = deliveries.handle, deliveries.delivery_count, max(0, deliveries.credit)
            link = [*(UInt(number) for number in numbers), None, False]
        self._take_flows(session, lambda _: link)

    def drained(self, session: IncomingSession, link: Any) -> None:
        """Give back the credit of a draining receiver (a C pointer), see ``pn_link_drained``."""
        if not session.moved:
            lib.pn_link_drained(link)
            return
        self._end_frame()
        lib.pn_link_drained(link)
        self._take_flows(session, lambda fields: fields)

    def _take_flows(self, session: IncomingSession, of_link: Callable[[list[Any]], list[Any]]) -> None:
        """Have the session's flows that proton writes now tell the receiving side's numbers.

        Args:
            session: the session.
            of_link: a flow's fields from the link's handle on to those that are written.
        """
        for frame in self._emitted():
            if performative_code(frame) != FLOW:
                self._ready.append(frame)
                continue
            channel, read = int.from_bytes(frame[6:8], "big"), read_performative(frame)
            fields = [read.field(index, object, None) for index in range(len(read.places))]
            session.channel = channel
            ours = [UInt(session.next_transfer), UInt(session.announce()), *fields[2:_LINK_FIELDS]]
            self._ready.append(encode_frame(channel, FLOW, [*ours, *of_link(fields[_LINK_FIELDS:])]))

    def accept(self, session: IncomingSession, ids: Positions) -> None:
        """Settle deliveries as accepted."""
        self._settle(session, ranges(ids), _ACCEPTED)

    def reject(self, session: IncomingSession, number: int, refusal: LinkRefused) -> None:
        """Settle a delivery as rejected, with a reason."""
        info = {Symbol(key): value for key, value in refusal.info.items()} if refusal.info else None
        error = Described(ULong(ERROR), [Symbol(refusal.name), refusal.description, info])
        self._settle(session, [(number, number)], Described(ULong(REJECTED), [error]))

    def _settle(self, session: IncomingSession, runs: list[tuple[int, int]], outcome: Described) -> None:
        if session.channel is None or not self._open:
            return
        self._end_frame()
        for first, last in runs:
            fields = [True, UInt(first), UInt(last), True, outcome]
            self._ready.append(encode_frame(session.channel, DISPOSITION, fields))

    @property
    def _open(self) -> bool:
        """Whether the connection is not closed on the door's side: no frame may follow a close."""
        return not self._engine.connection.state & proton.Endpoint.LOCAL_CLOSED

    def _end_frame(self) -> None:
        """Take all that proton has to write, so that a frame has just ended."""
        while output := self._engine.output():
            self._ready.append(output)

    def _emitted(self) -> list[bytes]:
        """Return the whole frames that proton has to write, when before it had none."""
        written, frames, at = b"".join(iter(lambda: self._engine.output() or b"", b"")), [], 0
        while at < len(written):
            end = at + int.from_bytes(written[at : at + 4], "big")
            frames.append(written[at:end])
            at = end
        return frames
