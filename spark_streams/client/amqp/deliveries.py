"""Keeps what a receiving link has under way: its credit, its session's window, and the deliveries that have come.

Proton's engine attaches, detaches and ends a receiving link; all that happens between is here. Transfers and flows of
such a link never reach proton, and proton writes none, as nothing changes there. A link has a session of its own, so
the session's numbers are the link's too, and the link's handle on our side is 0.

Spec: AMQP 1.0 part 2 §2.5.6 (session flow control), §2.6.7 (flow control), §2.6.12 (transferring a message), §2.6.14
(aborting).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.part_head import PartHead
from spark_streams.wire.amqp.performatives import DISPOSITION, RELEASED, SERIAL, Performative, encode_flow, encode_frame
from spark_streams.wire.amqp.values import Described, UInt, ULong
from spark_streams.wire.columnar.byte_view import Positions, Words
from spark_streams.wire.columnar.gather import gather

_OUTGOING_WINDOW: Final = 0x7FFF_FFFF
"""What proton says in begin; this session sends no transfers."""
_HANDLE: Final = 0
"""Our handle of the only link of a session."""
RELEASE: Final = Described(ULong(RELEASED), [])
"""The outcome of what nobody has read: it stays where it is, for others."""


@dataclass
class Run:
    """Whole deliveries: many in one piece of memory, or one in several pieces.

    Args:
        pieces: the bytes, one piece after the other; those between the messages mean nothing.
        starts, ends: where each message lies, the end exclusive.
        ids: the deliveries' numbers if the peer has not settled them; None if it has.
        frames: transfer frames of each delivery.
    """

    pieces: list[memoryview]
    starts: Positions
    ends: Positions
    ids: Positions | None
    frames: int = 1

    def copy_to(self, memory: memoryview, start: int, end: int) -> None:
        """Copy the bytes from ``start`` to ``end`` into memory of that size."""
        at = 0
        for piece in self.pieces:
            low, high = max(0, start - at), min(len(piece), end - at)
            if low < high:
                memory[at + low - start : at + high - start] = piece[low:high]
            at += len(piece)

    def after(self, count: int) -> Run:
        """Return the run without its first deliveries."""
        ids = None if self.ids is None else self.ids[count:]
        return Run(self.pieces, self.starts[count:], self.ends[count:], ids, self.frames)


class Deliveries:
    """The deliveries of one receiving link.

    Args:
        name: the link's name.
        window: transfer frames that may be under way on its session, as its begin says.
        max_bytes: the largest message that is taken.

    Attributes:
        kept_bytes: the number of bytes that are kept of a message, at most; None for all.
        received: bytes of all messages that have come, those of an incomplete one included.
        queued: deliveries that have come, at least in part, and nobody has taken.
        in_parts: whether the last message that came, or is coming, has several frames.
        handle: the peer's handle; None before its attach.
        proof: checks the first message that comes, and raises an error unless a log sends such; until then the peer
            gets one credit. None where nothing, or nothing more, is to be proven.
        available: deliveries that the peer has beyond those it sent, by its latest flow; None before one that says so.
    """

    def __init__(self, name: str, window: int, max_bytes: int) -> None:
        self.name = name
        self.kept_bytes: int | None = None
        self.received = 0
        self.queued = 0
        self._capacity = self._window = window
        self._max_bytes = max_bytes
        self._held = 0
        self._link_credit = 0
        self._returned = 0
        self._drain = False
        self._flow_due = False
        self._runs: deque[Run] = deque()
        self._fault: RemoteProtocolError | None = None
        self._begun: list[memoryview] | None = None
        self._begun_bytes = self._begun_frames = 0
        self._begun_settled = False
        self._first: PartHead | None = None
        self._part: PartHead | None = None
        self._channel: int | None = None
        self._next_id: int | None = None
        self._settled: list[bytes] = []
        self._unsettled: int | None = None
        self._closed = False
        self.proof: Callable[[MessageBlock], None] | None = None
        self.in_parts = False
        self.handle: int | None = None
        self.available: int | None = None

    # --- for those who read

    @property
    def credit(self) -> int:
        """Granted deliveries that nobody has taken, those that have come included."""
        return self._link_credit + self.queued

    def flow(self, credit: int) -> None:
        """Grant further deliveries; the peer learns it with the next bytes that are written."""
        self._link_credit += credit
        self._flow_due = True

    @property
    def drain(self) -> bool:
        """Whether the peer shall give back the credit that it has no deliveries for."""
        return self._drain

    @drain.setter
    def drain(self, drain: bool) -> None:
        self._flow_due |= drain
        self._drain = drain

    @property
    def draining(self) -> bool:
        """Whether the peer still owes deliveries or credit in answer to a drain."""
        return self._drain and self._link_credit > 0

    def take_returned(self) -> int:
        """Return the credit that the peer gave back since the last call, as it had nothing more."""
        returned, self._returned = self._returned, 0
        return returned

    def next_run(self) -> Run | None:
        """Return the next deliveries that have come, without taking them; None if there are no more.

        Raises:
            RemoteProtocolError: the peer broke a rule after the deliveries that were taken.
        """
        if not self._runs and self._fault is not None:
            raise self._fault
        return self._runs[0] if self._runs else None

    def taken(self, count: int) -> None:
        """Take the first deliveries of the next run."""
        run = self._runs[0]
        self.queued -= count
        self._held -= count * run.frames
        if count == len(run.starts):
            self._runs.popleft()
        else:
            self._runs[0] = run.after(count)
        self._open_window()

    def settle(self, ids: Positions, outcome: Any = None) -> None:
        """Settle deliveries.

        Args:
            ids: their numbers, in order.
            outcome: their outcome, as ``encode_value`` takes it; None for none.
        """
        if not len(ids) or self._channel is None:
            return
        self._unsettled = int(ids[-1]) + 1 & SERIAL
        edges = np.flatnonzero((np.diff(ids) & SERIAL) != 1) + 1
        for first, last in zip(ids[[0, *edges]], ids[[*(edges - 1), -1]], strict=True):
            fields = [True, UInt(int(first)), UInt(int(last)), True, outcome]
            self._settled.append(encode_frame(self._channel, DISPOSITION, fields))

    def release(self) -> None:
        """Release the deliveries that have come and nobody has settled: a queue, if it is one, has them again."""
        if self._unsettled is not None and self._next_id is not None:
            count = self._next_id - self._unsettled & SERIAL
            self.settle(self._unsettled + np.arange(count) & SERIAL, RELEASE)

    # --- for the connection

    def attached(self, channel: int, next_transfer: int, handle: int, delivery_count: int) -> None:
        """Note the peer's attach.

        Args:
            channel: our channel of the session.
            next_transfer: the number of the first transfer frame, from the peer's begin.
            handle: the peer's handle.
            delivery_count: the peer's initial delivery-count.
        """
        self._channel, self._next_transfer = channel, next_transfer
        self.handle, self._delivery_count = handle, delivery_count

    def end(self) -> None:
        """Note that the peer ended the link or its session: nothing is written any more."""
        self._channel = None

    def close(self) -> None:
        """Note that we end the link: nothing is written any more, and what still comes is dropped."""
        self._channel, self._closed = None, True
        self._runs.clear()

    @property
    def due(self) -> bool:
        """Whether frames are due."""
        return self._channel is not None and (self._flow_due or bool(self._settled))

    def frames(self) -> bytes:
        """Return the frames that are due: what is settled, and a flow."""
        if not self.due:
            self._settled.clear()  # those of a link that has ended
            return b""
        assert self._channel is not None
        if self._flow_due:
            self._flow_due = False
            # Never less than it was: frames that were allowed may be under way.
            self._window = max(self._window, self._capacity - self._held)
            numbers = (self._next_transfer, self._window, 0, _OUTGOING_WINDOW)
            credit = max(0, self._link_credit if self.proof is None else min(1, self._link_credit))
            self._settled.append(
                encode_flow(self._channel, *numbers, _HANDLE, self._delivery_count, credit, drain=self._drain)
            )
        written, self._settled = b"".join(self._settled), []
        return written

    def on_flow(self, flow: Performative) -> None:
        """Read the peer's flow: the deliveries that it skipped used up credit.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if self._closed:
            return
        self._flow_due |= flow.field(9, bool, False)
        if flow.field(4, UInt, None) != self.handle:
            return
        self.available = flow.field(7, UInt, self.available)
        skipped = (flow.field(5, UInt, self._delivery_count) - self._delivery_count) & SERIAL
        if 0 < skipped <= SERIAL >> 1:
            self._delivery_count = self._delivery_count + skipped & SERIAL
            # One credit that comes back unproven stands for all that would have followed it.
            self._link_credit = self._link_credit - skipped if self.proof is None else 0
            self._returned += skipped

    def on_usual(self, frames: memoryview, starts: Positions, ends: Positions, ids: Positions, settled: bool) -> None:
        """Take usual transfers, see ``wire.amqp.transfer_frames``.

        Args:
            frames: the bytes of all frames, which are copied.
            starts: where the payloads begin in ``frames``.
            ends: where they end, exclusive.
            ids: the deliveries' numbers.
            settled: whether the peer has settled them.

        Raises:
            RemoteProtocolError: the peer exceeded the session's window, or its numbers are out of sequence.
        """
        if self._closed:
            return
        if self._begun is not None:
            # The last frame of a delivery in several frames may say everything that a whole delivery's frame says.
            stop = int(ends[0])
            self._on_part(frames[int(starts[0]) : stop], int(ids[0]), settled, more=False, aborted=False)
            starts, ends, ids = starts[1:], ends[1:], ids[1:]
        count = len(starts)
        if not count:
            return
        self.in_parts = False
        self._count_frames(count)
        self._count_deliveries(ids)
        memory = np.array(frames)
        self.received += int((ends - starts).sum())
        kept = self.kept_bytes
        if kept is not None and int((ends - starts).max()) > kept:
            heads = gather([Words(memory)], starts, np.minimum(ends - starts, kept), pa.large_binary())
            _, offsets, content = heads.buffers()
            bounds = np.frombuffer(offsets, np.int64)
            starts, ends = bounds[:count], bounds[1 : count + 1]
            memory = np.frombuffer(content, np.uint8)
        self._add(Run([memory.data], starts, ends, None if settled else ids))

    def on_transfer(self, transfer: Performative) -> None:
        """Take a transfer of any form.

        Raises:
            RemoteProtocolError: the peer exceeded the session's window, a field has a wrong type, or a number is out of
                sequence.
        """
        if self._closed:
            return
        number, _ = transfer.field(1, UInt, None), transfer.field(2, bytes, None)
        settled, more, aborted = (transfer.field(index, bool, False) for index in (4, 5, 9))
        self._part = PartHead.of(transfer)
        if self._begun is None:
            self._first = self._part
        self._on_part(memoryview(transfer.raw)[transfer.payload :], number, settled, more=more, aborted=aborted)

    def on_same(self, frame: memoryview) -> bool:
        """Take a part by what it has in common with an earlier part; return False if it must be decoded."""
        part, more = self._part, True
        if self._begun is None:
            part = self._part = None if self._first is None else self._first.following(frame)
            self._first = part or self._first
        elif part is not None:
            goes_on = part.goes_on(frame)
            part, more = (None, True) if goes_on is None else (part, goes_on)
        if part is None:
            return False
        if not self._closed:
            payload = frame[4 + len(part.head) :]
            self._on_part(payload, part.number, part.settled, more=more, aborted=False)
        return True

    def _on_part(self, payload: memoryview, number: int | None, settled: bool, *, more: bool, aborted: bool) -> None:
        self._count_frames(1)
        if self._begun is None:
            if number is None and (more or self._next_id is None):
                raise RemoteProtocolError("amqp:invalid-field: delivery-id required on the first transfer")
            if number is None or number == self._next_id:
                self._count(self._next_id or 0, 1)
            else:
                self._count_deliveries(np.array([number], np.int64))
            self._begun, self._begun_bytes, self._begun_frames = [], 0, 0
            self._begun_settled = False
        elif number is not None and number != self._begun_id:
            raise RemoteProtocolError("amqp:invalid-field: invalid delivery-id for a continuation transfer")
        self._begun_frames += 1
        self._begun_settled |= settled
        kept, left = self.kept_bytes, len(payload)
        if kept is not None:
            left = max(0, kept - self._begun_bytes)
        self.received += len(payload)
        self._begun_bytes += len(payload)
        if self._begun_bytes > self._max_bytes and self._fault is None and kept is None:
            self._fault = RemoteProtocolError(
                f"the peer sent a message of more than {self._max_bytes} bytes, the most this client takes"
            )
        if self._fault is None:
            self._begun.append(memoryview(bytes(payload[:left])))
        self.in_parts = more or self._begun_frames > 1
        if aborted:
            self._begun = None
            self.queued -= 1
        elif not more:
            size = sum([len(piece) for piece in self._begun])
            ids = None if self._begun_settled else np.array([self._begun_id], np.int64)
            run = Run(self._begun, np.zeros(1, np.int64), np.array([size]), ids, self._begun_frames)
            self._begun = None
            self._add(run)

    def _add(self, run: Run) -> None:
        if self._unsettled is None and run.ids is not None:
            self._unsettled = int(run.ids[0])
        if self._fault is not None:
            return
        self._runs.append(run)
        self._held += len(run.starts) * run.frames
        self._open_window()

    def _count_frames(self, count: int) -> None:
        if count > self._window:
            raise RemoteProtocolError("amqp:session:window-violation: incoming session window exceeded")
        self._window -= count
        self._next_transfer = self._next_transfer + count & SERIAL
        self._open_window()

    def _open_window(self) -> None:
        """Have a flow written when the window is half used up, if it can be larger then."""
        if self._window < self._capacity // 2 and self._capacity - self._held > self._window:
            self._flow_due = True

    def _count_deliveries(self, ids: Positions) -> None:
        expected = int(ids[0]) if self._next_id is None else self._next_id
        numbers = expected + np.arange(len(ids)) & SERIAL
        if not np.array_equal(ids, numbers):
            at = int(np.flatnonzero(ids != numbers)[0])
            raise RemoteProtocolError(
                f"amqp:session:invalid-field: sequencing error, expected delivery-id {numbers[at]}, got {ids[at]}"
            )
        self._count(expected, len(ids))

    def _count(self, first: int, count: int) -> None:
        self._begun_id = first + count - 1 & SERIAL
        self._next_id = first + count & SERIAL
        self._delivery_count = self._delivery_count + count & SERIAL
        self._link_credit -= count
        self.queued += count
