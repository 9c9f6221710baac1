"""What a peer sends to a door that speaks AMQP 1.0: every session and link that it begins is the door's.

::

    received bytes --> wire.amqp.engine.incoming_frames --> sessions, IncomingDeliveries, OutgoingDeliveries
                                                        --> all others --> proton's engine, in their order

Begin and attach go to proton one at a time, as proton has no name for the place of a session or a link in the peer's
frames: so the event that follows is known to be that frame's. A frame about a session or a link that the peer has not
begun or attached is proton's, which has words for it.

Spec: AMQP 1.0 part 2 §2.4.5 (idle time-out), §2.7.2 (begin), §2.7.3 (attach).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_streams.server.amqp.config import LinkConfig
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.incoming_frames import IncomingFrames
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.outgoing_session import OutgoingSession
from spark_streams.wire.amqp.engine.session import IncomingSession, Unfinished
from spark_streams.wire.amqp.performatives import Performative
from spark_streams.wire.amqp.transfer_frames import HEAD_BYTES

EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"


class IncomingLinks(IncomingFrames):
    """The bytes that come on one connection of a door, after SASL.

    Args:
        config: the door's settings.
        outcomes: whether the door needs to know what becomes of what it sends.
        all_fields: whether it writes fields at the end of performatives that say nothing.

    Attributes:
        attach: the attach that was given to proton last.
        begun: the session of the begin that was given to proton last.
        attached: the deliveries of the attach that was given to proton last; None for a link on which the door sends.
        attached_sender: the same for such a link; None for one on which the peer sends.
    """

    def __init__(self, config: LinkConfig, *, outcomes: bool = True, all_fields: bool = False) -> None:
        super().__init__(config.max_frame_bytes)
        self.attach: Performative | None = None
        self.begun: IncomingSession | None = None
        self.attached: IncomingDeliveries | None = None
        self.attached_sender: OutgoingDeliveries | None = None
        self._config = config
        self._outcomes = outcomes
        self._all_fields = all_fields
        self._unfinished = Unfinished(config.session_bytes)
        self._rest = bytearray()
        self._needed = HEAD_BYTES

    def received(self, data: bytes) -> Iterator[bytes | memoryview]:
        """Take bytes from the peer, and yield those that are proton's, as they become due.

        Whoever takes them asks for no more once proton takes no more, and may rest before going on where they are
        empty. Proton hears at least an empty frame, so that it knows that the peer is not silent.

        Raises:
            Violation: the peer broke a rule about transfers.
        """
        given = False
        if self._rest:
            self._rest += data
            data = bytes(self._rest) if len(self._rest) >= self._needed else b""
        if data:
            view = memoryview(data)
            for first, end in self.read(view, 0, len(data)):
                given |= end > first
                yield view[first:end]
            self._rest = bytearray(view[self.stop :])
            framed = self._started and len(self._rest) >= 4
            self._needed = int.from_bytes(self._rest[:4], "big") if framed else HEAD_BYTES
        if self._started and not given:
            yield EMPTY_FRAME

    def _begin(self, channel: int, begin: Performative) -> IncomingSession:
        config, outgoing = self._config, OutgoingSession(begin.number(2, 0), outcomes=self._outcomes)
        self.begun = IncomingSession(
            config.session_bytes, config.max_frame_bytes, begin.number(1, 0), outgoing, all_fields=self._all_fields
        )
        return self.begun

    def _attach(self, channel: int, attach: Performative) -> IncomingDeliveries | OutgoingDeliveries | None:
        session = self._sessions.get(channel)
        if session is None:
            return None
        self.attach = attach
        self.attached = self.attached_sender = None
        if attach.field(2, bool, False):
            self.attached_sender = OutgoingDeliveries(session.outgoing)
            return self.attached_sender
        largest = self._config.max_message_bytes
        self.attached = IncomingDeliveries(session, largest, self._unfinished, attach.number(9, 0))
        return self.attached
