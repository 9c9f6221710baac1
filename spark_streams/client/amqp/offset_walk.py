"""Walks over offsets without reading events, and finds the first event from a time on.

Opaque offsets cannot be counted with, so the end of "the next 5,000 events" is found by walking there. Of each delivery
only the first bytes, with the delivery annotations, are copied; bodies are neither copied nor decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_streams.client.amqp.credit import MAX_CREDIT, DrainTimer
from spark_streams.client.amqp.links import Link
from spark_streams.client.amqp.receive_buffer import HeadBuffer
from spark_streams.client.amqp.row_decoder import check_offsets, rows_before, rows_until
from spark_streams.client.retry import Attempts
from spark_streams.errors import DeadlineExceeded, SparkStreamsError
from spark_streams.position import EARLIEST, After, At, Earliest
from spark_streams.wire.amqp.columns import decode_columns

_BLOCK_ROWS: Final = 16_384


class AmqpOffsetWalk:
    """The offsets of one partition, in order, as many at a time as are asked for. The link stays open in between.

    Args:
        attach: attaches a receiver that begins at a position; where its peer cannot say that, at an earlier one, which
            is given too.
        start: where to begin.
        end: last offset that is wanted, inclusive; None for no end.
        timeout_ms: how long the peer may be silent when it owes an answer.
    """

    def __init__(
        self,
        attach: Callable[[Earliest | At | After, Earliest | After], Link],
        start: Earliest | At | After,
        end: str | None,
        timeout_ms: int,
    ) -> None:
        self._attach = attach
        self._start = start
        self._dropped: Earliest | After = EARLIEST
        self._end = end
        self._timeout_ms = timeout_ms
        self._link: Link | None = None
        self._buffer = HeadBuffer(_BLOCK_ROWS)
        self._ready: list[str] = []
        self._ended = False

    def take(self, n: int) -> list[str]:
        """Return the next ``n`` offsets; fewer when the end was reached, or there is nothing more now.

        Raises:
            TransportError: the peer fell silent, or the connection broke more often than is tried. The walk can go on:
                nothing that was not returned is skipped.
            PeerError, RemoteProtocolError: as for ``AmqpClient.fetch``.
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
                    self._buffer.take(self._link.impl)
                    if self._buffer.rows:
                        self._decode(self._link)  # what came whole need not come again
                self.close()
                if (len(self._ready), self._dropped) != before:
                    attempts.progressed()
                attempts.after(fault)
        taken, self._ready = self._ready[:n], self._ready[n:]
        return taken

    def close(self) -> None:
        """Detach; a later ``take`` attaches anew."""
        if self._link is not None:
            self._link.close()
            self._link = None
            self._buffer = HeadBuffer(_BLOCK_ROWS)

    def _advance(self, count: int) -> bool:
        """Receive until ``count`` offsets are ready or the end is reached; return False when there are no more now."""
        link = self._opened()
        link.drain(False)  # an earlier call may have found what it needed while draining
        link.gave_back()
        timer = DrainTimer(self._timeout_ms, f"{link.what}: no events, and no answer to drain")
        while len(self._ready) < count and not self._ended:
            if self._buffer.take(link.impl):
                timer.received()
            missing = count - len(self._ready) - self._buffer.rows
            full = missing <= 0 or self._buffer.rows >= _BLOCK_ROWS // 2
            if self._buffer.rows and (full or timer.draining or timer.end_check_due()):
                self._decode(link)
                continue
            link.check()
            if timer.draining:
                if not link.draining:
                    gave_back = link.gave_back()
                    link.drain(False)
                    timer.drained()
                    if gave_back:
                        return False
            elif link.credit and timer.drain_due():
                link.drain(True)
            else:
                # Never more than is missing: what was not asked for is not sent, and the next take goes on there.
                window = MAX_CREDIT if self._drops(link) else min(missing, MAX_CREDIT)
                if link.credit <= window // 2:
                    link.flow(window - link.credit)
            link.connection.turn(timer.timeout_s(self._buffer.rows > 0))
        return True

    def _opened(self) -> Link:
        if self._link is None:
            self._link = self._attach(self._start, self._dropped)
        return self._link

    def _drops(self, link: Link) -> bool:
        """Return whether what comes now may lie before the start, on a link that began before it."""
        return link.early and isinstance(self._start, At)

    def _decode(self, link: Link) -> None:
        offsets = decode_columns(self._buffer.block(), ("offset",))["offset"]
        self._buffer.clear()
        if self._drops(link):
            assert isinstance(self._start, At)
            check_offsets(offsets, self._dropped, link.what)
            before = rows_before(offsets, self._start.offset)
            if before:
                self._dropped = After(offsets[before - 1].as_py())
            offsets = offsets.slice(before)
        check_offsets(offsets, self._start, link.what)
        if self._end is not None:
            count, self._ended = rows_until(offsets, self._end)
            offsets = offsets.slice(0, count)
        if len(offsets):
            self._start = After(offsets[len(offsets) - 1].as_py())
            self._ready.extend(offsets.to_pylist())
        if self._ended:
            self.close()


def first_offset(link: Link, timeout_ms: int) -> str | None:
    """Return the offset of the first event that a link's filter lets through, or None: a definite answer.

    One credit is granted and drained, so the peer has to send the event or give the credit back.

    Raises:
        DeadlineExceeded: it did neither.
    """
    buffer = HeadBuffer(1)
    timer = DrainTimer(timeout_ms, f"{link.what}: no answer to drain")
    link.drain(True)
    link.flow(1)
    timer.draining = True
    while not buffer.take(link.impl):
        link.check()
        if not link.draining:
            return None
        link.connection.turn(timer.timeout_s(False))
    offsets = decode_columns(buffer.block(), ("offset",))["offset"]
    check_offsets(offsets, EARLIEST, link.what)
    return str(offsets[0].as_py())
