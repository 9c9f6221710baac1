"""Walks over offsets without reading events, and finds the first event from a time on.

Nobody can compute with opaque offsets, so a walk finds the end of "the next 5,000 events". It copies only the first
bytes of each delivery, with the delivery annotations; it neither copies nor decodes bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from spark_streams.client.amqp.credit import MAX_CREDIT, DrainTimer
from spark_streams.client.amqp.links import Link
from spark_streams.client.amqp.receive_buffer import ReceiveBuffer
from spark_streams.client.amqp.row_decoder import check_offsets, rows_to_drop, rows_until
from spark_streams.client.retry import Attempts, Deadline
from spark_streams.errors import DeadlineExceeded, SparkStreamsError
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns

_BLOCK_ROWS: Final = 16_384
HEAD_BYTES: Final = 512
"""Bytes kept of a message; the delivery annotations come first and have about 150 bytes."""


@dataclass
class AmqpOffsetWalk:
    """Returns the offsets of one partition, in order, as many as each call requests; its link stays open between calls.

    Args:
        attach: attaches a receiver that begins at the first position; at the second, an earlier one, where the peer has
            no filter for the first.
        start: where to begin; later, where to go on.
        end: the last offset to return, inclusive; None for no end.
    """

    attach: Callable[[Earliest | At | After, Earliest | After], Link]
    start: Earliest | At | After
    end: str | None

    def __post_init__(self) -> None:
        self._dropped: Earliest | After = EARLIEST
        self._link: Link | None = None
        self._buffer = _buffer(_BLOCK_ROWS)
        self._ready: list[str] = []
        self._ended = False

    def take(self, n: int) -> list[str]:
        """Return the next ``n`` offsets; fewer when the end was reached, or there is nothing more now.

        Raises:
            TransportError: the peer fell silent, or the connection broke more often than the retries allow. The walk
                can continue: it skips no offset that it has not returned.
            PeerError: the peer refused or ended the link.
            RemoteProtocolError: the peer broke a rule.
        """
        attempts = Attempts()
        while len(self._ready) < n and not self._ended:
            before = len(self._ready), self._dropped
            try:
                if not self._advance(n):
                    break
            except SparkStreamsError as fault:
                if isinstance(fault, DeadlineExceeded) and self._link is not None:
                    self._link.connection.abandon()
                if fault.retriable and self._link is not None:
                    self._buffer.take(self._link.deliveries)
                    if self._buffer.rows:
                        self._decode(self._link)  # whole deliveries need not come again
                self.close()
                if (len(self._ready), self._dropped) != before:
                    attempts.progressed()
                attempts.after(fault)
        taken, self._ready = self._ready[:n], self._ready[n:]
        return taken

    def close(self) -> None:
        """Detach; a later ``take`` attaches another link."""
        if self._link is not None:
            self._link.close()
            self._link = None
            self._buffer = _buffer(_BLOCK_ROWS)

    def _advance(self, count: int) -> bool:
        """Receive until ``count`` offsets or the end are ready; return False when there are no more now."""
        if self._link is None:
            self._link = self.attach(self.start, self._dropped)
            self._link.deliveries.kept_bytes = HEAD_BYTES
        link = self._link
        link.deliveries.drain = False  # an earlier call may have found what it needed while draining
        link.deliveries.take_returned()  # forget the credit that the peer returned then
        timer = DrainTimer(link)
        while len(self._ready) < count and not self._ended:
            if self._buffer.take(link.deliveries):
                timer.received()
            missing = count - len(self._ready) - self._buffer.rows
            full = missing <= 0 or self._buffer.rows >= _BLOCK_ROWS // 2
            if self._buffer.rows and (full or timer.draining or timer.end_check_due()):
                self._decode(link)
                continue
            link.check()
            if timer.draining:
                if not link.deliveries.draining and timer.answered_empty():
                    return False
            elif not link.deliveries.granted or not timer.drain_if_due():
                # The credit is never more than is missing: the next ``take`` continues after what this one received.
                window = MAX_CREDIT if self._drops(link) else min(missing, MAX_CREDIT)
                if link.deliveries.granted <= window // 2:
                    link.deliveries.flow(window - link.deliveries.granted)
            link.turn(timer.timeout_s(self._buffer.rows > 0))
        return True

    def _drops(self, link: Link) -> bool:
        """Return whether deliveries may lie before the start, as the link began at an earlier position."""
        return link.early and isinstance(self.start, At)

    def _decode(self, link: Link) -> None:
        offsets = decode_columns(self._buffer.block(), ("offset",))["offset"]
        self._buffer.clear()
        if self._drops(link):
            assert isinstance(self.start, At)
            before, self._dropped = rows_to_drop(offsets, self.start, self._dropped, link.what)
            offsets = offsets.slice(before)
        check_offsets(offsets, self.start, link.what)
        if self.end is not None:
            count, self._ended = rows_until(offsets, self.end)
            offsets = offsets.slice(0, count)
        if len(offsets):
            self.start = After(offsets[len(offsets) - 1].as_py())
            self._ready.extend(offsets.to_pylist())
        if self._ended:
            self.close()


def _buffer(rows: int) -> ReceiveBuffer:
    return ReceiveBuffer(rows, rows * HEAD_BYTES)


def first_message(link: Link, missing: str, *, drain: bool = False) -> MessageBlock | None:
    """Return the first message that comes on a link without credit, which stays open.

    Args:
        link: the link.
        missing: what is missing if none comes, for messages.
        drain: whether the peer has to send it or to return the credit; then the result may be None.

    Raises:
        DeadlineExceeded: the peer neither sent a message nor returned the credit in time.
        SparkStreamsError: the peer ended the link, or the connection broke.
    """
    buffer, deadline = ReceiveBuffer(1, 64 << 10), Deadline(link.connection.timeout_ms)
    link.deliveries.drain = drain
    link.deliveries.flow(1)
    while not buffer.take(link.deliveries):
        link.check()
        if drain and not link.deliveries.draining:
            return None
        link.turn(deadline.left_s(missing))
    return buffer.block()


def first_offset(link: Link) -> str | None:
    """Return the offset of the first event that a link's filter matches, or None when the peer has none; detach.

    Raises:
        DeadlineExceeded: the peer neither sent the event nor returned the credit.
    """
    link.deliveries.kept_bytes = HEAD_BYTES
    with closing(link):
        block = first_message(link, f"{link.what}: no answer to drain", drain=True)
    if block is None:
        return None
    offsets = decode_columns(block, ("offset",))["offset"]
    check_offsets(offsets, EARLIEST, link.what)
    return str(offsets[0].as_py())
