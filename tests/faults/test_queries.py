"""Faults on the way: the query goes on by itself, with nothing lost and nothing doubled; or it fails and says why.

One query for each protocol and direction goes through all scenarios that it has to outlive (tests/faults/scenarios.py),
over TLS; some are tried without TLS, too. Spark may try a task four times, as it does on clusters: a sink needs that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.doors import FORMATS, Doors, doors
from tests.faults.queries import NOT_STARTED, Reading, Writing
from tests.faults.scenarios import GIVES_UP, GOES_ON, GivesUp, GoesOn
from tests.sessions import session_of_its_own

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS = 400
"""Of each partition, in each scenario: about 100 kB."""
STARTS = 5
"""How often a query is started whose Python process does not come up within the ten seconds that Spark gives it."""
SHORT_MS = 2_000
"""Of option ``requestTimeout``, where the peer stays silent."""
KINDS = {"read": Reading, "write": Writing}


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """Two cores, and tasks that may fail three times: other static settings than the run's Spark has."""
    with session_of_its_own("local[2,4]", log_level="OFF") as started:
        yield started


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Doors]]:
    """A log whose doors speak TLS, and one whose doors do not."""
    folder = tmp_path_factory.mktemp("faults")
    with doors(folder / "tls", tls=True) as secured, doors(folder / "plain", tls=False) as plain:
        yield {True: secured, False: plain}


@pytest.fixture(scope="module")
def running(
    session: Any, logs: dict[bool, Doors], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str, bool], Any]]:
    """A function that returns the query for a direction and a format; another one if that has failed."""
    folder = tmp_path_factory.mktemp("queries")
    current: dict[tuple[str, str, bool], Any] = {}
    count = 0

    def query(kind: str, format: str, tls: bool) -> Any:
        nonlocal count
        key = (kind, format, tls)
        found = current.get(key)
        if found is None or not found.query.isActive:
            for other in current.values():
                other.stop()  # one at a time: the machine has few cores
            current.clear()
            for _ in range(STARTS):
                count += 1
                found = current[key] = KINDS[kind](session, logs[tls], format, f"{kind}-{format}-{count}", folder)
                found.append(10)
                if found.starts():
                    break
            found.wait()
        return found

    yield query
    for each in current.values():
        each.stop()


def cases() -> list[Any]:
    """Format, direction, TLS and fault; those of one query stand together."""
    return [
        pytest.param(
            kind,
            format,
            tls,
            scenario,
            id=f"{format}-{kind}-{'tls' if tls else 'plain'}-{scenario.name.replace(' ', '-')}",
            marks=[pytest.mark.slow]
            if scenario.slow or (kind == "write" and (scenario.slow_writing or not tls))
            else [],
        )
        for format in FORMATS
        for kind in KINDS
        for tls in (True, False)
        for scenario in GOES_ON
        if tls or (scenario.plain and (not scenario.only or (format in scenario.only and kind == "read")))
    ]


@pytest.mark.parametrize(("kind", "format", "tls", "scenario"), cases())
def test_it_goes_on(
    running: Callable[[str, str, bool], Any], kind: str, format: str, tls: bool, scenario: GoesOn
) -> None:
    query = running(kind, format, tls)
    proxy = query.proxy
    struck, connections = len(proxy.struck), proxy.connections
    scenario.does(proxy, kind == "write")
    query.append(EVENTS)
    query.wait()
    assert not proxy.pending, "all that was ordered has happened"
    proxy.heal()
    query.check()
    if len(proxy.struck) > struck:
        query.append(10)
        query.wait()
        query.check()
        assert proxy.connections > connections, "what was broken was replaced"


@pytest.mark.parametrize(
    ("kind", "format", "scenario"),
    [
        pytest.param(
            kind,
            format,
            scenario,
            id=f"{format}-{kind}-{scenario.name.replace(' ', '-')}",
            marks=[pytest.mark.slow] if format in (scenario.slow_writing if kind == "write" else scenario.slow) else [],
        )
        for format in FORMATS
        for kind in KINDS
        for scenario in GIVES_UP
    ],
)
def test_it_gives_up(
    session: Any, logs: dict[bool, Doors], tmp_path: Path, kind: str, format: str, scenario: GivesUp
) -> None:
    before = None if scenario.started else scenario.does
    for attempt in range(STARTS):
        name = f"{kind}-{format}-{scenario.name.replace(' ', '-')}-{attempt}"
        query = KINDS[kind](session, logs[True], format, name, tmp_path, SHORT_MS, before)
        try:
            if scenario.started:
                query.append(10)
                if not query.starts():
                    continue
                query.wait()
                scenario.does(query.proxy)
            query.append(EVENTS)
            said = query.failure()
        finally:
            query.stop()
        if NOT_STARTED not in said:
            break
    assert re.search(r"\b(ConnectFailed|ConnectionLost|DeadlineExceeded|DeliveryFailed)\b", said), said
    assert re.search(scenario.says, said), said
