"""Tells the engine of a connection the time, at which it says that it is there, or finds its peer silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_streams.server.turns import Timer
from spark_streams.wire.amqp.engine.engine import Engine


class IdleClock:
    """The loop's time without the pauses in reading: a peer whose bytes are not read does not count as silent.

    Args:
        loop: the server's.
        due: called on the loop at the engine's next deadline.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[], None]) -> None:
        self._loop = loop
        self._due = due
        self._timer = Timer(loop)
        self._deadline = 0.0
        self._paused_at: float | None = None
        self._paused_s = 0.0

    def pause(self) -> None:
        """Stop the clock."""
        self._paused_at = self._loop.time()

    def resume(self) -> None:
        """Let the clock run again."""
        if self._paused_at is not None:
            self._paused_s += self._loop.time() - self._paused_at
            self._paused_at = None

    def tick(self, engine: Engine) -> None:
        """Tell the engine the time, and schedule ``due`` at its next deadline.

        Raises:
            Violation: the peer has been silent for longer than it may.
        """
        now = self._loop.time() if self._paused_at is None else self._paused_at
        deadline = engine.tick(now - self._paused_s)
        if not deadline or self._paused_at is not None:
            return
        deadline += self._paused_s
        if not self._timer.due or deadline < self._deadline:
            self._deadline = deadline
            self._timer.start(deadline - self._loop.time(), self._due)

    def stop(self) -> None:
        """Cancel the call of ``due``."""
        self._timer.stop()
