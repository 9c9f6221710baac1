"""Counts a peer's transfers on one session, and writes the flows and dispositions that are due.

The session's window is announced in frames and kept in bytes: messages that have come and are not taken reduce it.

Spec: AMQP 1.0 part 2 §2.5.6 (session flow control), §2.6.7 (link flow control), §2.7.4 (flow), §2.7.6 (disposition).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.engine.outgoing_session import OutgoingSession
from spark_streams.wire.amqp.performatives import DISPOSITION, FLOW, SERIAL, encode_flow, encode_frame
from spark_streams.wire.amqp.values import UInt
from spark_streams.wire.columnar.byte_view import Positions

DECODE_ERROR: Final = "amqp:decode-error"
"""§2.8.15: a performative, or a field of one, cannot be decoded."""
INVALID_FIELD: Final = "amqp:invalid-field"
"""§2.8.15: a delivery-id is missing or another delivery's, or a settled delivery becomes unsettled (§2.7.5)."""
SESSION_INVALID_FIELD: Final = "amqp:session:invalid-field"
"""A delivery-id does not follow the session's last one (§2.7.5); the condition is proton's own."""
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
"""§2.8.17: more transfer frames than the session's incoming window allows (§2.5.6)."""
ILLEGAL_STATE: Final = "amqp:illegal-state"
"""§2.8.15: the peer's frame is not permitted in this state."""
FRAMING_ERROR: Final = "amqp:connection:framing-error"
"""§2.8.16: the bytes are no frames."""
HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
"""§2.8.17: an attach has a handle that a link has (§2.6.2)."""
NOT_ALLOWED: Final = "amqp:not-allowed"
"""§2.8.15: the peer's request is not allowed."""
RESOURCE_LIMIT: Final = "amqp:resource-limit-exceeded"
"""§2.8.15: the peer exceeds a resource limit."""
MESSAGE_TOO_LARGE: Final = "amqp:link:message-size-exceeded"
"""§2.8.18: a message is larger than the link's max-message-size (§2.7.3)."""

_OUTGOING_WINDOW: Final = 0x7FFF_FFFF
"""The outgoing window of begin: only the peer bounds our transfers."""


class Violation(RemoteProtocolError):
    """The peer broke a rule, for which its connection is closed, or its link.

    Args:
        condition: the condition's symbol, one of this module's, which name the clauses.
        description: what was wrong.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class Unfinished:
    """Counts the bytes of messages of which only some frames have come, on all links of a connection.

    Args:
        most: bytes that there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0

    def add(self, more_bytes: int) -> None:
        """Count bytes that have come; a negative number counts bytes that are no longer unfinished.

        Raises:
            Violation: there are more than there may be.
        """
        self._bytes += more_bytes
        if self._bytes > self._most:
            words = f"unfinished messages of the connection have more than {self._most} bytes"
            raise Violation(RESOURCE_LIMIT, words)


class IncomingSession:
    """A session's counts of the peer's transfers, and the frames that it owes the peer.

    Args:
        capacity: bytes that may have come and not been taken.
        frame_bytes: the largest frame; the window is counted in frames of this size.
        outcomes: whether our deliveries are noted until the peer has settled them.
        all_fields: whether frames have all their fields, null ones at their end too.

    Attributes:
        frame_bytes, all_fields: as given.
        outgoing: its counts of our transfers.
        next_transfer: the number of the peer's next transfer frame; its begin says the first.
        next_id: the next delivery-id; None before the first one.
        asked: whether the peer has requested the window.
        owed: the ``IncomingDeliveries`` whose credit the peer should hear of; those without our handle wait for our
            attach.
    """

    def __init__(self, capacity: int, frame_bytes: int, *, outcomes: bool = True, all_fields: bool = False) -> None:
        self.outgoing = OutgoingSession(outcomes=outcomes)
        self.next_transfer = 0
        self.next_id: int | None = None
        self.asked = False
        self.owed: dict[Any, None] = {}
        self.all_fields = all_fields
        self._capacity = capacity
        self.frame_bytes = frame_bytes
        self._held = 0
        self._window = capacity // frame_bytes
        self._low = max(1, self._window // 2)
        self._settled: list[bytes] = []

    @property
    def channel(self) -> int | None:
        """Our channel; None before our begin, and once nothing may be written any more."""
        return self.outgoing.channel

    @property
    def window(self) -> int:
        """Transfer frames that the peer may send, as begin and flows announce."""
        return self._window

    # --- what comes

    def hold(self, more_bytes: int) -> None:
        """Count bytes that have come and are not taken."""
        self._held += more_bytes

    def allows(self, ids: Positions) -> bool:
        """Return whether transfers of whole messages with these delivery-ids keep the rules."""
        if not len(ids):
            return True
        expected = int(ids[0]) if self.next_id is None else self.next_id
        in_order = ids == np.arange(expected, expected + len(ids)) & SERIAL
        return len(ids) <= self._window and bool(in_order.all())

    def count(self, ids: Positions) -> None:
        """Count transfers of whole messages that the session ``allows``."""
        if len(ids):
            self._window -= len(ids)
            self.next_transfer = self.next_transfer + len(ids) & SERIAL
            self.next_id = int(ids[-1]) + 1 & SERIAL

    def count_one(self) -> None:
        """Count a transfer frame.

        Raises:
            Violation: it is more than the window allows.
        """
        if not self._window:
            raise Violation(WINDOW_VIOLATION, "incoming session window exceeded")
        self._window -= 1
        self.next_transfer = self.next_transfer + 1 & SERIAL

    def count_delivery(self, number: int | None) -> int:
        """Count one delivery, and return its delivery-id; ``number`` is the one in its transfer, None if there is none.

        Raises:
            Violation: the session's first delivery has no delivery-id, or the number is out of sequence.
        """
        expected = number if self.next_id is None else self.next_id
        if expected is None:
            raise Violation(INVALID_FIELD, "delivery-id required on initial transfer of session")
        if number is not None and number != expected:
            raise Violation(SESSION_INVALID_FIELD, f"sequencing error, expected delivery-id {expected}, got {number}")
        self.next_id = expected + 1 & SERIAL
        return expected

    # --- what is written

    def settle(self, ids: Positions, outcome: Any = None) -> None:
        """Settle deliveries.

        Args:
            ids: their numbers, in order.
            outcome: their outcome, as ``encode_value`` takes it; None if there is none.
        """
        for first, last in ranges(ids) if self.channel is not None else ():
            self._settled.append(self._frame(DISPOSITION, [True, UInt(first), UInt(last), True, outcome]))

    @property
    def flow_due(self) -> bool:
        """Whether the peer should hear of the window: it has asked, or has used up half of it and may have more."""
        larger = self._window < self._low and (self._capacity - self._held) // self.frame_bytes > self._window
        return self.asked or larger

    @property
    def due(self) -> bool:
        """Whether frames are due."""
        ours = self.outgoing
        owed = self._settled or self.owed or ours.owed or ours.heard
        return self.channel is not None and (self.flow_due or bool(owed))

    def frames(self) -> bytes:
        """Return the due frames: dispositions and flows."""
        if not self.due:
            return b""
        written, self._settled = self._settled, []
        for owed in (self.owed, self.outgoing.owed):
            for link in [each for each in owed if each.handle is not None]:
                del owed[link]
                written.append(self.flow(link.handle, *link.state, drain=link.drain))
        for first, last in self.outgoing.heard:
            written.append(self._frame(DISPOSITION, [False, UInt(first), UInt(last), True]))
        self.outgoing.heard.clear()
        if self.flow_due:
            written.append(self.flow())
        return b"".join(written)

    def flow(self, *link: Any, drain: bool = False) -> bytes:
        """Return a flow.

        Args:
            link: its fields about a link: handle, delivery-count, link-credit, and perhaps available; or nothing.
            drain: the field of this name.
        """
        assert self.channel is not None
        self.asked = False
        # Never less than it was: frames that were allowed may be under way, and the peer may ask at any time (echo).
        self._window = max(self._window, (self._capacity - self._held) // self.frame_bytes)
        numbers = self.next_transfer, self._window, self.outgoing.next_transfer, _OUTGOING_WINDOW
        if not link:
            return self._frame(FLOW, [UInt(number) for number in numbers])
        return encode_flow(self.channel, *numbers, *link, drain=drain, all_fields=self.all_fields)

    def _frame(self, code: int, fields: list[Any]) -> bytes:
        return encode_frame(self.channel or 0, code, fields, all_fields=self.all_fields)

    def end(self) -> None:
        """Note that one side has ended the session: nothing is written any more."""
        self.outgoing.channel = None
        self.owed.clear()
        self._settled.clear()


def ranges(ids: Positions, bits: int = SERIAL) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers as (first, last), both inclusive.

    Args:
        ids: the numbers, in order.
        bits: those that a number has; -1 for numbers that do not begin again at 0, as delivery-ids do.
    """
    if not len(ids):
        return []
    edges = np.flatnonzero((np.diff(ids) & bits) != 1) + 1
    firsts, lasts = ids[np.concatenate(([0], edges))], ids[np.concatenate((edges - 1, [-1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
