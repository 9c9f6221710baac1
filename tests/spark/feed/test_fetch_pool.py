"""Turns of fetchers: how many at a time, by how few threads, in which order, and until when."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.spark.feed import fetch_pool
from spark_streams.spark.feed.fetch_pool import MAX_FETCHES, FetchPool

WAIT_S = 120.0
Turn = Callable[["Fake"], float | None]


class Clients:
    """Counts clients."""

    def __init__(self) -> None:
        self.open = self.opened = 0
        self._lock = threading.Lock()

    def connect(self) -> Any:
        with self._lock:
            self.open, self.opened = self.open + 1, self.opened + 1
        return closed_by(self._close)

    def _close(self) -> None:
        with self._lock:
            self.open -= 1


def closed_by(close: Callable[[], None]) -> Any:
    return SimpleNamespace(close=close)


class Fake:
    """A fetcher whose turns a test decides about."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.ended = threading.Event()
        self.turns = 0

    def turn(self, client: Callable[[], Any]) -> float | None:
        client()
        self.turns += 1
        seconds = self._turn(self)
        if seconds is None:
            self.ended.set()
        return seconds


@pytest.fixture
def clients() -> Clients:
    return Clients()


@pytest.fixture
def pool(clients: Clients) -> Iterator[FetchPool]:
    """A pool whose threads have ended after the test."""
    before = set(threading.enumerate())
    pool = FetchPool(clients.connect)
    yield pool
    pool.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert clients.open == 0


def test_a_few_threads_and_clients_serve_thousands(pool: FetchPool, clients: Clients) -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def turn(fetcher: Fake) -> float | None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        with lock:
            at_once -= 1
        return 0.0 if fetcher.turns < 3 else None

    fetchers = [Fake(turn) for _ in range(10_000)]
    for fetcher in fetchers:
        pool.add(fetcher)
    for fetcher in fetchers:
        assert fetcher.ended.wait(WAIT_S)
    assert Counter(fetcher.turns for fetcher in fetchers) == {3: 10_000}
    assert 1 <= most <= MAX_FETCHES and clients.opened <= MAX_FETCHES + 1


def test_so_many_fetch_at_a_time_and_others_when_some_do_not_count(pool: FetchPool) -> None:
    begun, released = threading.Semaphore(0), threading.Event()

    def fetching(_: Fake) -> float | None:
        begun.release()
        assert released.wait(WAIT_S)
        return None

    def waiting(_: Fake) -> float | None:
        with pool.not_fetching():
            begun.release()
            assert released.wait(WAIT_S)
        return None

    polls = [Fake(waiting) for _ in range(50)]
    for fetcher in polls:
        pool.add(fetcher)
    for _ in polls:
        assert begun.acquire(timeout=WAIT_S), "all of them wait at a time"
    fetchers = [Fake(fetching) for _ in range(2 * MAX_FETCHES)]
    for fetcher in fetchers:
        pool.add(fetcher)
    for _ in range(MAX_FETCHES):
        assert begun.acquire(timeout=WAIT_S)
    with pool._lock:
        assert pool._fetching == MAX_FETCHES
    assert sum(fetcher.turns for fetcher in fetchers) == MAX_FETCHES
    released.set()
    for fetcher in polls + fetchers:
        assert fetcher.ended.wait(WAIT_S)


def test_one_that_waits_for_ever_is_woken_also_during_its_turn(pool: FetchPool) -> None:
    began, goes_on = threading.Event(), threading.Event()

    def turn(fetcher: Fake) -> float | None:
        if fetcher.turns == 1:
            began.set()
            assert goes_on.wait(WAIT_S)
        return math.inf if fetcher.turns < 3 else None

    fetcher = Fake(turn)
    pool.wake(fetcher)  # it is not there yet
    pool.add(fetcher)
    assert began.wait(WAIT_S)
    pool.wake(fetcher)
    goes_on.set()
    while not fetcher.ended.is_set():  # its second turn comes by itself, its third by this
        pool.wake(fetcher)
        fetcher.ended.wait(0.01)
    pool.wake(fetcher)
    assert fetcher.turns == 3


def test_the_one_that_is_due_first_is_first(pool: FetchPool) -> None:
    order: list[str] = []
    done = threading.Event()

    def named(name: str) -> Turn:
        def turn(fetcher: Fake) -> float | None:
            if fetcher.turns == 1:
                return {"late": 0.2, "soon": 0.1, "never": math.inf}[name]
            order.append(name)
            if len(order) == 2:
                done.set()
            return None

        return turn

    fakes = {name: Fake(named(name)) for name in ("never", "late", "soon")}
    for fake in fakes.values():
        pool.add(fake)
    assert done.wait(WAIT_S)
    assert sorted(order) == ["late", "soon"]
    pool.wake(fakes["never"])
    assert fakes["never"].ended.wait(WAIT_S)


def test_idle_threads_end_and_new_ones_begin(
    pool: FetchPool, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_pool, "IDLE_S", 0.01)
    for n in range(1, 4):
        fetcher = Fake(lambda _: None)
        pool.add(fetcher)
        assert fetcher.ended.wait(WAIT_S)
        while any(thread.name == "feed-fetches" for thread in threading.enumerate()):
            threading.Event().wait(0.01)
        assert clients.open == 0 and clients.opened >= n
