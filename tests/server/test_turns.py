"""Who works next where there are few places: who has had least; so little work waits for no larger work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterator

import pytest

from spark_streams.server import turns
from spark_streams.server.turns import ASKER, Places, Worker

GUARD_S = 60.0
"""Only against hanging."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The seconds that ``turns`` sees, in a list of one."""
    now = [1_000.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    yield now


async def work(places: Places, asker: tuple[str, int], order: list[tuple[str, int]], clock: list[float]) -> None:
    """Take a place twenty times, for ten milliseconds each."""
    ASKER.set(asker)
    for _ in range(20):
        async with places.one():
            clock[0] += 0.01
            order.append(asker)
            await asyncio.sleep(0)


def test_the_next_place_is_for_the_user_who_has_had_least_and_for_that_users_least_connection(
    clock: list[float],
) -> None:
    async def played() -> list[tuple[str, int]]:
        places, order = Places(1), []
        many = [asyncio.create_task(work(places, ("ann", n), order, clock)) for n in range(10)]
        while len(order) < 40:
            await asyncio.sleep(0)
        late = asyncio.create_task(work(places, ("bob", 99), order, clock))
        newer = asyncio.create_task(work(places, ("ann", 50), order, clock))
        await asyncio.gather(*many, late, newer)
        return order

    order = asyncio.run(asyncio.wait_for(played(), GUARD_S))
    begun = order.index(("bob", 99))
    # One of ann's had the place when bob came, or one had been given it; while bob asks again another has a turn.
    assert begun <= 42 and order[begun : begun + 40 : 2] == [("bob", 99)] * 20
    # And that is the connection of ann's that has had least.
    assert order[begun + 1 : begun + 7].count(("ann", 50)) >= 2
    assert [order.index(("ann", n)) for n in range(10)] == list(range(10))
    assert len(order) == 12 * 20


def test_who_has_had_much_long_ago_does_not_wait_for_ever(clock: list[float]) -> None:
    async def played() -> int:
        places, order = Places(1), []
        await work(places, ("ann", 1), order, clock)
        waiting = asyncio.create_task(work(places, ("ann", 1), order, clock))
        for n in range(10_000):  # ever new ones
            await asyncio.gather(*(work_once(places, ("new", each)) for each in range(2 * n, 2 * n + 2)))
            clock[0] += 0.01
            if waiting.done():
                return n
        return -1

    async def work_once(places: Places, asker: tuple[str, int]) -> None:
        ASKER.set(asker)
        async with places.one():
            await asyncio.sleep(0)

    assert 0 <= asyncio.run(asyncio.wait_for(played(), GUARD_S)) < 1_000


def test_who_gives_up_takes_no_place_and_who_is_given_one_at_that_moment_passes_it_on() -> None:
    async def played() -> None:
        places = Places(1)
        first, second, third = (places.one() for _ in range(3))
        await first.__aenter__()
        waits, last = asyncio.create_task(second.__aenter__()), asyncio.create_task(third.__aenter__())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.sleep(0)
        assert waits.cancelled()
        await first.__aexit__(None, None, None)
        last.cancel()  # it has its place, and does not know it yet
        await asyncio.wait([last])
        assert last.cancelled()
        async with places.one():
            pass

    asyncio.run(asyncio.wait_for(played(), GUARD_S))


def test_a_long_step_keeps_nobody_from_the_other_thread() -> None:
    held, begun = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return held.wait(GUARD_S)

    async def played() -> list[int]:
        worker = Worker("test", 2)
        long = asyncio.create_task(worker.step(hold))
        assert await asyncio.to_thread(begun.wait, GUARD_S)
        short = [await worker.step(lambda n=n: n) for n in range(5)]  # type: ignore[misc]
        assert not long.done()
        held.set()
        assert await long
        worker.close()
        return short

    assert asyncio.run(asyncio.wait_for(played(), GUARD_S)) == list(range(5))


def test_a_generator_has_short_turns_and_more_than_one_step_in_each(clock: list[float]) -> None:
    steps: list[str] = []

    def long(name: str, seconds: float) -> Generator[None, None, str]:
        for _ in range(8):
            steps.append(name)
            clock[0] += seconds
            yield
        return name

    async def played() -> list[str]:
        worker = Worker("test")
        told = await asyncio.gather(worker.run(long("a", turns.TURN_S)), worker.run(long("b", turns.TURN_S / 4)))
        worker.close()
        return told

    assert asyncio.run(asyncio.wait_for(played(), GUARD_S)) == ["a", "b"]
    # A step of a's is a turn; b's are four, and b has had least until it has as much.
    assert steps[:5] == ["a", "b", "b", "b", "b"]
