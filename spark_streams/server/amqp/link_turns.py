"""Gives the links of one connection their turns, counts the memory that they use, and tells its engine the time.

A link that has work to do is due. Each turn of the connection serves the links that are due, each a bounded share;
a link that waits for room in the socket or in memory is blocked, and due again when bytes have been written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from spark_streams.server.turns import Timer, Turn
from spark_streams.wire.amqp.engine.engine import Engine

BYTES_PER_TURN: Final = 512 << 10
"""About the most bytes of one link's turn: they wait in memory until the turn of the whole connection is over."""


class Served(Protocol):
    """A link, as it is given turns."""

    @property
    def ended(self) -> bool:
        """Whether it serves no more."""

    def serve(self) -> bool:
        """Do a bounded part of the work that is due; return whether there is more to do at once."""


class LinkTurns:
    """The turns of one connection's links.

    Args:
        queue: queues a turn of the connection.
        most_bytes: bytes that may be being stored; links must accept no more messages then.

    Attributes:
        paused: whether the socket accepts no more bytes.
    """

    def __init__(self, queue: Callable[[], None], most_bytes: int) -> None:
        self.paused = False
        self._queue = queue
        self._most_bytes = most_bytes
        self._storing_bytes = 0
        self._due: dict[Served, None] = {}
        self._blocked: dict[Served, None] = {}

    @property
    def due(self) -> bool:
        """Whether a link has work to do."""
        return bool(self._due)

    def make_due(self, link: Served) -> None:
        """Make a link due in the connection's next turn."""
        self._due[link] = None

    def wake(self, link: Served | None = None) -> None:
        """Queue a turn of the connection, and make a link due in it."""
        if link is not None and not link.ended:
            self.make_due(link)
        self._queue()

    def block(self, link: Served) -> None:
        """Make a link due again when bytes have been written."""
        self._blocked[link] = None

    def unblock(self) -> None:
        """Make the blocked links due, if the socket accepts bytes: they come before the links that are due already."""
        if not self.paused:
            self._due = {**self._blocked, **self._due}
            self._blocked.clear()

    def serve(self) -> None:
        """Serve the links that are due, at least one, until the turn is over."""
        waiting, self._due = self._due, {}
        turn = Turn(time.monotonic)  # links read from the disk
        while waiting:
            link = next(iter(waiting))
            del waiting[link]
            if not link.ended and link.serve():
                self._due[link] = None
            if turn.over:
                break
        # Links that had no turn come before links that need another one.
        self._due = {**waiting, **self._due}

    def clear(self) -> None:
        """Forget all links."""
        self._due.clear()
        self._blocked.clear()

    # --- memory

    def storing(self, more_bytes: int) -> None:
        """Count bytes of messages that are being stored; links that were ``full`` are served when there is room."""
        before = self.full
        self._storing_bytes += more_bytes
        if before and not self.full:
            self.unblock()
            self._queue()

    @property
    def full(self) -> bool:
        """Whether links must accept no more messages: sessions hold the next ones, within their session windows."""
        return self._storing_bytes >= self._most_bytes


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
