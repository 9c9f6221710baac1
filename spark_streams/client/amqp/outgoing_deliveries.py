"""Keeps what a sending link has under way: its credit, its session's window, and the outcomes that the peer has told.

Proton's engine attaches, detaches and ends a sending link; all that happens between is here. Its transfers are written
in columns, and flows and dispositions of its session never change anything that proton knows of. A link has a session
of its own, so the session's numbers are the link's too, and delivery-ids count its messages.

Spec: AMQP 1.0 part 2 §2.5.6 (session flow control), §2.6.7 (flow control), §2.6.12 (transferring a message), §2.7.6
(disposition); part 3 §3.4 (delivery states).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.performatives import (
    ACCEPTED,
    DISPOSITION,
    MODIFIED,
    REJECTED,
    RELEASED,
    SERIAL,
    Performative,
    encode_frame,
    signed,
)
from spark_streams.wire.amqp.transfer_encode import FORMAT_BYTES, HEAD_BYTES, encode_transfers, split_message
from spark_streams.wire.amqp.values import Described, Symbol, UInt
from spark_streams.wire.columnar.byte_view import Positions
from spark_streams.wire.columnar.interleave import Ranges

_HANDLE: Final = 0
"""Our handle of the only link of a session."""
_WRITTEN_BYTES: Final = 1 << 20
"""About the bytes of a large message that are frames at a time."""
_OUTCOMES: Final = {
    REJECTED: "rejected", Symbol("amqp:rejected:list"): "rejected",
    RELEASED: "released", Symbol("amqp:released:list"): "released",
    MODIFIED: "modified", Symbol("amqp:modified:list"): "modified",
}  # fmt: skip
_ACCEPTED: Final = (ACCEPTED, Symbol("amqp:accepted:list"))


class Refusal(NamedTuple):
    """An outcome other than accepted.

    Args:
        outcome: ``rejected``, ``released`` or ``modified``, or words for a delivery that was settled without outcome.
        condition, description: of a rejection, empty for none.
    """

    outcome: str
    condition: str
    description: str


class OutgoingDeliveries:
    """The deliveries of one sending link, unsettled until the peer gives them an outcome.

    Args:
        name: the link's name.
        max_frame_bytes: the largest frame to write.

    Attributes:
        sent: messages that were given to ``send``.
        done: the first messages of these that the peer has accepted.
        handle: the peer's handle; None before its attach.
        next_transfer: the number of the next transfer frame.
    """

    def __init__(self, name: str, max_frame_bytes: int) -> None:
        self.name = name
        self.sent = 0
        self.done = 0
        self.handle: int | None = None
        self._max_frame_bytes = max_frame_bytes
        self._channel: int | None = None
        self._window = 0
        self._credit = 0
        self.next_transfer = 0
        self._begun: Iterator[bytes] = iter(())
        self._next_frame: bytes | None = None
        self._written: list[Any] = []
        self._accepted: set[int] = set()
        self._refused: dict[int, tuple[int, Refusal]] = {}
        """The first message of a range to the end of the range, exclusive, and what became of these messages."""

    # --- for the publisher

    @property
    def room(self) -> int:
        """How many messages may be sent now, if each takes one frame."""
        return 0 if self._next_frame is not None else max(0, min(self._credit, self._window))

    @property
    def under_way(self) -> int:
        """Messages that were sent and are not among the ``done`` ones."""
        return self.sent - self.done

    @property
    def pending(self) -> bool:
        """Whether frames wait to be written, or for the session's window."""
        return bool(self._written) or self._next_frame is not None

    @property
    def refusal(self) -> Refusal | None:
        """What became of the message after the ``done`` ones, if it was not accepted."""
        found = (each for first, (stop, each) in self._refused.items() if first <= self.done < stop)
        return next(found, None)

    @property
    def undecided(self) -> int:
        """Messages that were sent and have no outcome."""
        return self.under_way - len(self._accepted) - sum(stop - first for first, stop, _ in self.refusals)

    @property
    def refusals(self) -> list[tuple[int, int, Refusal]]:
        """Ranges of messages that were not accepted, the end exclusive, and what became of them; in their order."""
        refused = ((max(first, self.done), stop, each) for first, (stop, each) in self._refused.items())
        return sorted((first, stop, each) for first, stop, each in refused if first < stop)

    @property
    def unaccepted(self) -> list[tuple[int, int, None]]:
        """Ranges of messages that were sent and not accepted, whether they have an outcome or not; in their order."""
        ends = sorted({self.done - 1, *self._accepted, self.sent})
        return [(before + 1, after, None) for before, after in pairwise(ends) if before + 1 < after]

    def give_up(self) -> None:
        """Count the messages that were not accepted as done: they are sent again under other numbers."""
        for first, stop, _ in self.refusals:
            self._accept(first, stop)
        self._refused.clear()

    def send(
        self,
        memory: NDArray[np.uint8],
        starts: Positions,
        ends: Positions,
        formats: NDArray[np.uint32] | None = None,
    ) -> None:
        """Send the first messages: as many as take one frame each, or one that takes several.

        Args:
            memory: holds the messages.
            starts: first byte of each message; at least one, and at most ``room`` messages.
            ends: where they end, exclusive.
            formats: the message-format of each; None for 0.
        """
        assert self._channel is not None
        head = HEAD_BYTES if formats is None else HEAD_BYTES + FORMAT_BYTES
        large = ends - starts > self._max_frame_bytes - head
        count = int(large.argmax()) if large.any() else len(starts)
        number = self.sent & SERIAL
        if count:
            messages = Ranges(memory, starts[:count], ends[:count])
            frames = encode_transfers(
                messages,
                channel=self._channel,
                handle=_HANDLE,
                first_id=number,
                formats=None if formats is None else formats[:count],
            )
            self._written.append(frames)
            self._window -= count
            self.next_transfer += count
        else:
            count = 1
            self._begun = split_message(
                memory[int(starts[0]) : int(ends[0])].data,
                channel=self._channel,
                handle=_HANDLE,
                delivery_id=number,
                max_frame_bytes=self._max_frame_bytes,
                message_format=0 if formats is None else int(formats[0]),
            )
            self._next_frame = next(self._begun)
        self.sent += count
        self._credit -= count

    # --- for the connection

    def attached(self, channel: int, window: int, handle: int) -> None:
        """Note the peer's attach.

        Args:
            channel: our channel of the session.
            window: transfer frames that the peer takes, from its begin.
            handle: the peer's handle.
        """
        self._channel, self._window, self.handle = channel, window, handle

    def end(self) -> None:
        """Note that one side has ended the link or its session: nothing is written any more."""
        self._channel, self._next_frame = None, None
        self._window = self._credit = 0
        self._written.clear()

    def frames(self) -> bytes:
        """Return frames that are due; further ones may be due afterwards."""
        size = 0
        while self._next_frame is not None and self._window > 0 and size < _WRITTEN_BYTES:
            self._written.append(self._next_frame)
            size += len(self._next_frame)
            self._window -= 1
            self.next_transfer += 1
            self._next_frame = next(self._begun, None)
        written, self._written = b"".join(self._written), []
        return written

    def on_flow(self, flow: Performative) -> None:
        """Read the peer's flow: its session's window, and the link's credit.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if self._channel is None:
            return
        # The peer counts from what had reached it when it wrote this.
        self._window = max(0, flow.number(1, 0) - signed(self.next_transfer - flow.number(0, 0)))
        if flow.number(4, None) == self.handle:
            self._credit = max(0, flow.number(6, 0) - signed(self.sent - flow.number(5, 0)))

    def on_accepted(self, first: int, last: int) -> tuple[()]:
        """Note that the peer has accepted and settled deliveries, both inclusive."""
        begin, stop = self._under_way(first, last)
        if begin < stop:
            self._accept(begin, stop)
        return ()

    def on_disposition(self, disposition: Performative) -> tuple[()]:
        """Read the peer's disposition of deliveries.

        Raises:
            RemoteProtocolError: a field has a wrong type.
        """
        if disposition.field(0, bool, False):  # else it is the sender of what it speaks of
            self._disposed(disposition)
        return ()

    def _disposed(self, disposition: Performative) -> None:
        number = disposition.number(1, 0)
        last = disposition.number(2, number)
        settled = disposition.field(3, bool, False)
        state = disposition.field(4, Described, None)
        first, stop = self._under_way(number, last)
        if first >= stop:
            return
        if state is not None and state.descriptor in _ACCEPTED:
            self._accept(first, stop)
            if not settled and self._channel is not None:
                # The peer keeps them until it hears that they are settled here.
                fields = [False, UInt(number), UInt(last), True]
                self._written.append(encode_frame(self._channel, DISPOSITION, fields))
            return
        outcome = _OUTCOMES.get(state.descriptor) if state is not None else None
        if outcome is not None or settled:  # else "received", which is no outcome yet (AMQP 1.0 part 3 §3.4.1)
            self._refused[first] = stop, _refusal(outcome or "settled without an outcome", state)

    def _under_way(self, first: int, last: int) -> tuple[int, int]:
        """Return which messages, the end exclusive, of those under way have ids from ``first`` to ``last``."""
        begin = self.done + signed(first - self.done)
        return max(begin, self.done), min(self.sent, begin + (last - first & SERIAL) + 1)

    def _accept(self, first: int, stop: int) -> None:
        if first > self.done:
            self._accepted.update(range(first, stop))  # out of order: the order of ``done`` is that of the messages
            return
        if self._accepted:
            self._accepted.difference_update(range(self.done, stop))
        self.done = stop
        while self.done in self._accepted:
            self._accepted.remove(self.done)
            self.done += 1


def _refusal(outcome: str, state: Described | None) -> Refusal:
    error = state.value[0] if outcome == "rejected" and state is not None and state.value else None
    if error is None:
        return Refusal(outcome, "", "")
    fields = error.value if isinstance(error, Described) else None
    if not isinstance(fields, list) or not fields:
        raise RemoteProtocolError("the error of a rejected delivery is no AMQP error")
    description = fields[1] if len(fields) > 1 else None
    return Refusal(outcome, str(fields[0]), description if isinstance(description, str) else "")
