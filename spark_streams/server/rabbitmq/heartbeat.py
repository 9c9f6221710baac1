"""Heartbeats of one connection, both ways.

Spec: Streams Protocol Reference, Heartbeat; docs/specifications.md, S-14.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["HeartbeatTimer"]

SILENT_INTERVALS: Final = 2
"""A peer is dead after so many intervals without a byte from it."""


class HeartbeatTimer:
    """Notes when bytes were sent and received last; after ``start`` sends heartbeats and notices a silent peer.

    Args:
        loop: the server's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received = self._sent = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def received(self) -> None:
        """Note that bytes came from the peer."""
        self._received = self._loop.time()

    def sent(self) -> None:
        """Note that bytes were sent to the peer."""
        self._sent = self._loop.time()

    def start(self, interval_s: int, send: Callable[[], None], silent: Callable[[], None]) -> None:
        """Begin to send heartbeats and to expect them.

        Args:
            interval_s: the interval that both sides agreed on, in seconds; 0 for no heartbeats.
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
        """Send and expect none any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
