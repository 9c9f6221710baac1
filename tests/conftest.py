"""Fixtures shared by all tests: a Spark session, and a reference log in this process, served on free loopback ports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sessions import running_session

# Spark reads conf/spark-defaults.conf itself, in every session that a test starts, and in processes of their own too.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).resolve().parents[1] / "conf"))


WITH_RABBITMQ = tuple(
    f"tests/{folder}/" for folder in ("client/rabbitmq", "server/rabbitmq", "e2e/rabbitmq", "real_rabbitmq")
)
"""The one real RabbitMQ is for one process at a time: some of these tests restart it."""


def pytest_configure(config: pytest.Config) -> None:
    """Have profile ``ci`` give the same examples whatever else the process imported.

    Hypothesis draws some from the literals of the modules that are loaded, which depend on the tests that ran before.
    """
    from hypothesis.internal.conjecture import providers

    if config.getoption("--hypothesis-profile", None) == "ci" and hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Modules that run beside each other (``-n``): one is in one process, and so are all of the real RabbitMQ."""
    from xdist.scheduler import LoadFileScheduling

    class ByModule(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "rabbitmq" if nodeid.startswith(WITH_RABBITMQ) else str(super()._split_scope(nodeid))

    return ByModule(config, log)


@pytest.fixture
def log_server(tmp_path: Path) -> Iterator[object]:
    """A ``ServerThread`` over a new reference log, with the default user guest:guest."""
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread

    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0)) as server:
        yield server


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Callable[[], Any]]:
    """A function that returns the run's Spark: two cores, no web server; its Python workers are this interpreter.

    It starts one only when none is running, which takes seconds. A test that needs other static settings stops the
    active session first, and its own at the end.
    """
    started: list[Any] = []

    def session() -> Any:
        found = running_session()
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
