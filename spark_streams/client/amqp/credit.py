"""Keeps the flow of deliveries to a reader: how much credit its link has, and when the peer is asked to drain it.

Credit begins small, grows while rows are consumed, and is topped up as they are. A small range of a long log must not
make the peer send thousands of events beyond it, a large one must not wait for round trips. Large messages get less of
it, so that the bytes under way stay bounded; the session's window (``connection.SESSION_BYTES``) bounds them once more,
for what the average does not tell.

A peer that has nothing to send is silent, and so is one that is dead. Draining tells them apart, as the peer owes an
answer to it (AMQP 1.0 part 2 §2.6.7): after a short silence the reader looks whether its range is complete, after a
longer one it drains the link, and in the end it gives up.
"""

from __future__ import annotations

import time
from typing import Final

from spark_streams.client.amqp.links import Link
from spark_streams.client.retry import Deadline

MIN_CREDIT: Final = 8
FIRST_CREDIT: Final = 256
MAX_CREDIT: Final = 4_096
"""Deliveries under way at most: 0.4 MB of 100-byte events; a session's window holds as many frames."""

MAX_CREDIT_BYTES: Final = 32 << 20
"""What the deliveries under way may weigh together, by the average so far."""


class CreditWindow:
    """How many deliveries may be under way on one receiving link.

    Args:
        link: the link, without credit.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._target = FIRST_CREDIT
        self._rows = self._bytes = 0
        link.flow(self._target)

    def consumed(self, rows: int, size: int) -> None:
        """Count what was taken: ``rows`` messages of ``size`` bytes together."""
        self._rows += rows
        self._bytes += size

    def top_up(self) -> None:
        """Grant what was consumed since, once half of the window is used up."""
        left = self._link.credit
        if left > self._target // 2:
            return
        affordable = MAX_CREDIT_BYTES * max(1, self._rows) // max(1, self._bytes)
        self._target = max(MIN_CREDIT, min(2 * self._target, MAX_CREDIT, affordable))
        if self._target > left:
            self._link.flow(self._target - left)


CHECK_END_AFTER_S: Final = 0.005
"""Silence after which the last offset is looked at: the range may be complete."""
DRAIN_AFTER_S: Final = 0.25
"""Silence after which the peer is asked to drain."""
NARROWED_DRAIN_AFTER_S: Final = 0.02
"""The same where the peer leaves out events: the end of the range is then known by its answer alone."""


class DrainTimer:
    """Measures for how long nothing came, and says what is due.

    Args:
        timeout_ms: how long a peer that owes an answer may be silent.
        what: for the error, as in ``attach to 'orders': no events, and no answer to drain``.
        drain_after_s: silence after which the peer is asked to drain.

    Attributes:
        draining: whether the peer was asked to drain, and has not answered.
    """

    def __init__(self, timeout_ms: int, what: str, drain_after_s: float = DRAIN_AFTER_S) -> None:
        self._deadline = Deadline(timeout_ms)
        self._what = what
        self._drain_after_s = drain_after_s
        self.draining = False
        self.received()

    def received(self) -> None:
        """Note that something came: all times start anew."""
        self._since = time.monotonic()
        self._end_checked = False
        self._deadline.restart()

    def extend(self) -> None:
        """Give the peer its whole time once more, as it has shown that it lives; the silence goes on."""
        self._deadline.restart()

    def end_check_due(self) -> bool:
        """Return whether to look at the last offset now: true once in a silence."""
        if self._end_checked or time.monotonic() - self._since < CHECK_END_AFTER_S:
            return False
        self._end_checked = True
        return True

    def drain_due(self) -> bool:
        """Return whether to ask the peer to drain now; then it is ``draining``."""
        self.draining = time.monotonic() - self._since >= self._drain_after_s
        return self.draining

    def drained(self) -> None:
        """Note that the peer has answered the drain: all times start anew."""
        self.draining = False
        self.received()

    def timeout_s(self, has_rows: bool) -> float:
        """Return how long to wait now, in seconds.

        Args:
            has_rows: whether there is an offset to look at.

        Raises:
            DeadlineExceeded: the peer was silent for too long.
        """
        left = self._deadline.left_s(self._what)
        if self.draining:
            return left
        until = CHECK_END_AFTER_S if has_rows and not self._end_checked else self._drain_after_s
        return min(left, max(0.0, until - (time.monotonic() - self._since)))
