"""Orders all work: connections share the loop in turns, a worker thread has the longer work, timers call later.

All callers share one worker thread, or two: threads that compute take the interpreter's lock from each other and from
the loop, so more of them would make no work faster and the loop slower. Work of several steps queues again for each
turn. The next turn goes to the user that has had the least time (``Places``), however much work, or however many
connections, other users have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

TURN_S: Final = 0.001
"""The length of a turn, in seconds. A connection with more work than this continues after the others had their turn: a
request of another connection, such as one to the feed with a large body, takes up to ten turns of the loop. A turn that
only computes is measured in processor time, so that a few small frames are one turn on a busy machine, too."""
ASKER: Final[ContextVar[tuple[str, int]]] = ContextVar("ASKER")
"""The owner of a task: a user's name, and the ``id`` of the connection; a task without it counts as a user of its
own."""
HALF_S: Final = 1.0
"""Seconds after which half of the time that a user has had is forgotten, so that a user that waits long gets a turn in
the end."""


class Turn:
    """A turn that has begun.

    Args:
        clock: returns seconds; work that waits for the disk on the loop is measured by ``time.monotonic``.
        share: the length of the turn, as a part of ``TURN_S``.
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
        """Cancel the call that is due, if there is one."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._handle = None
        function(*arguments)


T = TypeVar("T")


def one_turn(steps: Generator[object, None, object], turn: Turn) -> None:
    """Run a generator, whose steps may be short, for a turn.

    Raises:
        StopIteration: the generator has ended; the exception has what it returned.
    """
    next(steps)
    while not turn.over:
        next(steps)


class Places:
    """Some places to work at; little work comes before the rest of large work.

    The next place goes to the user that has had the least time there, and among the connections of that user to the one
    that has had the least.

    Args:
        number: how many places there are.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[tuple[str, int], asyncio.Future[float]]] = []
        self._had: dict[Hashable, float] = {}
        """The seconds that each user has had, and each connection, together with its user."""
        self._halved_s = 0.0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a place, and have it until the context ends."""
        asker = ASKER.get(None) or ("", id(asyncio.current_task()))
        place: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((asker, place))
        self._give()
        try:
            await place
            yield
        finally:
            if not place.cancelled():
                self._free += 1
                for each in (asker[0], asker):
                    self._had[each] = self._had.get(each, 0.0) + time.monotonic() - place.result()
            self._give()

    def _give(self) -> None:
        now_s, had = time.monotonic(), self._had
        if now_s >= self._halved_s + HALF_S:
            had = self._had = {each: seconds / 2 for each, seconds in had.items() if seconds > TURN_S}
            self._halved_s = now_s
        self._waiting = [each for each in self._waiting if not each[1].done()]  # not those that were cancelled
        while self._free and self._waiting:
            due = min(self._waiting, key=lambda each: (had.get(each[0][0], 0.0), had.get(each[0], 0.0)))
            self._waiting.remove(due)
            self._free -= 1
            due[1].set_result(now_s)


class Worker(Places):
    """The worker thread, which is the place to work at; it is started when it is first needed.

    Args:
        name: the thread's name, as the system shows it.
        threads: the number of threads; more than one where single steps may be long.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        super().__init__(threads)
        self._pool = ThreadPoolExecutor(threads, name)

    async def step(self, function: Callable[[], T]) -> T:
        """Call a function in the thread; return what it returns, or raise what it raises.

        When the caller is cancelled meanwhile, a function that has begun runs to its end, and others are not called.
        """
        async with self.one():
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def run(self, steps: Generator[object, None, T]) -> T:
        """Run a generator in the thread and return what it returns; it may give up its turn where it yields."""
        returned: list[T] = []

        def step() -> None:
            try:
                one_turn(steps, Turn(time.monotonic))
            except StopIteration as end:
                returned.append(end.value)

        while not returned:
            await self.step(step)
        return returned[0]

    def close(self) -> None:
        """Wait for the step that is running; queued steps are not run."""
        for _, place in self._waiting:
            place.cancel()
        self._pool.shutdown(cancel_futures=True)
