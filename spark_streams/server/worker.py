"""Work that would hold up the loop, done in a thread beside it, a step at a time.

One thread, whoever asks: threads that compute take the interpreter's lock from each other and from the loop, so that
more of them make nothing faster and the loop slower. Work of several steps queues anew for each, so that everybody has
a turn, however much somebody else has to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

__all__ = ["Worker"]

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
