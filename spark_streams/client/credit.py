"""Link credit for reading: it begins small, grows while rows are consumed, and is topped up as they are.

A small range of a long log must not make the peer send thousands of events beyond it, a large one must not wait for
round trips. Bytes are bounded apart from this by the session's window (``connection.SESSION_BYTES``).
"""

from __future__ import annotations

from typing import Final

from spark_streams.client.links import Link

__all__ = ["CreditWindow"]

FIRST_CREDIT: Final = 256
MAX_CREDIT: Final = 4_096
"""Deliveries under way at most: 0.4 MB of 100-byte events; a session's window holds as many frames."""


class CreditWindow:
    """How many deliveries may be under way on one receiving link.

    Args:
        link: the link, without credit.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._target = FIRST_CREDIT
        link.flow(self._target)

    def top_up(self) -> None:
        """Grant what was consumed since, once half of the window is used up."""
        left = self._link.credit
        if left > self._target // 2:
            return
        self._target = min(2 * self._target, MAX_CREDIT)
        self._link.flow(self._target - left)
