"""Defines deadlines, and the retry loop: the only code that reads ``retriable`` of an error; it counts its retries."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_streams.errors import DeadlineExceeded, SparkStreamsError

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Deadline:
    """A point in time after which waiting is an error; ``restart`` moves it after progress.

    Args:
        timeout_ms: milliseconds from now.
    """

    __slots__ = ("_end", "timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.restart()

    def restart(self) -> None:
        """Start the time again from now."""
        self._end = time.monotonic() + self.timeout_ms / 1000

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._end

    def left_s(self, what: str) -> float:
        """Return the seconds that are left, more than 0.

        Args:
            what: what is missing, as in ``no answer to attach 'orders' by localhost:5672``.

        Raises:
            DeadlineExceeded: no time is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"{what} within {self.timeout_ms} ms: the peer hangs, or the network does; raise option "
                "'requestTimeout' if they are slow"
            )
        return left


@dataclass(frozen=True)
class Backoff:
    """How many times to try, and how long to pause in between.

    Args:
        attempts: tries in a row without progress, the first included.
        first_ms: milliseconds to pause after the first failure; the pause doubles with each further one.
        limit_ms: milliseconds of the longest pause.
    """

    attempts: int = 6
    first_ms: int = 100
    limit_ms: int = 2_000


DEFAULT_BACKOFF: Final = Backoff()
"""Six tries within about 3 s: a wrong port is reported soon."""
LONG_BACKOFF: Final = Backoff(attempts=24)
"""Tries for some 40 s: a broker that restarts takes 5 to 10 s, and then its streams come back one by one."""


class RetryCount:
    """The number of retries in this process, of any operation in any thread; thread-safe.

    Spark runs the driver's side of each stream, and each task while it lasts, in a process of its own. So the count
    before and after a step is what that step needed, and no client has to carry a counter through its layers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def add(self) -> None:
        """Note one retry."""
        with self._lock:
            self._count += 1

    def __call__(self) -> int:
        """Return the number of retries since the process began."""
        return self._count


retries: Final = RetryCount()


class Attempts:
    """The count of failures in a row.

    Args:
        backoff: how many times to try, and how long to pause in between.
        pause: waits for a number of seconds; None for a sleep, which nothing can end.
    """

    def __init__(self, backoff: Backoff = DEFAULT_BACKOFF, pause: Callable[[float], object] | None = None) -> None:
        self._backoff = backoff
        self._pause = pause
        self._failed = 0

    def progressed(self) -> None:
        """Forget the failures, as something has worked since."""
        self._failed = 0

    def after(self, fault: SparkStreamsError) -> None:
        """Pause before the next try.

        Raises:
            SparkStreamsError: ``fault`` itself, when it is not retriable or was the last allowed try.
        """
        seconds = self.pause_s(fault)
        _log.info("%s; trying again in %.1f s", fault, seconds)
        (self._pause or _pause)(seconds)

    def pause_s(self, fault: SparkStreamsError) -> float:
        """Count a failure, and return how many seconds to pause before the next try.

        A ``costly`` fault counts as half of the allowed tries: a silent connection is replaced once, and a peer that
        does not answer is reported after twice its timeout. A pause that the peer wants replaces the computed one.

        Raises:
            SparkStreamsError: ``fault`` itself, when it is not retriable or was the last allowed try.
        """
        # An error and its frames are a cycle. The objects of the frames must not wait for a garbage collection.
        traceback.clear_frames(fault.__traceback__)
        if fault.given_up:
            raise fault
        self._failed += 1 + (self._backoff.attempts - 1) // 2 * fault.costly
        if not fault.retriable:
            raise fault
        if self._failed >= self._backoff.attempts:
            fault.given_up = True
            raise fault
        retries.add()
        if fault.retry_after_s is not None:
            return fault.retry_after_s
        pause_ms: int = min(self._backoff.limit_ms, self._backoff.first_ms * 2 ** (self._failed - 1))
        return pause_ms / 1_000


def retrying(
    operation: Callable[[], _T],
    backoff: Backoff = DEFAULT_BACKOFF,
    was_reached: Callable[[], bool] = lambda: False,
    pause: Callable[[float], object] | None = None,
) -> _T:
    """Run ``operation`` until it succeeds, while its errors are retriable; return its result.

    Args:
        operation: what to try.
        backoff: how many times to try while the peer was never reached.
        was_reached: returns whether the peer has ever been reached: from then on it may be restarting, and
            ``LONG_BACKOFF`` says how many times to try.
        pause: as for ``Attempts``.

    Raises:
        SparkStreamsError: the last error of ``operation``.
    """
    short, long = Attempts(backoff, pause), Attempts(LONG_BACKOFF, pause)
    while True:
        try:
            return operation()
        except SparkStreamsError as fault:
            (long if was_reached() else short).after(fault)


def _pause(seconds: float) -> None:
    time.sleep(seconds)
