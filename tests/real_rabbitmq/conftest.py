"""Fixtures of the tests that need a real broker: `make test` starts one and says where in RABBITMQ_STREAM_URL.

That one is everybody's: tests make streams, users and bindings of names that nobody else has, and leave the rest as it
is. A test that restarts its broker asks for `own_rabbitmq`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

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


class Own(NamedTuple):
    """A broker of one process: its address, and what kills it with kill -9 and starts it on the same port and data."""

    url: str
    restart: Callable[[], None]


@pytest.fixture(scope="session")
def own_rabbitmq(rabbitmq_url: str) -> Iterator[Own]:
    """A RabbitMQ that nobody else uses, like the one of `rabbitmq_url`; it takes seconds to start, and to restart."""
    if FOLDER not in os.environ:
        pytest.skip(f"only a RabbitMQ that was started here can be started twice: {FOLDER} is not set")
    root = json.loads((Path(os.environ[FOLDER]) / "broker.json").read_text())["root"]
    command = [sys.executable, str(SCRIPT), "run", "--root", root, "--", sys.executable, "-c", TELL]
    others = {name: value for name, value in os.environ.items() if name not in (URL, FOLDER)}
    # The command ends with its input, and with it the broker: at the latest when this process ends, however it does.
    with subprocess.Popen(command, env=others, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        url, folder = running.stdout.readline().split()
        assert url != "None", "RabbitMQ did not start a second time; it says why on stderr"

        def restart() -> None:
            command = [sys.executable, str(SCRIPT), "restart", folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        yield Own(url, restart)
        running.communicate(timeout=120)
