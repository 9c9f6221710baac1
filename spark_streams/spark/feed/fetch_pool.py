"""The threads of a query's page fetchers: a few threads and connections, however many partitions the feed has.

A fetcher has a turn when it is due: a thread makes one request for it, on the connection that the thread keeps, and the
fetcher says when it is due again. A fetcher that waits for the planner, or within a long response, does not count as
fetching: another thread is started for the others where there is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from spark_streams.client.feed.client import FeedClient

MAX_FETCHES: Final = 16
"""Most responses that are fetched at a time; responses that wait for events do not count."""
IDLE_S: Final = 30.0
"""Seconds that a thread waits for a fetcher before it ends."""


class Fetcher(Protocol):
    """An object that the pool gives turns."""

    def turn(self, client: Callable[[], FeedClient]) -> float | None:
        """Make a request; it does not raise.

        Args:
            client: returns the thread's client, which it opens when it is first needed.

        Returns:
            Seconds until the next turn, ``math.inf`` to wait for ``FetchPool.wake``; None when it has ended.
        """


class FetchPool:
    """Gives turns to fetchers.

    Args:
        connect: opens a client.
    """

    def __init__(self, connect: Callable[[], FeedClient]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._next = threading.Condition(self._lock)
        """Condition on which one thread waits, until the first fetcher is due."""
        self._others = threading.Condition(self._lock)
        """Condition on which the other threads wait."""
        self._watched = False
        self._waiting = 0
        self._fetching = 0
        self._due: list[tuple[float, int, Fetcher]] = []
        self._turns: dict[Fetcher, int] = {}
        """The number of each fetcher's valid entry in ``_due``; -1 during its turn, -2 if it is woken in it."""
        self._numbers = count()
        self._stopped = False

    def add(self, fetcher: Fetcher) -> None:
        """Give a fetcher turns from now on, until it has ended."""
        with self._lock:
            self._schedule(fetcher, 0.0)

    def wake(self, fetcher: Fetcher) -> None:
        """Give a fetcher its next turn now, if it has not ended."""
        with self._lock:
            number = self._turns.get(fetcher)
            if number is None:
                return
            if number < 0:
                self._turns[fetcher] = -2
            else:
                self._schedule(fetcher, 0.0)

    def stop(self) -> None:
        """End the threads once no fetcher is due; each fetcher has to be woken, and has to end."""
        with self._lock:
            self._stopped = True
            self._next.notify_all()
            self._others.notify_all()

    @contextmanager
    def not_fetching(self) -> Iterator[None]:
        """Do not count the thread, during its turn, among those that fetch."""
        with self._lock:
            self._fetching -= 1
            self._staff()
        try:
            yield
        finally:
            with self._lock:
                self._fetching += 1  # perhaps above the limit: others have begun meanwhile, and their turns end

    # --- with the lock held

    def _schedule(self, fetcher: Fetcher, seconds: float) -> None:
        number = self._turns[fetcher] = next(self._numbers)
        heappush(self._due, (time.monotonic() + seconds, number, fetcher))
        if self._due[0][1] == number:
            self._next.notify()
        self._staff()

    def _staff(self) -> None:
        """Let a thread watch for the next fetcher that is due, if the limit allows one more to fetch."""
        if self._watched or not self._due or self._fetching >= MAX_FETCHES:
            return
        if self._waiting:
            self._others.notify()
        else:
            self._waiting += 1  # it waits as soon as it runs
            threading.Thread(target=self._run, name="feed-fetches", daemon=True).start()

    def _take(self) -> Fetcher | None:
        """Return the next fetcher once it is due; None when the thread has to end."""
        while True:
            while self._due and self._turns.get(self._due[0][2]) != self._due[0][1]:
                heappop(self._due)  # it was woken in the meantime
            if self._watched or self._fetching >= MAX_FETCHES or not self._due:
                if self._stopped and not self._due:
                    self._others.notify()  # so each of them ends
                    return None
                if not self._others.wait(IDLE_S) and (self._watched or not self._due):
                    return None
                continue
            left = self._due[0][0] - time.monotonic()
            if left <= 0:
                fetcher = heappop(self._due)[2]
                self._turns[fetcher] = -1
                return fetcher
            if self._stopped:
                self._others.notify()
                return None
            self._watched = True
            self._next.wait(min(left, IDLE_S))
            self._watched = False

    # --- the threads

    def _run(self) -> None:
        client: FeedClient | None = None

        def opened() -> FeedClient:
            nonlocal client
            if client is None:
                client = self._connect()
            return client

        try:
            while True:
                with self._lock:
                    fetcher = self._take()
                    self._waiting -= 1
                    if fetcher is None:
                        return
                    self._fetching += 1
                    self._staff()
                seconds = fetcher.turn(opened)
                with self._lock:
                    self._fetching -= 1
                    self._waiting += 1
                    woken = self._turns.pop(fetcher) == -2
                    if seconds is not None:
                        self._schedule(fetcher, 0.0 if woken else seconds)
                    self._staff()
        finally:
            if client is not None:
                client.close()
