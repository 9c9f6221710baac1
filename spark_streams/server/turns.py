"""Decides what runs when: connections share the loop in turns, a worker thread has the longer work, timers call later.

All callers share one worker thread: threads that compute take the interpreter's lock from each other and from the
loop, so that more of them make nothing faster and the loop slower. Work of several steps queues again for each step, so
that every caller gets its turn, however much work another one has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

TURN_S: Final = 0.004
"""The length of a turn, in seconds. A connection with more work than this continues after the others had their turn: a
request of another connection, which takes two or three turns of the loop, then waits some ten milliseconds. A turn is
measured in processor time where it only computes: on a busy machine, too, a few small frames are one turn."""


class Turn:
    """A turn that has begun.

    Args:
        clock: returns seconds; work that waits for the disk on the loop is measured by ``time.monotonic``.
        share: how long it is, as a part of ``TURN_S``.
    """

    __slots__ = ("_clock", "_end")

    def __init__(self, clock: Callable[[], float] = time.thread_time, share: float = 1.0) -> None:
        self._clock = clock
        self._end = clock() + TURN_S * share

    @property
    def over(self) -> bool:
        """Whether others should have their turn now; the caller does at least one piece of work in each turn."""
        return self._clock() >= self._end


class Timer:
    """One call that is due later, or none.

    Args:
        loop: where the call is made.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    @property
    def due(self) -> bool:
        """Whether a call is due."""
        return self._handle is not None

    def start(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function after some seconds, instead of the call that is due."""
        self.stop()
        self._handle = self._loop.call_later(delay_s, self._call, function, arguments)

    def stop(self) -> None:
        """Make no call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._handle = None
        function(*arguments)


T = TypeVar("T")
_OVER: Final = object()


def one_turn(steps: Generator[object, None, object], turn: Turn) -> object:
    """Run a generator, whose steps may be short, for a turn; return what its last step yielded.

    Raises:
        StopIteration: it has ended; with what it returns.
    """
    while True:
        yielded = next(steps)
        if turn.over:
            return yielded


class Worker:
    """The worker thread; it is started when it is first needed.

    Args:
        name: the thread's name, as the system shows it.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    async def step(self, function: Callable[[], T]) -> T:
        """Call a function in the thread; return what it returns, or raise what it raises.

        When the caller is cancelled meanwhile, a function that has begun runs to its end, and others are not called.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def run(self, steps: Generator[object, None, T]) -> T:
        """Run a generator in the thread and return what it returns; the steps of each turn are queued by themselves."""
        returned: list[T] = []

        def step() -> object:
            try:
                return one_turn(steps, Turn(time.monotonic))
            except StopIteration as end:
                returned.append(end.value)
                return _OVER

        while await self.step(step) is not _OVER:
            pass
        return returned[0]

    def close(self) -> None:
        """Wait for the step that is running; queued steps are not run."""
        self._pool.shutdown(cancel_futures=True)
