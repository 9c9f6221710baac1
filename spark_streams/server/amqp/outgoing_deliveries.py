"""The deliveries that the door sends on one connection: their numbers, the window and credit, and what is unsettled.

proton knows the sessions and links, and none of their transfers, as it has an object and several calls for each. So
what AMQP counts on the sending side is counted here: transfer frames and delivery-ids of a session, deliveries and
credit of a link, and which deliveries the peer has not settled. Events are written and settled in ranges, so there is
an object for those that were sent together, and none for each.

Spec: AMQP 1.0 part 2 §2.5.6 (session flow control), §2.6.7 (flow control), §2.6.12 (transferring a message), §2.7.6
(disposition); part 3 §3.4 (delivery states).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.performatives import (
    ACCEPTED,
    MODIFIED,
    REJECTED,
    RELEASED,
    SERIAL,
    Performative,
    signed,
)
from spark_streams.wire.amqp.transfer_encode import HEAD_BYTES, UNUSED_BYTES, encode_transfers, split_message
from spark_streams.wire.amqp.values import Described, Symbol
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

BYTES_PER_TURN: Final = 512 << 10
"""About the most bytes of one link's turn: they wait in memory until the turn of the whole connection is over."""
MAX_FRAME_BYTES: Final = 1 << 20
"""The largest frame that is written, where the peer takes larger ones."""
MIN_FRAME_BYTES: Final = 512
"""The least that every peer takes (AMQP 1.0 part 2 §2.4.1)."""
_SPARSE: Final = 32
"""Where at most one in so many deliveries that were sent together is unsettled, each is kept by itself."""
_OUTCOMES: Final[dict[Any, int]] = {
    key: code
    for code, name in ((ACCEPTED, "accepted"), (REJECTED, "rejected"), (RELEASED, "released"), (MODIFIED, "modified"))
    for key in (code, Symbol(f"amqp:{name}:list"))
}


class Outcome(NamedTuple):
    """What became of deliveries.

    Args:
        again: whether they are to be sent again.
        failed: whether this counts as a failed delivery.
    """

    again: bool
    failed: bool


DONE: Final = Outcome(again=False, failed=False)


@dataclass(eq=False)
class Sent:
    """Deliveries of one link that were sent together, at least one of them unsettled.

    Args:
        link: the link.
        first: the number of the first of them on the session, not reduced to 32 bits.
        offsets: the events' offsets.
        origin: whatever the link's owner needs to know of them.
        open: bool[n], which of them are unsettled.
        left: how many these are.
    """

    link: OutgoingDeliveries
    first: int
    offsets: Positions
    origin: Any
    open: NDArray[np.bool_]
    left: int

    @property
    def unsettled_offsets(self) -> Positions:
        """The offsets of the unsettled ones."""
        return self.offsets[self.open]


class OutgoingSession:
    """What a session counts of the door's transfers.

    Args:
        window: transfer frames that the peer takes, from its begin.
        outcomes: whether unsettled deliveries are noted, for the links to know what became of them.

    Attributes:
        channel: the door's channel; None before the door's begin and after the peer's end.
        next_transfer: the number of the next transfer frame.
        next_id: the number of the next delivery, not reduced to 32 bits.
        window: how many more transfer frames the peer takes.
        heard: ranges of delivery-ids, both inclusive, that are settled here, and the peer keeps until it hears that.
        owed: links whose state the peer has asked for, by drain or echo, and does not know yet.
    """

    def __init__(self, window: int, *, outcomes: bool = True) -> None:
        self.outcomes = outcomes
        self.channel: int | None = None
        self.next_transfer = 0
        self.next_id = 0
        self.window = window
        self.heard: list[tuple[int, int]] = []
        self.owed: dict[Any, None] = {}
        self._sent: list[Sent] = []
        self._firsts: list[int] = []

    def on_flow(self, flow: Performative) -> None:
        """Read the window of the peer's flow.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        # The peer counts from what had reached it when it wrote this.
        self.window = max(0, flow.number(1, 0) - signed(self.next_transfer - flow.number(0, 0)))

    def on_accepted(self, first: int, last: int) -> Iterable[OutgoingDeliveries]:
        """Settle deliveries that the peer has accepted and settled, both inclusive; return their links."""
        return self.settle(first, last, DONE)

    def on_disposition(self, disposition: Performative) -> Iterable[OutgoingDeliveries]:
        """Read the peer's disposition of deliveries.

        Returns:
            The links of those that are settled by it.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if not disposition.field(0, bool, False):
            return ()  # it is the sender of what it speaks of
        first = disposition.number(1, 0)
        last = disposition.number(2, first)
        settled = disposition.field(3, bool, False)
        state = disposition.field(4, Described, None)
        code = None if state is None else _OUTCOMES.get(state.descriptor)
        if code is None and not settled:
            return ()  # "received", which is no outcome yet (AMQP 1.0 part 3 §3.4.1)
        links = self.settle(first, last, DONE if state is None or code is None else _outcome(code, state))
        if (links or not self.outcomes) and not settled:
            self.heard.append((first, last))
        return links

    def settle(self, first: int, last: int, outcome: Outcome) -> Iterable[OutgoingDeliveries]:
        """Settle deliveries.

        Args:
            first: the first delivery-id, inclusive; deliveries that are settled or were never sent do not count.
            last: the last one, inclusive.
            outcome: what became of them.

        Returns:
            Their links.
        """
        stop = self.next_id + min(0, signed(last - self.next_id)) + 1
        begin = min(self.next_id + signed(first - self.next_id), stop - 1)
        links: dict[OutgoingDeliveries, None] = {}
        at = max(0, bisect_right(self._firsts, begin) - 1)
        while at < len(self._sent) and self._firsts[at] < stop:
            sent = self._sent[at]
            low, high = max(0, begin - sent.first), max(0, min(len(sent.open), stop - sent.first))
            rows = low + np.flatnonzero(sent.open[low:high])
            kept = [sent]
            if len(rows):
                links[sent.link] = None
                kept = self._settled(sent, rows, outcome)
                self._sent[at : at + 1] = kept
                self._firsts[at : at + 1] = [each.first for each in kept]
            at += len(kept)
        return links

    def _settled(self, sent: Sent, rows: Positions, outcome: Outcome) -> list[Sent]:
        """Note that some deliveries are settled; return what is left of those that were sent with them."""
        link = sent.link
        sent.open[rows] = False
        sent.left -= len(rows)
        link.unsettled -= len(rows)
        link.settled(sent.origin, sent.offsets[rows], outcome)
        if not sent.left:
            return []
        if sent.left * _SPARSE > len(sent.open):
            return [sent]
        one = np.ones(1, np.bool_)
        return [
            Sent(link, sent.first + row, sent.offsets[row : row + 1].copy(), sent.origin, one.copy(), 1)
            for row in np.flatnonzero(sent.open).tolist()
        ]

    def add(self, sent: Sent) -> None:
        """Note deliveries that have been sent unsettled."""
        self._sent.append(sent)
        self._firsts.append(sent.first)

    def of(self, link: OutgoingDeliveries) -> list[Sent]:
        """Return the unsettled deliveries of a link, in their order."""
        return [sent for sent in self._sent if sent.link is link]

    def forget(self, link: OutgoingDeliveries) -> None:
        """Forget the unsettled deliveries of a link."""
        self._sent = [sent for sent in self._sent if sent.link is not link]
        self._firsts = [sent.first for sent in self._sent]


class OutgoingDeliveries:
    """The deliveries of one link on which the door sends.

    Args:
        session: the link's session.

    Attributes:
        session: the link's session.
        owner: the ``AttachedLink`` that sends; None before the link is opened and after its end.
        available: returns how many messages wait for credit; an upper bound where a filter leaves some out.
        settled: called with the origin and the offsets of deliveries that the peer has settled, and their outcome.
        handle: the door's handle; None before the door's attach.
        delivery_count, credit: what a flow tells the peer; the credit is below 0 if the peer took some back.
        drain: whether the peer wants its credit used up or given back.
        draining: whether it waits for the answer to that.
        unsettled: deliveries that the peer has not settled.
        sent: messages so far.
        written: bytes of all their frames so far.
    """

    def __init__(self, session: OutgoingSession) -> None:
        self.session = session
        self.owner: Any = None
        self.available: Callable[[], int] = lambda: 0
        self.settled: Callable[[Any, Positions, Outcome], None] = lambda origin, offsets, outcome: None
        self.handle: int | None = None
        self.delivery_count = 0
        self.credit = 0
        self.drain = self.draining = False
        self.unsettled = 0
        self.sent = 0
        self.written = 0
        self._presettled = False
        self._write: Callable[[pa.Buffer | bytes], None] = lambda frames: None
        self._max_frame_bytes = MIN_FRAME_BYTES
        self._all_fields = False
        self._begun: Iterator[bytes] = iter(())
        self._next_frame: bytes | None = None

    def open(
        self,
        handle: int | None,
        write: Callable[[pa.Buffer | bytes], None],
        max_frame_bytes: int,
        *,
        presettled: bool,
        all_fields: bool = False,
    ) -> None:
        """Note the door's attach.

        Args:
            handle: the door's handle.
            write: queues frames for the peer.
            max_frame_bytes: the largest frame that the peer takes; 0 for any.
            presettled: whether deliveries are settled as they are sent.
            all_fields: whether transfers have all their fields, null ones at their end too.
        """
        self.handle, self._write, self._presettled, self._all_fields = handle, write, presettled, all_fields
        self._max_frame_bytes = max(MIN_FRAME_BYTES, min(max_frame_bytes or MAX_FRAME_BYTES, MAX_FRAME_BYTES))
        self._max_frame_bytes -= UNUSED_BYTES if all_fields else 0

    def on_flow(self, flow: Performative) -> None:
        """Read the link's part of the peer's flow.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        self.drain = self.draining = flow.field(8, bool, False)
        if flow.field(9, bool, False) and not self.drain:
            self.session.owed[self] = None
        self.credit = flow.number(6, 0) - signed(self.delivery_count - flow.number(5, 0))

    @property
    def room(self) -> int:
        """How many messages may be sent now, if each takes one frame."""
        return 0 if self.is_begun else max(0, min(self.credit, self.session.window))

    @property
    def is_begun(self) -> bool:
        """Whether some frames of the last message are not written yet."""
        return self._next_frame is not None

    def send(self, *pieces: Ranges, offsets: Positions, origin: Any = None) -> int:
        """Send the first messages: as many as take one frame each, or one that may take several.

        Args:
            pieces: what each message consists of, one piece after the other; one message, or at most ``room``.
            offsets: their events' offsets.
            origin: what ``settled`` is called with.

        Returns:
            How many these are.
        """
        session, handle = self.session, self.handle
        if session.channel is None or handle is None:
            return 0
        count = len(offsets)
        sizes = sum((piece.ends - piece.starts for piece in pieces), np.zeros(count, np.int64))
        large = sizes > self._max_frame_bytes - HEAD_BYTES
        if large.any():
            count = max(1, int(large.argmax()))
        first = session.next_id
        self.delivery_count = self.delivery_count + count & SERIAL
        self.credit -= count
        self.sent += count
        session.next_id += count
        if not self._presettled and session.outcomes:
            self.unsettled += count
            session.add(Sent(self, first, offsets[:count], origin, np.ones(count, np.bool_), count))
        if count > 1:
            shortened = [Ranges(piece.buffer, piece.starts[:count], piece.ends[:count]) for piece in pieces]
            frames = encode_transfers(
                *shortened,
                channel=session.channel,
                handle=handle,
                first_id=first,
                settled=self._presettled,
                all_fields=self._all_fields,
            )
            self._queue(frames, count)
            return count
        firsts = (np.frombuffer(piece.buffer, np.uint8)[piece.starts[0] : piece.ends[0]] for piece in pieces)
        message = b"".join([each.data for each in firsts])
        self._begun = split_message(
            memoryview(message),
            channel=session.channel,
            handle=handle,
            delivery_id=first,
            max_frame_bytes=self._max_frame_bytes,
            settled=self._presettled,
            all_fields=self._all_fields,
        )
        self._next_frame = next(self._begun)
        self.go_on(0)
        return 1

    def go_on(self, most_bytes: int) -> None:
        """Write frames of the last message while the window allows, one at least, and up to about so many bytes."""
        end = self.written + most_bytes
        while self._next_frame is not None and self.session.window > 0:
            self._queue(self._next_frame, 1)
            self._next_frame = next(self._begun, None)
            if self.written >= end:
                break

    def give_back(self) -> None:
        """Tell a draining receiver that it has no credit left: give back what it has. Spec: §2.6.7."""
        if self.draining:
            self.delivery_count = self.delivery_count + max(0, self.credit) & SERIAL
            self.credit, self.draining = 0, False
            self.session.owed[self] = None

    def _queue(self, frames: pa.Buffer | bytes, count: int) -> None:
        self.session.window -= count
        self.session.next_transfer = self.session.next_transfer + count & SERIAL
        self.written += len(frames)
        self._write(frames)

    def end(self) -> None:
        """Note the link's end: nothing is sent any more, and what is unsettled is forgotten."""
        self.owner, self.handle, self._next_frame = None, None, None
        self.session.owed.pop(self, None)
        self.session.forget(self)


def _outcome(code: int, state: Described) -> Outcome:
    """Return what an outcome means for the event. Spec: AMQP 1.0 part 3 §3.4.2 to §3.4.5."""
    if code == RELEASED:
        return Outcome(again=True, failed=False)
    if code != MODIFIED:
        return DONE
    failed, undeliverable = (*(state.value if isinstance(state.value, list) else ()), None, None)[:2]
    return DONE if undeliverable is True else Outcome(again=True, failed=failed is True)
