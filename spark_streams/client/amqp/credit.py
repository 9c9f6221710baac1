"""Link credit for reading: it begins small, grows while rows are consumed, and is topped up as they are.

A small range of a long log must not make the peer send thousands of events beyond it, a large one must not wait for
round trips. Large messages get less of it, so that the bytes under way stay bounded; the session's window
(``connection.SESSION_BYTES``) bounds them once more, for what the average does not tell.

How long nothing came, and what is done about it: look, drain, give up.

A peer that has nothing to send says nothing, and so does one that is dead.
Draining tells them apart: it owes an answer.
"""

from __future__ import annotations

import time
from typing import Final

from spark_streams.client.amqp.links import Link
from spark_streams.client.retry import Deadline

__all__ = ["CreditWindow", "DrainTimer"]

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


GLANCE_S: Final = 0.005
"""Silence after which the last offset is looked at: the range may be complete."""
DRAIN_AFTER_S: Final = 0.25
"""Silence after which the peer is asked to drain."""
NARROWED_DRAIN_AFTER_S: Final = 0.02
"""The same where the peer leaves out events: the end of the range is then known by its answer alone."""


class DrainTimer:
    """The time since something came.

    Args:
        timeout_ms: how long a peer that owes an answer may be silent.
        what: for the error, as in ``attach to 'orders': no events, and no answer to drain``.
        drain_after_s: silence after which the peer is asked to drain.
    """

    def __init__(self, timeout_ms: int, what: str, drain_after_s: float = DRAIN_AFTER_S) -> None:
        self._deadline = Deadline(timeout_ms)
        self._what = what
        self._drain_after_s = drain_after_s
        self.draining = False
        self.broken()

    def broken(self) -> None:
        """Take it that something came."""
        self._since = time.monotonic()
        self._glanced = False
        self._deadline.restart()

    def excused(self) -> None:
        """Take it that the peer has a reason: it gets its time once more."""
        self._deadline.restart()

    def glance(self) -> bool:
        """Say, once per silence, that it is time to look at the last offset."""
        if self._glanced or time.monotonic() - self._since < GLANCE_S:
            return False
        self._glanced = True
        return True

    def asks_drain(self) -> bool:
        """Say that it is time to drain, and take it that this is done."""
        self.draining = time.monotonic() - self._since >= self._drain_after_s
        return self.draining

    def ended_drain(self) -> None:
        """Take it that the drain was answered."""
        self.draining = False
        self.broken()

    def patience_s(self, glancing: bool) -> float:
        """Return how long to wait now, in seconds.

        Args:
            glancing: whether there is an offset to look at.

        Raises:
            DeadlineExceeded: the peer was silent for too long.
        """
        left = self._deadline.left_s(self._what)
        if self.draining:
            return left
        until = GLANCE_S if glancing and not self._glanced else self._drain_after_s
        return min(left, max(0.0, until - (time.monotonic() - self._since)))
