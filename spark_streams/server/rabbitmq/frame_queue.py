"""Tracks what a connection waits for before its next frame: the work on the last frame, and entries in storing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

UNCONFIRMED_BYTES: Final = 16 << 20
"""The most bytes of entries in storing at a time; with more no frames are handled."""
_RESUME_AT: Final = 0.75


class FrameQueue:
    """Runs the work of one connection that takes longer than a turn or waits for the disk, on one frame at a time.

    So the next frame sees the effects of this one.

    Args:
        loop: the server's.
        ended: called on the loop when the work has ended: with its error, or None. Not called after ``give_up``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Exception | None], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether work is under way."""
        return self._task is not None

    def begin(self, work: Coroutine[object, object, None]) -> None:
        """Begin the work on a frame; call it when no other work is under way."""
        assert self._task is None
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over)

    def give_up(self) -> None:
        """Cancel the work, because the connection ends."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if self._task is not task:
            return  # given up: nobody needs the error of a cancelled task
        self._task = None
        assert fault is None or isinstance(fault, Exception)
        self._ended(fault)


class UnconfirmedEntries:
    """The entries of one connection that are being stored (S-106).

    Args:
        loop: the server's.
        most: the most entries in storing at a time; with more no frames are handled.
        resume: called when frames may be handled again.

    Attributes:
        too_many: whether no more frames may be handled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, resume: Callable[[], None]) -> None:
        self.too_many = False
        self._loop = loop
        self._most = most
        self._resume = resume
        self._entries = 0
        self._bytes = 0
        self._stored: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Whether entries are being stored."""
        return self._entries > 0

    def add(self, entries: int, size: int) -> None:
        """Count entries that are being stored, and their bytes; with negative numbers once they are stored."""
        self._entries += entries
        self._bytes += size
        if not self._entries and self._stored is not None and not self._stored.done():
            self._stored.set_result(None)
        used = max(self._entries / self._most, self._bytes / UNCONFIRMED_BYTES)
        if self.too_many and used <= _RESUME_AT:
            self.too_many = False
            self._resume()
        elif not self.too_many and used > 1:
            self.too_many = True

    async def none_left(self) -> None:
        """Wait until all entries are stored; one caller at a time."""
        if self._entries:
            self._stored = self._loop.create_future()
            await self._stored
