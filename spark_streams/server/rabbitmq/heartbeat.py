"""Heartbeats of one connection, both ways.

Spec: Streams Protocol Reference, Heartbeat; docs/specifications.md, S-14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["HeartbeatTimer"]

SILENT_INTERVALS: Final = 2
"""Intervals without a byte after which a peer is dead."""


class HeartbeatTimer:
    """When something was sent and received last, and what follows from it once ``start`` was called.

    Args:
        loop: the server's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received = self._sent = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def received(self) -> None:
        """Note that the peer lives."""
        self._received = self._loop.time()

    def sent(self) -> None:
        """Note that the peer is told so of us."""
        self._sent = self._loop.time()

    def start(self, interval_s: int, send: Callable[[], None], silent: Callable[[], None]) -> None:
        """Begin to send and to expect signs.

        Args:
            interval_s: what was agreed on, in seconds; 0 for none at all.
            send: called when nothing was sent for half an interval.
            silent: called when nothing came for two intervals, and again until something does or ``stop`` is called.
        """
        if not interval_s:
            return

        def beat() -> None:
            self._timer = self._loop.call_later(interval_s / 2, beat)
            now = self._loop.time()
            if now - self._received > SILENT_INTERVALS * interval_s:
                silent()
            if now - self._sent >= interval_s / 2:
                send()

        self._timer = self._loop.call_later(interval_s / 2, beat)

    def stop(self) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
