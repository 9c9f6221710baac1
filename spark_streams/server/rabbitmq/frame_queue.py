"""What a frame asks for that takes longer than a turn, or waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

__all__ = ["FrameQueue"]


class FrameQueue:
    """The work of one connection: on one frame at a time, so that the next one finds what it has done.

    Args:
        loop: the server's.
        ended: called on the loop when it is over: with what went wrong, or None. Not when it was given up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Exception | None], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether it is not over yet."""
        return self._task is not None

    def begin(self, work: Coroutine[object, object, None]) -> None:
        """Do what a frame asks for; nothing else is being done."""
        assert self._task is None
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over)

    def give_up(self) -> None:
        """Leave it as it is: the connection ends."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if self._task is not task:
            return  # given up; whatever it met on its way out concerns nobody
        self._task = None
        assert fault is None or isinstance(fault, Exception)
        self._ended(fault)
