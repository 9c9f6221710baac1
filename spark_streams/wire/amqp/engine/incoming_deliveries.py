"""The deliveries of one link on which a peer sends: its credit, the messages that have come, and what is settled.

Counts of a whole session are in ``session.py``. Messages stay in columns: many in one piece of memory, as they came; a
message of several frames has memory of its own.

Spec: AMQP 1.0 part 2 §2.6.7 (flow control), §2.6.12 (transferring a message), §2.6.14 (aborting), §2.7.5 (transfer).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.engine.messages import OWN_BYTES, SETTLED, Begun, Messages, joined
from spark_streams.wire.amqp.engine.session import (
    INVALID_FIELD,
    MESSAGE_TOO_LARGE,
    IncomingSession,
    Unfinished,
    Violation,
)
from spark_streams.wire.amqp.part_head import PartHead
from spark_streams.wire.amqp.performatives import ACCEPTED, RELEASED, SERIAL, Performative
from spark_streams.wire.amqp.values import Described, ULong
from spark_streams.wire.columnar.byte_view import Positions

ACCEPT: Final = Described(ULong(ACCEPTED), [])
RELEASE: Final = Described(ULong(RELEASED), [])
"""The outcome of messages that were not read: they stay where they are, for other receivers."""
_ZERO: Final = np.zeros(1, np.int64)


class IncomingDeliveries:
    """The deliveries of one link on which the peer sends.

    Args:
        session: the link's session.
        max_message_bytes: the largest message that is taken.
        unfinished: counts the bytes of incomplete messages; None where nothing bounds them.

    Attributes:
        session: the link's session.
        owner: the object that takes the messages; without one they are dropped.
        handle: our handle; None before our attach, and after the peer's detach.
        delivery_count, credit: what a flow tells the peer; the credit is below 0 if the peer sent more than it may.
        max_message_bytes: the largest message that is taken.
        rejects_large: whether a message that is too large is rejected; otherwise it is the link's ``fault``.
        fault: the rule that the peer broke after the messages that have come; None if there is none.
        kept_bytes: the number of bytes that are kept of a message, at most; None for all.
        received: bytes of all messages that have come, those of an incomplete one included.
        in_parts: whether the last message that came, or is coming, has several frames.
        proof: checks the first message that comes, and raises an error unless it is one of a log; until then the peer
            gets one credit. None where nothing, or nothing more, has to be proven.
        available: deliveries that the peer has beyond those it sent, by its latest flow; None before one that says so.
    """

    def __init__(
        self,
        session: IncomingSession,
        max_message_bytes: int,
        unfinished: Unfinished | None = None,
    ) -> None:
        self.session = session
        self.owner: Any = None
        self.handle: int | None = None
        self.delivery_count = 0
        self.credit = 0
        self.max_message_bytes = max_message_bytes
        self.rejects_large = False
        self.fault: Violation | None = None
        self.kept_bytes: int | None = None
        self.received = 0
        self.in_parts = False
        self.proof: Callable[[MessageBlock], None] | None = None
        self.available: int | None = None
        self._messages: deque[Messages] = deque()
        self._rejected: dict[int, int] = {}
        self._returned = 0
        self._drain = False
        self._unsettled: int | None = None
        self._begun = Begun(unfinished)
        self._begun_id: int | None = None
        self._begun_settled = False
        self._begun_bytes = self._format = 0
        self._first: PartHead | None = None
        self._part: PartHead | None = None

    # --- credit

    @property
    def queued(self) -> int:
        """Deliveries that have come, at least in part, and were not taken."""
        return sum([len(messages.ids) for messages in self._messages]) + self.is_begun

    @property
    def granted(self) -> int:
        """Granted deliveries that were not taken, including those that have come."""
        return self.credit + self.queued

    def flow(self, credit: int) -> None:
        """Grant further deliveries; the session's next frames tell the peer."""
        self.credit += credit
        self.session.owed[self] = None

    @property
    def state(self) -> tuple[int, int]:
        """The delivery-count and the link-credit to send to the peer."""
        return self.delivery_count, max(0, self.credit if self.proof is None else min(1, self.credit))

    @property
    def drain(self) -> bool:
        """Whether the peer shall give back the credit that it has no deliveries for."""
        return self._drain

    @drain.setter
    def drain(self, drain: bool) -> None:
        self._drain = drain
        if drain:
            self.flow(0)

    @property
    def draining(self) -> bool:
        """Whether the peer still owes deliveries or credit in answer to a drain."""
        return self._drain and self.credit > 0

    def take_returned(self) -> int:
        """Return the credit that the peer gave back since the last call, as it had nothing more."""
        returned, self._returned = self._returned, 0
        return returned

    # --- what comes

    def on_flow(self, flow: Performative) -> None:
        """Read the peer's flow of the link: the deliveries that it skipped used up credit.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if flow.field(9, bool, False):
            self.flow(0)
        self.available = flow.number(7, self.available)
        skipped = flow.number(5, self.delivery_count) - self.delivery_count & SERIAL
        if 0 < skipped <= SERIAL >> 1:
            self._count(skipped)
            if self.proof is not None:
                self.credit = 0  # the one credit that comes back unproven counts for all credit that was held back
            self._returned += skipped

    def on_whole(self, messages: Messages) -> None:
        """Take whole messages, whose frames and delivery-ids the session has counted."""
        self._count(len(messages.ids))
        self.in_parts = False
        sizes = messages.ends - messages.starts
        self.received += int(sizes.sum())
        if self.owner is None or self.fault is not None:
            return
        if self.kept_bytes is not None and int(sizes.max()) > self.kept_bytes:
            messages = messages.heads(self.kept_bytes)
        elif self.kept_bytes is None and self.max_message_bytes < self.session.frame_bytes:
            messages = self._without_large(messages, sizes)
        if not len(messages.ids):
            return
        if self._unsettled is None and messages.ids.max() != SETTLED:
            self._unsettled = int(messages.ids[(messages.ids != SETTLED).argmax()])
        self._add(messages)

    def on_transfer(self, transfer: Performative) -> None:
        """Take a transfer of any form.

        Raises:
            Violation: the peer exceeded the session's window, or a number is out of sequence.
            RemoteProtocolError: a field has a wrong type.
        """
        number, _ = transfer.number(1, None), transfer.field(2, bytes, None)
        settled, more, aborted = (transfer.field(index, bool, False) for index in (4, 5, 9))
        self._part = PartHead.of(transfer)
        if not self.is_begun:
            self._first, self._format = self._part, transfer.number(3, 0)
        elif transfer.has(4) and not settled and self._begun_settled:
            raise Violation(INVALID_FIELD, "invalid transition from settled to unsettled")
        self._on_part(memoryview(transfer.raw)[transfer.payload :], number, settled, more=more, aborted=aborted)

    def on_same(self, frame: memoryview) -> bool:
        """Take a part by what it has in common with an earlier part; return False if it must be decoded.

        Raises:
            Violation: as for ``on_transfer``.
        """
        part, more = self._part, True
        if self._begun_id is None:
            part = self._part = None if self._first is None else self._first.following(frame)
            self._first = part or self._first
        elif part is not None:
            goes_on = part.goes_on(frame)
            part, more = (None, True) if goes_on is None else (part, goes_on)
        if part is None:
            return False
        self._on_part(frame[4 + len(part.head) :], part.number, part.settled, more=more, aborted=False)
        return True

    @property
    def is_begun(self) -> bool:
        """Whether some frames of a message have come, and its last one has not."""
        return self._begun_id is not None

    def _on_part(self, payload: memoryview, number: int | None, settled: bool, *, more: bool, aborted: bool) -> None:
        self.session.count_one()
        self.in_parts = more or self._begun_id is not None
        if self._begun_id is None:
            if number is None and more:
                raise Violation(INVALID_FIELD, "delivery-id required for transfer")
            self._begun_id, self._begun_settled = self.session.count_delivery(number), False
            self._count(1)
        elif number is not None and number != self._begun_id:
            raise Violation(INVALID_FIELD, "invalid delivery-id for a continuation transfer")
        self._begun_settled |= settled
        self.received += len(payload)
        self._begun_bytes += len(payload)
        if self.owner is not None and self.fault is None and not aborted:
            self._keep(payload, SETTLED if self._begun_settled else self._begun_id, more=more)
        if aborted or not more:  # with aborted, the peer takes back the message that it began
            self._begun.clear()
            self._begun_id, self._begun_bytes = None, 0

    def _keep(self, payload: memoryview, number: int, *, more: bool) -> None:
        if self.kept_bytes is not None:
            payload = payload[: max(0, self.kept_bytes - len(self._begun))]
        elif self._begun_bytes > self.max_message_bytes:
            self._begun.clear()
            if not more or not self.rejects_large:
                self._too_large(number, self._begun_bytes)
            return
        self._begun.add(payload)
        if not more:
            if self._unsettled is None and number != SETTLED:
                self._unsettled = number
            memory = self._begun.whole()
            formats = np.array([self._format]) if self._format else _ZERO
            self._add(Messages(memory, _ZERO, np.array([len(memory)]), np.array([number]), formats))

    def _count(self, count: int) -> None:
        self.delivery_count = self.delivery_count + count & SERIAL
        self.credit -= count

    def _without_large(self, messages: Messages, sizes: Positions) -> Messages:
        """Return the messages that are not too large; none after one for which the link must end."""
        large = sizes > self.max_message_bytes
        for row in np.flatnonzero(large).tolist():
            if not self._too_large(int(messages.ids[row]), int(sizes[row])):
                return messages.rows(slice(0, row)).rows(~large[:row])
        return messages.rows(~large)

    def _too_large(self, number: int, size: int) -> bool:
        """Note that a message is too large; return False if only the end of the link can report it."""
        rejects = self.rejects_large and number != SETTLED
        if rejects:
            self._rejected[number] = size
        else:
            words = f"a message of more than {self.max_message_bytes} bytes, this link's max-message-size, was sent"
            self.fault = Violation(MESSAGE_TOO_LARGE, words)
        return rejects

    def _add(self, messages: Messages) -> None:
        self._messages.append(messages)
        self.session.hold(messages.held_bytes)

    # --- for those who take the messages

    @property
    def waiting(self) -> bool:
        """Whether there are messages that were not taken."""
        return bool(self._messages)

    def next_run(self) -> Messages | None:
        """Return the next messages, without taking them; None if there are no more.

        Raises:
            Violation: the peer broke a rule of the link after the messages that were taken.
        """
        if self._messages:
            return self._messages[0]
        if self.fault is not None:
            raise self.fault
        return None

    def taken(self, count: int) -> None:
        """Take the first messages of the next run."""
        messages = self._messages.popleft()
        if count < len(messages.ids):
            self._messages.appendleft(messages.rows(slice(count, None)))
        left = self._messages[0].held_bytes if count < len(messages.ids) else 0
        self.session.hold(left - messages.held_bytes)

    def take(self, max_rows: int, max_bytes: int) -> Messages:
        """Take messages in their order: at most ``max_rows``, of about ``max_bytes``; at least one if any is there."""
        taken: list[Messages] = []
        while self._messages and max_rows > 0 and max_bytes > 0:
            messages = self._messages[0]
            sizes = np.cumsum(messages.ends - messages.starts + OWN_BYTES)
            count = min(len(sizes), max_rows, int(np.searchsorted(sizes, max_bytes)) + 1)
            taken.append(messages.rows(slice(0, count)))
            self.taken(count)
            max_rows -= count
            max_bytes -= int(sizes[count - 1])
        return joined(taken)

    def take_rejected(self) -> dict[int, int]:
        """Take the messages that were too large and are to be rejected: delivery-id to bytes."""
        rejected, self._rejected = self._rejected, {}
        return rejected

    def settle(self, ids: Positions, outcome: Any = None) -> None:
        """Settle deliveries.

        Args:
            ids: their numbers, in order; ``SETTLED`` ones are left out.
            outcome: their outcome, as ``encode_value`` takes it; None if there is none.
        """
        ids = ids[ids != SETTLED]
        if len(ids) and self.handle is not None:
            self._unsettled = int(ids[-1]) + 1 & SERIAL
            self.session.settle(ids, outcome)

    def release(self) -> None:
        """Release the deliveries that have come and are not settled: if they are from a queue, it gets them back.

        The session must have no other link, as deliveries of all its links are numbered together.
        """
        if self._unsettled is not None and self.session.next_id is not None:
            count = self.session.next_id - self._unsettled & SERIAL
            self.settle(self._unsettled + np.arange(count) & SERIAL, RELEASE)

    def drop(self) -> None:
        """Drop the deliveries that have come, and those still to come; tell the peer nothing more about the link."""
        self.end()
        self.owner = None
        self.session.hold(-sum(messages.held_bytes for messages in self._messages))
        self._messages.clear()
        self._begun.clear()

    def end(self) -> None:
        """Note that the peer ended the link or its session."""
        self.handle = None
        self.session.owed.pop(self, None)
