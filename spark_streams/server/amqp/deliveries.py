"""The deliveries that producers send on one connection: their numbers, the window and credit, and what has come.

proton knows the sessions and links, and none of their transfers, as it has an object and several calls for each. So
what AMQP counts on the receiving side is counted here: transfer frames and delivery-ids of a session, deliveries and
credit of a link. ``outgoing_deliveries.py`` is the sending side.

Spec: AMQP 1.0 part 2 §2.5.6 (session flow control), §2.6.7 (flow control), §2.6.12 (transferring a message), §2.6.14
(aborting).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.server.amqp.error_conditions import INVALID_FIELD, MESSAGE_TOO_LARGE, LinkRefused
from spark_streams.server.amqp.outgoing_deliveries import OutgoingSession
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.performatives import SERIAL, Performative
from spark_streams.wire.columnar.byte_view import Mask, Positions

SETTLED: Final = -1
"""In the place of the delivery-id of a message that the peer sent settled."""
_OWN_BYTES: Final = 48
"""What a message that waits takes beside its bytes: the head of its frame, and its places and delivery-id."""
WINDOW_VIOLATION: Final = "amqp:session:window-violation"
SESSION_INVALID_FIELD: Final = "amqp:session:invalid-field"


class Violation(Exception):
    """The peer broke a rule of sessions or transfers, for which its connection is closed.

    Args:
        condition: the condition's symbol.
        description: what was wrong.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(condition, description)
        self.condition = condition
        self.description = description


class Messages(NamedTuple):
    """Whole messages in one piece of memory.

    Args:
        memory: the bytes; those between the messages mean nothing.
        starts, ends: where each message lies, the end exclusive.
        ids: their delivery-ids, ``SETTLED`` for those that the peer has settled.
        formats: their message formats; None: all have format 0, that of AMQP's messages.
    """

    memory: NDArray[np.uint8]
    starts: Positions
    ends: Positions
    ids: Positions
    formats: Positions | None = None

    @property
    def sizes(self) -> Positions:
        """The bytes of memory of each message."""
        return self.ends - self.starts + _OWN_BYTES

    @property
    def block(self) -> MessageBlock:
        """The messages, without their ids."""
        return MessageBlock(self.memory, self.starts, self.ends)

    def rows(self, rows: slice | Mask) -> Messages:
        """Return some of the messages."""
        formats = None if self.formats is None else self.formats[rows]
        return Messages(self.memory, self.starts[rows], self.ends[rows], self.ids[rows], formats)


_NO_PLACES: Final = np.zeros(0, np.int64)


def _joined(pieces: list[Messages]) -> Messages:
    """Return the messages of all pieces, with no more memory than from the first to the last one of each piece."""
    if not pieces:
        return Messages(np.zeros(0, np.uint8), _NO_PLACES, _NO_PLACES, _NO_PLACES)
    firsts = [int(piece.starts[0]) for piece in pieces]
    memories = [piece.memory[first : int(piece.ends[-1])] for first, piece in zip(firsts, pieces, strict=True)]
    places = np.cumsum([0, *(len(memory) for memory in memories[:-1])]).tolist()
    moved = [place - first for place, first in zip(places, firsts, strict=True)]
    if len(pieces) == 1:
        (piece,) = pieces
        return Messages(memories[0], piece.starts + moved[0], piece.ends + moved[0], piece.ids, piece.formats)
    formats = None
    if any(piece.formats is not None for piece in pieces):
        formats = np.concatenate(
            [np.zeros(len(piece.ids), np.int64) if piece.formats is None else piece.formats for piece in pieces]
        )
    return Messages(
        np.concatenate(memories),
        np.concatenate([piece.starts + by for piece, by in zip(pieces, moved, strict=True)]),
        np.concatenate([piece.ends + by for piece, by in zip(pieces, moved, strict=True)]),
        np.concatenate([piece.ids for piece in pieces]),
        formats,
    )


class IncomingSession:
    """What a session counts of the peer's transfers.

    Args:
        next_transfer: the number of the peer's first transfer frame, from its begin.
        capacity: bytes that may have come and not been taken.
        frame_bytes: the largest frame; the window is counted in frames of this size.
        outgoing: what it counts of the door's transfers.

    Attributes:
        outgoing: what the session counts of the door's transfers.
        channel: the door's channel; None before the door's begin.
        next_transfer: the number of the next transfer frame.
        flow_due: whether the peer should hear of a larger window, or has asked for it.
    """

    def __init__(self, next_transfer: int, capacity: int, frame_bytes: int, outgoing: OutgoingSession) -> None:
        self.outgoing = outgoing
        self.channel: int | None = None
        self.next_transfer = next_transfer
        self.flow_due = False
        self._capacity = capacity
        self._frame_bytes = frame_bytes
        self._held = 0
        self._window = self._most = capacity // frame_bytes
        self._next_id: int | None = None

    def announce(self) -> int:
        """Return the window that a flow tells the peer."""
        self.flow_due = False
        # Never less than it was: frames that were allowed may be under way, and the peer may ask at any time (echo).
        self._window = max(self._window, (self._capacity - self._held) // self._frame_bytes)
        return self._window

    def hold(self, more_bytes: int) -> None:
        """Count bytes that have come and are not taken."""
        self._held += more_bytes
        self._open_window()

    def allows(self, ids: Positions) -> bool:
        """Return whether transfers of whole messages with these delivery-ids keep the rules."""
        if not len(ids):
            return True
        expected = int(ids[0]) if self._next_id is None else self._next_id
        in_order = np.array_equal(ids, expected + np.arange(len(ids)) & SERIAL)
        return in_order and len(ids) <= self._window

    def count(self, ids: Positions) -> None:
        """Count transfers of whole messages that the session ``allows``."""
        if len(ids):
            self._count_frames(len(ids))
            self._next_id = int(ids[-1]) + 1 & SERIAL

    def count_one(self) -> None:
        """Count a transfer frame.

        Raises:
            Violation: it is more than the window allows.
        """
        if not self._window:
            raise Violation(WINDOW_VIOLATION, "incoming session window exceeded")
        self._count_frames(1)

    def _count_frames(self, count: int) -> None:
        self._window -= count
        self.next_transfer = self.next_transfer + count & SERIAL
        self._open_window()

    def next_id(self, number: int | None) -> int:
        """Count one delivery, and return its delivery-id; ``number`` is what its transfer says, None for nothing.

        Raises:
            Violation: it has none and is the session's first one, or does not follow.
        """
        if number is None and self._next_id is None:
            raise Violation(INVALID_FIELD, "delivery-id required on initial transfer of session")
        expected = number if self._next_id is None else self._next_id
        assert expected is not None
        if number is not None and number != expected:
            raise Violation(SESSION_INVALID_FIELD, f"sequencing error, expected delivery-id {expected}, got {number}")
        self._next_id = expected + 1 & SERIAL
        return expected

    def _open_window(self) -> None:
        if self._window < max(1, self._most // 2):
            self.flow_due |= max(0, self._capacity - self._held) // self._frame_bytes > self._window


class Deliveries:
    """The deliveries of one link on which the peer sends.

    Args:
        session: the link's session.
        delivery_count: the peer's initial delivery-count.
        max_message_bytes: the largest message that is accepted.

    Attributes:
        session: the link's session.
        owner: the ``ProducerLink`` that takes the messages; while there is none they are dropped.
        handle: the door's handle; None before the door's attach.
        delivery_count, credit: what a flow tells the peer; the credit is below 0 if the peer sent more than it may.
        begun: the bytes of a message of which only some frames have come.
        refusal: why the link must end after the messages that have come, or None.
        max_message_bytes: the largest message that is accepted.
        rejects_large: whether a message that is too large is rejected; otherwise it ends the link.
    """

    def __init__(self, session: IncomingSession, delivery_count: int, max_message_bytes: int) -> None:
        self.session = session
        self.owner: Any = None
        self.handle: int | None = None
        self.delivery_count = delivery_count
        self.credit = 0
        self.begun = bytearray()
        self.refusal: LinkRefused | None = None
        self.rejects_large = False
        self._rejected: dict[int, LinkRefused] = {}
        self._messages: deque[Messages] = deque()
        self.max_message_bytes = max_message_bytes
        self._begun_id: int | None = None
        self._begun_settled = False
        self._begun_format = 0
        self._begun_bytes = 0

    # --- what comes

    def on_whole(self, messages: Messages) -> None:
        """Take whole messages, whose frames and delivery-ids the session has counted."""
        self._count(len(messages.ids))
        if self.owner is None or self.refusal is not None:
            return
        sizes = messages.ends - messages.starts
        for row in np.flatnonzero(sizes > self.max_message_bytes).tolist():
            if not self._reject(int(messages.ids[row]), int(sizes[row])):
                messages, sizes = messages.rows(slice(0, row)), sizes[:row]
                break
        if self._rejected:
            messages = messages.rows(sizes <= self.max_message_bytes)
        if len(messages.ids):
            self._add(messages)

    def on_transfer(self, transfer: Performative) -> None:
        """Take a transfer of any form.

        Raises:
            Violation: the peer exceeded the session's window, or a number is out of sequence.
            RemoteProtocolError: a field has a wrong type.
        """
        number = transfer.number(1, None)
        settled, more, aborted = (transfer.field(index, bool, False) for index in (4, 5, 9))
        unsettles = transfer.has(4) and not settled
        payload = memoryview(transfer.raw)[transfer.payload :]
        self.session.count_one()
        if not self.is_begun:
            if number is None and more:
                raise Violation(INVALID_FIELD, "delivery-id required for transfer")
            self._begun_id, self._begun_settled = self.session.next_id(number), False
            self._begun_format, self._begun_bytes = transfer.number(3, 0), 0
            self._count(1)
        elif number is not None and number != self._begun_id:
            raise Violation(INVALID_FIELD, "invalid delivery-id for a continuation transfer")
        elif unsettles and self._begun_settled:
            raise Violation(INVALID_FIELD, "invalid transition from settled to unsettled")
        assert self._begun_id is not None
        self._begun_settled |= settled
        if self.owner is not None and self.refusal is None and not aborted:
            number = SETTLED if self._begun_settled else self._begun_id
            self._begun_bytes += len(payload)
            if self._begun_bytes > self.max_message_bytes:
                self.begun = bytearray()
                if not more or not self.rejects_large:
                    self._reject(number, self._begun_bytes)
            else:
                self.begun += payload
                if not more:
                    # The memory is handed over as it is: a message may come in thousands of frames.
                    memory, end = np.frombuffer(self.begun, np.uint8), len(self.begun)
                    formats = np.array([self._begun_format]) if self._begun_format else None
                    self._add(Messages(memory, np.zeros(1, np.int64), np.array([end]), np.array([number]), formats))
        if aborted or not more:
            self.begun = bytearray()  # with aborted, the peer takes back what it began (AMQP 1.0 part 2 §2.6.14)
            self._begun_id = None

    def on_flow(self, flow: Performative) -> None:
        """Read the peer's flow: deliveries that it skipped used up credit.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if flow.field(9, bool, False):
            self.session.outgoing.owed[self] = None
        skipped = flow.number(5, self.delivery_count) - self.delivery_count & SERIAL
        if 0 < skipped <= SERIAL >> 1:
            self._count(skipped)

    @property
    def is_begun(self) -> bool:
        """Whether some frames of a message have come, and its last one has not."""
        return self._begun_id is not None

    def _count(self, count: int) -> None:
        self.delivery_count = self.delivery_count + count & SERIAL
        self.credit -= count

    def _reject(self, number: int, size: int) -> bool:
        """Note that a message is too large; return False if the link must end, since nothing else says it."""
        if self.rejects_large and number != SETTLED:
            self._rejected[number] = LinkRefused(
                MESSAGE_TOO_LARGE,
                f"The received message (delivery-id:{int(number)}, size:{size} bytes) exceeds the limit "
                f"({self.max_message_bytes} bytes) currently allowed on the link.",
            )
            return True
        self.refusal = LinkRefused(
            MESSAGE_TOO_LARGE,
            f"a message of more than {self.max_message_bytes} bytes, this node's max-message-size, was sent",
        )
        return False

    def _add(self, messages: Messages) -> None:
        self._messages.append(messages)
        self.session.hold(int(messages.sizes.sum()))

    # --- for the link that takes them

    def take_rejected(self) -> dict[int, LinkRefused]:
        """Take the messages that were too large: delivery-id to why each is rejected."""
        rejected, self._rejected = self._rejected, {}
        return rejected

    def take(self, max_rows: int, max_bytes: int) -> Messages:
        """Take messages in their order: at most ``max_rows``, of about ``max_bytes``, and at least one if there is."""
        taken: list[Messages] = []
        while self._messages and max_rows > 0 and max_bytes > 0:
            messages = self._messages.popleft()
            sizes = np.cumsum(messages.sizes)
            count = min(len(sizes), max_rows, int(np.searchsorted(sizes, max_bytes)) + 1)
            if count < len(sizes):
                self._messages.appendleft(messages.rows(slice(count, None)))
                messages = messages.rows(slice(0, count))
            taken.append(messages)
            size = int(sizes[count - 1])
            max_rows -= count
            max_bytes -= size
            self.session.hold(-size)
        return _joined(taken)

    @property
    def waiting(self) -> bool:
        """Whether there are messages that nobody has taken."""
        return bool(self._messages)

    def drop(self) -> None:
        """Drop what has come, and what still comes."""
        self.owner = None
        self.session.hold(-sum(int(messages.sizes.sum()) for messages in self._messages))
        self._messages.clear()
        self.begun = bytearray()


def ranges(ids: Positions) -> list[tuple[int, int]]:
    """Return the runs of consecutive delivery-ids as (first, last), both inclusive."""
    if not len(ids):
        return []
    edges = np.flatnonzero((np.diff(ids) & SERIAL) != 1) + 1
    firsts, lasts = ids[np.concatenate(([0], edges))], ids[np.concatenate((edges - 1, [-1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def delivery_ids(ids: Positions, settled: Mask) -> Positions:
    """Return delivery-ids with ``SETTLED`` in the place of those that are settled."""
    return np.where(settled, SETTLED, ids) if settled.any() else ids
