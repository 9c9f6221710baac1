"""Fixtures of the tests that need a real broker: `make test` starts one and says where in RABBITMQ_STREAM_URL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

URL = "RABBITMQ_STREAM_URL"
FOLDER = "RABBITMQ_STREAM_FOLDER"
"""The folder of a broker that tests/real_rabbitmq/broker.py started here: with it, tests may crash and restart it."""
URL_310 = "RABBITMQ_STREAM_URL_310"
"""A second broker of version 3.10 (no filters, no single active consumer, no StreamStats); tests of it are optional."""


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


@pytest.fixture
def restart_rabbitmq(rabbitmq_url: str) -> Callable[[], None]:
    """A function that kills the broker of `rabbitmq_url` with kill -9 and starts it again on the same port and data."""
    if FOLDER not in os.environ:
        pytest.skip(f"this RabbitMQ is not ours to restart: {FOLDER} is not set")
    command = [sys.executable, str(Path(__file__).with_name("broker.py")), "restart", os.environ[FOLDER]]

    def restart() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    return restart
