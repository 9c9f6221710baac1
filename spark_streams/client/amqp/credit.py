"""Link credit for reading: it begins small, grows while rows are consumed, and is topped up as they are.

A small range of a long log must not make the peer send thousands of events beyond it, a large one must not wait for
round trips. Large messages get less of it, so that the bytes under way stay bounded; the session's window
(``connection.SESSION_BYTES``) bounds them once more, for what the average does not tell.
"""

from __future__ import annotations

from typing import Final

from spark_streams.client.amqp.links import Link

__all__ = ["CreditWindow"]

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
