"""Holds what a client's connection receives, and tells links of ours from those of proton's engine.

::

    socket --recv_into--> buffer --> wire.amqp.engine.incoming_frames --> links that were awaited
                                                                      --> all others: proton's engine

A link is ours from the peer's attach on if its attach was awaited, by its name. Such a link has a session of its own,
and its handle on our side is 0. What belongs to another session never comes here.

Spec: AMQP 1.0 part 2 §2.5.1 (a begin that answers tells our channel), §2.6.1 (the names of links).
"""

from __future__ import annotations

from typing import Final

from spark_streams.client.amqp.sent_messages import SentMessages
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.incoming_frames import IncomingFrames
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.session import IncomingSession
from spark_streams.wire.amqp.performatives import Performative
from spark_streams.wire.amqp.values import UShort

SESSION_BYTES: Final = 64 << 20
"""Bytes that a peer may have under way on one session; the window is this divided by the largest frame."""


class ReceivedFrames(IncomingFrames):
    """The bytes that came on one connection, after SASL.

    Args:
        size: bytes that can be received at once.
        max_frame_bytes: the largest frame.

    Attributes:
        buffer: holds the received bytes.
    """

    def __init__(self, size: int, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self.buffer = bytearray(size + max_frame_bytes)
        self._view = memoryview(self.buffer)
        self._end = 0
        self._awaited: dict[str, IncomingDeliveries | SentMessages] = {}
        self._begun: dict[int, Performative] = {}

    @property
    def room(self) -> memoryview:
        """Where to receive the next bytes; behind an incomplete frame, which moves to the beginning."""
        if self.stop:
            self.buffer[: self._end - self.stop] = self.buffer[self.stop : self._end]
            self.stop, self._end = 0, self._end - self.stop
        return self._view[self._end :]

    def received(self, count: int) -> list[tuple[int, int]]:
        """Take ``count`` bytes that were received into ``room``.

        Returns:
            The ranges of ``buffer`` that are proton's, valid until more is received. An incomplete frame comes with its
            end.

        Raises:
            Violation: the peer broke a rule about a link of ours.
        """
        self._end += count
        others = [(start, end) for start, end in self.read(self._view, self.stop, self._end) if start < end]
        self.arrived.clear()
        return others

    def await_attach(self, name: str, link: IncomingDeliveries | SentMessages) -> None:
        """Have the frames about the link with a name taken by ``link``, from the peer's attach on."""
        self._awaited[name] = link

    def forget(self, name: str) -> None:
        """Forget a link whose session has ended."""
        self._awaited.pop(name, None)

    def written(self) -> bytes:
        """Return the frames that sessions and links have to write."""
        for link in self._receiving.values():
            if link.session.flow_due and link.handle is not None:
                link.flow(0)  # one flow says both
        owners = [link.owner for link in self._sending.values() if link.owner is not None]
        return b"".join([each.frames() for each in (*owners, *self._sessions.values())])

    def _begin(self, channel: int, begin: Performative) -> IncomingSession | None:
        if begin.has(0):  # else the peer begins a session
            self._begun[channel] = begin
        return None

    def _attach(self, channel: int, attach: Performative) -> IncomingDeliveries | OutgoingDeliveries | None:
        begin = self._begun.get(channel)
        link = None if begin is None else self._awaited.pop(attach.field(0, str, ""), None)
        if begin is None or link is None:
            return None
        session = self._sessions[channel] = link.session
        session.outgoing.channel, session.outgoing.window = begin.field(0, UShort, 0), begin.number(2, 0)
        session.next_transfer = begin.number(1, 0)
        if not isinstance(link, IncomingDeliveries):
            return link.attached()
        link.handle, link.delivery_count = 0, attach.number(9, 0)
        return link
