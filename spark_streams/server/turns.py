"""Turns on the loop, and the worker thread for what takes longer than a turn.

There is one worker thread, whoever asks: threads that compute take the interpreter's lock from each other and from the
loop, so that more of them make nothing faster and the loop slower. Work of several steps queues anew for each, so that
everybody has a turn, however much somebody else has to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

TURN_S: Final = 0.004
"""Whoever has more to do than this goes on when the others have had their turn: a request of theirs, which takes two or
three turns of the loop, then waits some ten milliseconds. It is the processor's time: on a busy machine, too, a few
small frames are one turn."""


class Turn:
    """A turn that has begun."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = time.thread_time() + TURN_S

    @property
    def over(self) -> bool:
        """Whether others should have theirs now; at least one thing has to be done in each."""
        return time.thread_time() >= self._end


T = TypeVar("T")
_OVER: Final = object()


class Worker:
    """The thread; it is started when it is first needed.

    Args:
        name: what the system shows.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    async def step(self, function: Callable[[], T]) -> T:
        """Return what a function returns, or raise what it raises; it is called in the thread.

        Whoever is cancelled meanwhile leaves it behind: it is not called any more, or called to its end.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def walk(self, steps: Generator[object, None, T]) -> T:
        """Return what a generator returns; each step to its next ``yield`` has its turn in the thread."""
        returned: list[T] = []

        def step() -> object:
            try:
                return next(steps)
            except StopIteration as end:
                returned.append(end.value)
                return _OVER

        while await self.step(step) is not _OVER:
            pass
        return returned[0]

    def close(self) -> None:
        """Wait for the step that is being done; those that wait are not done."""
        self._pool.shutdown(cancel_futures=True)
