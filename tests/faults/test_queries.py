"""Faults on the way: the query goes on by itself, with nothing lost and nothing doubled; or it fails and says why.

One query for each protocol and direction goes through all scenarios that it has to outlive (tests/faults/scenarios.py),
over TLS; some are tried without TLS, too. Spark may try a task four times, as it does on clusters: a sink needs that.

`make test` tries each kind of fault with a pair or more, and each pair of format and direction; the nightly tests all.
"""

from __future__ import annotations

import collections
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from spark_streams.testing import StreamFactory, eventually
from tests.e2e.stored import stored
from tests.faults.doors import FORMATS, Doors, doors
from tests.faults.figures import tried_s
from tests.faults.proxy import Break
from tests.faults.queries import GUARD_S, NOT_STARTED, PARTITIONS, Reading, Writing
from tests.faults.scenarios import GIVES_UP, GOES_ON, GivesUp, GoesOn
from tests.sessions import session_of_its_own

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS = 400
"""Of each partition, in each scenario: about 100 kB."""
STARTS = 5
"""How often a query is started whose Python process does not come up within the ten seconds that Spark gives it."""
SHORT_MS = 2_000
"""Of option ``requestTimeout``, where the peer stays silent."""
ATTEMPTS = 4
"""How often Spark tries a task."""
ASKED = 1 + ATTEMPTS
"""How often Spark has it tried: once by the driver, and in each attempt of a task."""
MARGIN_S = 90.0
"""For starting Python processes for all that, and for a machine that is busy; far less than trying without an end."""
IN_CLEAR = {("write", "feedapi")}
"""What is damaged without TLS by day; the others do likewise, and are left to the night."""
KINDS = {"read": Reading, "write": Writing}


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """Two cores, and tasks that may fail three times: other static settings than the run's Spark has."""
    with session_of_its_own(f"local[2,{ATTEMPTS}]", log_level="OFF") as started:
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
            marks=[]
            if format in (scenario.reading if kind == "read" else scenario.writing) and (tls or scenario.only)
            else [pytest.mark.nightly],
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
    struck, connections, slowed = len(proxy.struck), proxy.connections, proxy.slowed
    scenario.does(proxy, kind == "write")
    query.append(EVENTS)
    query.wait()
    # A feed's events may come on a response that is open: nothing goes to the log before that one ends.
    eventually(lambda: not proxy.pending, "all that was ordered has happened", 90)
    assert not scenario.slows or proxy.slowed > slowed
    proxy.heal()
    query.check()
    if len(proxy.struck) > struck:

        def replaced() -> bool:
            query.append(10)
            query.wait()
            return bool(proxy.connections > connections)

        # A sink's worker needs its connection again with its next task, which another worker may get (ADR 45).
        eventually(replaced, "what was broken was replaced", GUARD_S)
        query.check()


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        pytest.param(kind, format, marks=[] if (kind, format) in IN_CLEAR else [pytest.mark.nightly])
        for format in FORMATS
        for kind in KINDS
        if (kind, format) != ("read", "rabbitmq-stream")  # its chunks have a check: see test_it_goes_on
    ],
)
def test_damage_in_clear(session: Any, logs: dict[bool, Doors], tmp_path: Path, kind: str, format: str) -> None:
    """In an event it goes unnoticed, and nothing else is harmed; a frame without sense ends the connection or more."""
    for attempt in range(STARTS):
        query = KINDS[kind](session, logs[False], format, f"{kind}-{format}-clear-{attempt}", tmp_path)
        query.append(10)
        if query.starts():
            break
        query.stop()
    try:
        query.wait()
        query.proxy.order(Break("corrupt", 0, kind == "write", within=b"x" * 50))
        query.append(EVENTS)
        query.wait()
        assert not query.proxy.pending
        (appended,), (came,) = query.differences()
        assert sum(a != b for a, b in zip(appended, came, strict=True)) == 1

        query.proxy.order(Break("corrupt", 3, kind == "write"))
        query.append(EVENTS)
        try:
            query.wait()
        except StreamingQueryException as fault:
            assert re.search(r"\b(RemoteProtocolError|Refused|DeliveryFailed)\b", str(fault)), fault
            missing, others = query.differences()
            assert len(missing) > 1 and others == [came], "some have not come, and nothing else has"
        else:
            assert query.differences() == ([appended], [came]), "the connection was replaced"
        assert not query.proxy.pending
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("kind", "format", "scenario"),
    [
        pytest.param(
            kind,
            format,
            scenario,
            id=f"{format}-{kind}-{scenario.name.replace(' ', '-')}",
            marks=[] if format in (scenario.reading if kind == "read" else scenario.writing) else [pytest.mark.nightly],
        )
        for format in FORMATS
        for kind in KINDS
        for scenario in GIVES_UP
        if kind in scenario.row and format not in scenario.outlived
    ],
)
def test_it_gives_up(
    session: Any, logs: dict[bool, Doors], tmp_path: Path, kind: str, format: str, scenario: GivesUp
) -> None:
    least_s, most_s = tried_s(scenario.row[kind], format, SHORT_MS / 1_000)
    along = kind == "write"
    before = None if scenario.started else functools.partial(scenario.does, along=along)
    for attempt in range(STARTS):
        name = f"{kind}-{format}-{scenario.name.replace(' ', '-')}-{attempt}"
        began = time.monotonic()
        query = KINDS[kind](session, logs[scenario.tls], format, name, tmp_path, SHORT_MS, before)
        try:
            if scenario.started:
                query.append(10)
                if not query.starts():
                    continue
                query.wait()
                began = time.monotonic()
                scenario.does(query.proxy, along)
            query.append(EVENTS)
            said = query.failure(ASKED * most_s + MARGIN_S)
            took_s = time.monotonic() - began
        finally:
            query.stop()
        if NOT_STARTED not in said:
            break
    assert re.search(r"\b(ConnectFailed|ConnectionLost|DeadlineExceeded|DeliveryFailed)\b", said), said
    assert re.search(scenario.says, said), said
    assert took_s >= least_s, "it has tried as long as the page says"
    if scenario.tried_again:
        assert len(query.proxy.struck) > PARTITIONS * ATTEMPTS, "more often than tasks were tried"


def test_a_task_tried_again_repeats_its_ids(session: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    """Of ``amqp-events``, whose readers tell repeated rows by their message-ids."""
    orders = reference_log.create("orders")
    arrived, marker = tmp_path / "arrived", tmp_path / "failed-once"

    @F.udf("string")
    def fragile(number):  # no hints: Spark would read them as a wish for pandas
        if number == 3_500 and not marker.exists():
            while not arrived.exists():
                time.sleep(0.05)
            marker.write_text("")
            raise RuntimeError("the first attempt fails in the middle")
        return f"{number:01000}"  # a kilobyte: more than the buffers between Spark and the sink hold back

    def look() -> None:
        eventually(lambda: int(orders.ends().get("0", -1)) >= 2_000, "all of one task and a part of the other", 240)
        arrived.write_text("")

    looking = threading.Thread(target=look)
    looking.start()
    rows = session.range(0, 4_000, 1, 2).select(fragile("id").alias("value"))
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        rows.write.format("amqp-events").options(**orders.options("amqp-events")).mode("append").save()
    finally:
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    looking.join()

    bodies, events = collections.defaultdict(set), stored(orders)
    for event in events:
        bodies[event.message.id].add(int(event.body))

    assert marker.exists()
    assert len(events) > 4_000, "the first attempt delivered a part"
    assert len(bodies) == 4_000
    assert sorted(number for numbers in bodies.values() for number in numbers) == list(range(4_000))
    assert {i.split("/")[2] for i in bodies} == {"0", "1"}
    assert len({i.split("/")[0] for i in bodies}) == 1
