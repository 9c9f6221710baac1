"""Fixtures of the tests that need a real broker: `make test` starts one and says where in RABBITMQ_STREAM_URL.

That one is everybody's: tests make streams, users and bindings of names that nobody else has, and leave the rest as it
is. A test that restarts its broker asks for `own_rabbitmq`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

URL = "RABBITMQ_STREAM_URL"
FOLDER = "RABBITMQ_STREAM_FOLDER"
"""The folder of a broker that tests/real_rabbitmq/broker.py started here: with it, tests may command it."""
URL_310 = "RABBITMQ_STREAM_URL_310"
"""A second broker of version 3.10 (no filters, no single active consumer, no StreamStats); tests of it are optional."""
SCRIPT = Path(__file__).with_name("broker.py")
TELL = f"import os, sys; print(os.environ.get('{URL}'), os.environ.get('{FOLDER}'), flush=True); sys.stdin.read()"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `rabbitmq` when no broker is named."""
    if item.get_closest_marker("rabbitmq") is not None and URL not in os.environ:
        pytest.skip(f"no real RabbitMQ: {URL} is not set (`make test` starts one where it can)")


@pytest.fixture(scope="session")
def rabbitmq_url() -> str:
    """The address of a real RabbitMQ with the stream plugin, e.g. rabbitmq-stream://guest:guest@127.0.0.1:5552."""
    if URL not in os.environ:
        pytest.skip(f"no real RabbitMQ: {URL} is not set (`make test` starts one where it can)")
    return os.environ[URL]


@pytest.fixture(scope="session")
def rabbitmq_310_url() -> str:
    """The address of a real RabbitMQ 3.10."""
    if URL_310 not in os.environ:
        pytest.skip(f"no RabbitMQ 3.10: {URL_310} is not set")
    return os.environ[URL_310]


def kept(folder: str) -> Any:
    """What the program that started a node keeps of it (``Node`` of tests/real_rabbitmq/node.py)."""
    return json.loads((Path(folder) / "broker.json").read_text())


class Own(NamedTuple):
    """A node that a test may do anything to.

    Args:
        url: its address.
        folder: where the program that started it keeps what it is.
    """

    url: str
    folder: str

    def restart(self) -> None:
        """Kill it with kill -9, if it runs, and start it on the same port and data."""
        self._command("restart")

    def kill(self) -> None:
        """Kill it with kill -9; ``restart`` brings it back."""
        os.kill(kept(self.folder)["pids"][0], signal.SIGKILL)

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl, or the program rabbitmq-… that comes first, on it and return what it says."""
        return self._command("ctl", *arguments)

    @contextlib.contextmanager
    def alarm(self, resource: str = "disk") -> Iterator[None]:
        """While this lasts, it has an alarm: set as RabbitMQ's monitor of disks does, which here cannot see any."""
        self.control("eval", f"rabbit_alarm:set_alarm({{{{resource_limit, {resource}, node()}}, []}}).")
        try:
            assert "alarm on node" in self.control("rabbitmq-diagnostics", "alarms")
            yield
        finally:
            self.end_alarm(resource)

    def end_alarm(self, resource: str = "disk") -> None:
        """End its alarm, if it has one."""
        self.control("eval", f"rabbit_alarm:clear_alarm({{resource_limit, {resource}, node()}}).")

    @property
    def name(self) -> str:
        """What the nodes of its cluster call it."""
        return str(kept(self.folder)["environment"]["RABBITMQ_NODENAME"])

    @property
    def cluster(self) -> list[Own]:
        """All nodes of its cluster, in the order in which they were started."""
        return [Own(kept(folder)["url"], folder) for folder in kept(self.folder)["cluster"]]

    def _command(self, action: str, *arguments: str) -> str:
        command = [sys.executable, str(SCRIPT), action, self.folder, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def shared() -> Own:
    """The RabbitMQ of `rabbitmq_url`, which tests may command, but not stop; the test is skipped where none may."""
    if FOLDER not in os.environ:
        pytest.skip(f"nobody says how to command this RabbitMQ: {FOLDER} is not set")
    return Own(os.environ[URL], os.environ[FOLDER])


@contextlib.contextmanager
def started(nodes: int) -> Iterator[Own]:
    """RabbitMQ of so many nodes that nobody else uses, like the one of `rabbitmq_url`; the first node of them."""
    options = ["--root", kept(shared().folder)["root"], "--nodes", str(nodes)]
    command = [sys.executable, str(SCRIPT), "run", *options, "--", sys.executable, "-c", TELL]
    others = {name: value for name, value in os.environ.items() if name not in (URL, FOLDER)}
    # The command ends with its input, and with it the broker: at the latest when this process ends, however it does.
    with subprocess.Popen(command, env=others, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        url, folder = running.stdout.readline().split()
        assert url != "None", "RabbitMQ did not start a second time; it says why on stderr"
        yield Own(url, folder)
        running.communicate(timeout=240)


def amqp_url(folder: str) -> str:
    """The AMQP address of a node that tests/real_rabbitmq/broker.py started, with the user guest."""
    configuration = (Path(folder) / "rabbitmq.conf").read_text()
    found = re.search(r"^listeners\.tcp\.1 = (.*)$", configuration, re.MULTILINE)
    assert found is not None
    return f"amqp://guest:guest@{found[1]}"


@pytest.fixture(scope="session")
def rabbitmq_amqp_url(rabbitmq_url: str) -> str:
    """The AMQP address of the real RabbitMQ."""
    return amqp_url(shared().folder)


@pytest.fixture(scope="session")
def own_rabbitmq(rabbitmq_url: str) -> Iterator[Own]:
    """A RabbitMQ for what stops it; it takes seconds to start, and to restart."""
    with started(1) as node:
        yield node


@pytest.fixture(scope="module")
def rabbitmq_cluster(rabbitmq_url: str) -> Iterator[list[Own]]:
    """Three nodes of RabbitMQ that are a cluster; streams have a replica on each."""
    with started(3) as node:
        yield node.cluster
