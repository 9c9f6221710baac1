"""The bytes for one connection's peer: proton's frames, and between them the door's own about deliveries.

The door's own frames are transfers, flows and dispositions; those of proton begin, attach, detach, end and close. As
proton has no name for a channel or a handle of its own either, it is made to write its begin or attach at once, which
is read.

Spec: AMQP 1.0 part 2 §2.7.2 (begin), §2.7.3 (attach), §2.7.4 (flow), §2.7.6 (disposition).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import proton
import pyarrow as pa

from spark_streams.server.amqp.engine import Engine
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.session import IncomingSession
from spark_streams.wire.amqp.performatives import (
    ACCEPTED,
    ATTACH,
    BEGIN,
    ERROR,
    REJECTED,
    performative_code,
    read_performative,
)
from spark_streams.wire.amqp.values import Described, Symbol, ULong
from spark_streams.wire.columnar.byte_view import Positions

_ACCEPTED: Final = Described(ULong(ACCEPTED), [])


class OutgoingFrames:
    """What is to be written on one connection.

    Args:
        engine: the connection's engine.

    Attributes:
        all_fields: whether the door writes fields at the end of performatives that say nothing.
    """

    all_fields: ClassVar[bool] = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready: list[bytes | pa.Buffer] = []

    def output(self) -> bytes | None:
        """Take bytes for the peer.

        Returns:
            Bytes; empty when nothing is pending now, None when nothing ever will be.
        """
        if self._ready:
            ready = b"".join(self._ready)
            self._ready.clear()
            return ready
        return self._proton_output()

    def _proton_output(self) -> bytes | None:
        """Take what proton has to write, as ``output`` does."""
        return self._engine.output()

    # --- what proton writes

    def begin(self, session: IncomingSession, opened: Any) -> None:
        """Open a ``proton.Session``, and learn its channel."""
        self._end_frame()
        opened.open()
        frame = self._emitted(BEGIN)
        if frame is not None:
            session.outgoing.channel = int.from_bytes(frame[6:8], "big")

    def open(self, deliveries: IncomingDeliveries, link: Any) -> None:
        """Open a link (a C pointer) on which the peer sends, and learn its handle."""
        deliveries.handle = self._attach(proton.Link.wrap(link))

    def open_sender(self, deliveries: OutgoingDeliveries, link: proton.Link) -> None:
        """Open a link on which the door sends, and learn its handle."""
        presettled: bool = link.snd_settle_mode == proton.Link.SND_SETTLED
        handle = self._attach(link)
        deliveries.open(
            handle,
            self._queue,
            self._engine.transport.remote_max_frame_size,
            presettled=presettled,
            all_fields=self.all_fields,
        )

    def _attach(self, link: proton.Link) -> int | None:
        self._end_frame()
        link.open()
        frame = self._emitted(ATTACH)
        return None if frame is None else int(read_performative(frame).number(1, 0))

    def _emitted(self, code: int) -> bytes | None:
        """Queue the whole frames that proton has to write, when before it had none; return the one with a code."""
        written, found, at = b"".join(iter(lambda: self._proton_output() or b"", b"")), None, 0
        self._ready.append(written)
        while at < len(written):
            end = at + int.from_bytes(written[at : at + 4], "big")
            if performative_code(written[at:end]) == code:
                found = written[at:end]
            at = end
        return found

    def _end_frame(self) -> None:
        """Take all that proton has to write, so that a frame has just ended."""
        while output := self._proton_output():
            self._ready.append(output)

    # --- what the door writes

    def _queue(self, frames: bytes | pa.Buffer) -> None:
        if self._engine.writes:  # no frame may follow a close
            self._end_frame()
            self._ready.append(frames)

    def accept(self, session: IncomingSession, ids: Positions) -> None:
        """Settle deliveries as accepted."""
        session.settle(ids, _ACCEPTED)
        self.answer(session)

    def reject(self, session: IncomingSession, number: int, refusal: LinkRefused) -> None:
        """Settle a delivery as rejected, with a reason."""
        info = {Symbol(key): value for key, value in refusal.info.items()} if refusal.info else None
        error = Described(ULong(ERROR), [Symbol(refusal.name), refusal.description, info])
        session.settle(np.array([number]), Described(ULong(REJECTED), [error]))
        self.answer(session)

    def answer(self, session: IncomingSession) -> None:
        """Write what a session owes the peer: its window, the state of links, and what is settled here."""
        if session.due:
            self._queue(session.frames())
