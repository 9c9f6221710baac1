"""The brokers that each scenario runs against: the reference log's door, and a real RabbitMQ.

The log is that of the whole run. Some tests ask for one in this process (``own_log``): they add partitions, hide them,
have users with permissions, or a full disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import Permissions, RabbitConfig, ServerThread
from spark_streams.testing import LogProcess
from tests.e2e.rabbitmq.broker import REAL_AT_NIGHT, Broker
from tests.e2e.rabbitmq.queries import Queries
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url
from tests.real_rabbitmq.conftest import shared

CONFIG = RabbitConfig(
    port=0,
    users={"guest": "guest", "outsider": "outsider"},
    permissions={"outsider": Permissions(configure="", write="", read="")},
)


class Served(Broker):
    """The RabbitMQ streams door of the run's log."""

    kind = "embedded"
    keeps_sub_entries = False

    def __init__(self, process: LogProcess) -> None:
        super().__init__(process.urls["rabbitmq-stream"].replace("//", "//guest:guest@"))
        self._process = process

    def restart(self) -> None:
        self._process.stop()
        self._process.start()

    def apply_retention(self) -> None:
        """It does so by itself."""


class Embedded(Broker):
    """The RabbitMQ streams door of a log in this process."""

    kind = "embedded"
    keeps_sub_entries = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.start(0)
        super().__init__(self.server.rabbit_url)

    def start(self, port: int) -> None:
        self.log = ReferenceLog(self.folder).__enter__()
        self.server = ServerThread(self.log, None, CONFIG if port == 0 else replace(CONFIG, port=port))
        self.server.start()

    def stop(self) -> None:
        self.server.stop()
        self.log.close()

    def restart(self) -> None:
        self.stop()
        self.start(int(self.url.rsplit(":", 1)[1]))

    def apply_retention(self) -> None:
        self.server.call(self.log.enforce_retention)

    @contextmanager
    def outsider(self) -> Iterator[str]:
        yield self.url.replace("guest:guest", "outsider:outsider")

    def add_partition(self, super_stream: str, number: int) -> str:
        self.server.call(lambda: self.log.add_partitions(super_stream, 1))
        return f"{super_stream}-{number}"

    @contextmanager
    def hidden(self, super_stream: str, partition: str) -> Iterator[None]:
        topology = self.server.server.door("rabbitmq-stream").node.topology
        known = topology.super_stream

        def without(name: str) -> Any:
            served = known(name)
            return served if served is None else tuple(each for each in served if each.name != partition)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topology, "super_stream", without)
            yield

    @contextmanager
    def gone(self, partition: str) -> Iterator[None]:
        """Deny that there is a stream, which a super stream goes on to name as its partition."""
        topology = self.server.server.door("rabbitmq-stream").node.topology
        known = topology.find
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(topology, "find", lambda name: None if name == partition else known(name))
            yield

    def close(self) -> None:
        self.stop()


class Real(Broker):
    """The RabbitMQ of RABBITMQ_STREAM_URL."""

    kind = "rabbitmq"
    keeps_sub_entries = True

    def apply_retention(self) -> None:
        """It does so by itself."""

    @contextmanager
    def outsider(self) -> Iterator[str]:
        name = self.name("outsider")
        self.control("add_user", name, "secret")
        try:
            self.control("set_permissions", name, "^$", "^$", "^$")
            yield self.url.replace("guest:guest", f"{name}:secret")
        finally:
            self.control("delete_user", name)

    def add_partition(self, super_stream: str, number: int) -> str:
        name = self.create(f"{super_stream}-{number}")
        self.eval(f'rabbit_binding:add({self.binding(super_stream, number)}, <<"guest">>)')
        return name

    @contextmanager
    def hidden(self, super_stream: str, partition: str) -> Iterator[None]:
        binding = self.binding(super_stream, int(partition.rsplit("-", 1)[1]))
        self.eval(f'rabbit_binding:remove({binding}, <<"guest">>)')
        yield
        self.eval(f'rabbit_binding:add({binding}, <<"guest">>)')

    @staticmethod
    def binding(super_stream: str, number: int) -> str:
        """The Erlang record that makes a stream the partition of that number."""
        exchange = f'rabbit_misc:r(<<"/">>, exchange, <<"{super_stream}">>)'
        queue = f'rabbit_misc:r(<<"/">>, queue, <<"{super_stream}-{number}">>)'
        order = f'[{{<<"x-stream-partition-order">>, long, {number}}}]'
        return f'{{binding, {exchange}, <<"{number}">>, {queue}, {order}}}'

    def eval(self, expression: str) -> None:
        """Run Erlang in the broker."""
        assert self.control("eval", f"{expression}.").strip() == "ok"

    @staticmethod
    def control(*arguments: str) -> str:
        """Run rabbitmqctl on the broker and return what it says."""
        return shared().control(*arguments)


@pytest.fixture
def own_log() -> None:
    """Ask for a log in this process, which does what a served one does for nobody."""


@pytest.fixture(params=["embedded", REAL_AT_NIGHT])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Each of the brokers in turn: the embedded one always, the real one at night, unless a test says otherwise."""
    with contextlib.ExitStack() as stack:
        running: Broker
        if request.param == "embedded" and "own_log" in request.fixturenames:
            running = Embedded(tmp_path / "log")
        elif request.param == "embedded":
            running = Served(request.getfixturevalue("reference_log_process"))
        else:
            running = Real(request.getfixturevalue("rabbitmq_url"))
        stack.callback(running.close)
        yield running


@pytest.fixture
def queries(spark: Any, broker: Broker, tmp_path: Path) -> Iterator[Queries]:
    """Batch reads and a streaming query of the broker; it ends with the test."""
    running = Queries(spark, broker, tmp_path)
    with running.query:
        yield running
