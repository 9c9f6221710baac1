"""Fixtures shared by all tests: a Spark session, and a reference log in this process, served on free loopback ports."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples import BY_DAY, SAME
from tests.sessions import running_session
from tests.spark_home import spark_home

# Spark reads conf/spark-defaults.conf itself, in every session that a test starts, and in processes of their own too.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).resolve().parents[1] / "conf"))
# Short lives: what the JVM's second compiler and its parallel collector cost comes back only after minutes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Where Python finds pyspark compiled.
os.environ.setdefault("SPARK_HOME", str(spark_home()))
# Spark gives up after 15 s where its own processes find each other; a busy machine takes longer.
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", "300")


pytest_plugins = ["pytester"]

MARKS = pytest.StashKey[dict[str, tuple[Path, set[str]]]]()
"""The file and the marks of each test that was collected, before any was left out."""


def pytest_configure(config: pytest.Config) -> None:
    """Have the profiles without chance give the same examples whatever else the process imported.

    Hypothesis draws some from the literals of the modules that are loaded, which depend on the tests that ran before.
    """
    from hypothesis.internal.conjecture import providers

    profile = config.getoption("--hypothesis-profile", None)
    if profile in (BY_DAY, SAME) and hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="I/N", help="only every N-th module, from the I-th on: 2/8")
    parser.addoption("--seed", type=int, metavar="N", help="of campaigns; without it a random one, which they print")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Modules that run beside each other (``-n``): tests/scheduling.py."""
    from tests.scheduling import ByModule

    return ByModule(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Note the marks of all tests; then, once ``-m`` and ``-k`` have chosen, leave out the other parts.

    Refuse names that are not the same in each process that collects: pytest-xdist then runs no test at all.
    """
    for item in items:
        for value in (getattr(item, "callspec", None) and item.callspec.params.values()) or ():
            if isinstance(value, set | frozenset) and len(value) > 1 and repr(value) in item.nodeid:
                raise pytest.UsageError(f"{item.nodeid}: the order of a set differs between processes; take a list")
    config.stash[MARKS] = {item.nodeid: (item.path, {mark.name for mark in item.iter_markers()}) for item in items}
    yield
    number, _, parts = config.getoption("--part").partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"--part {number}/{parts}: expected I/N with 1 <= I <= N, such as 2/8")
    mine = set(sorted({item.path for item in items})[int(number) - 1 :: int(parts)])
    others = [item for item in items if item.path not in mine]
    if others:
        items[:] = [item for item in items if item.path in mine]
        config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was skipped in a line for each reason: pytest itself takes one for each place."""
    reports = terminalreporter.stats.get("skipped", ())
    for reason, count in sorted(Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports).items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")


def pytest_runtest_setup() -> None:
    """Forget what other tests have signed in with, which would be taken out of this one's messages."""
    from tests.forgetting import forget_all

    forget_all()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """What a campaign chooses by: the seed is that of ``--seed``, or a random one, and is shown when the test fails."""
    given = request.config.getoption("--seed")
    seed = random.SystemRandom().randrange(1 << 32) if given is None else given
    print(f"seed {seed}: the same choices again with --seed {seed}")
    return random.Random(seed)


@pytest.fixture
def log_server(tmp_path: Path) -> Iterator[object]:
    """A ``ServerThread`` over a new reference log, with the default user guest:guest."""
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread

    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0)) as server:
        yield server


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Any]]:
    """A function that returns the run's Spark: two cores, no web server; its Python workers are this interpreter.

    It starts one only when none is running, which takes seconds. A test that needs other static settings stops the
    active session first, and its own at the end.
    """
    started: list[Any] = []
    warehouse = str(tmp_path_factory.mktemp("warehouse"))

    def session() -> Any:
        found = running_session(**{"spark.sql.warehouse.dir": warehouse})
        if found not in started:
            started.append(found)
        return found

    yield session
    if started:
        started[-1].stop()


@pytest.fixture(scope="module")
def spark(spark_session: Callable[[], Any]) -> Iterator[Any]:
    """The run's Spark session; settings, views and queries end with the module."""
    session = spark_session()
    before = dict(session.conf.getAll)
    yield session
    for query in session.streams.active:
        query.stop()
    for view in session.catalog.listTables():
        if view.isTemporary:
            session.catalog.dropTempView(view.name)
    after = dict(session.conf.getAll)
    for name in after.keys() - before.keys():
        session.conf.unset(name)
    for name in before.keys() & after.keys():
        if after[name] != before[name]:
            session.conf.set(name, before[name])


@pytest.fixture(scope="session")
def zeroeventhub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package of FeedAPI's first version: a program that does with it what it is told."""
    from tests.server.feed.zeroeventhub_package import running

    with running(tmp_path_factory.mktemp("zeroeventhub")) as program:
        yield program
