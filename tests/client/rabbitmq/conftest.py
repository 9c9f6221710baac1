"""The brokers that the RabbitMQ client is tried against: the log's own door, as new and as old, and real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.client import retry
from spark_streams.client.rabbitmq import publisher_pool, range_reader, task_publisher
from spark_streams.client.retry import Backoff
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, RabbitConfig, ServerThread
from tests.client.rabbitmq.brokers import OLD, Broker
from tests.real_rabbitmq.conftest import rabbitmq_310_url as rabbitmq_310_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

REAL = [pytest.param(kind, marks=pytest.mark.rabbitmq) for kind in ("rabbitmq", "rabbitmq-3.10")]


@contextlib.contextmanager
def running(kind: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[Broker]:
    """A broker of one of the kinds."""
    if kind == "rabbitmq":
        yield Broker(request.getfixturevalue("rabbitmq_url"), kind)
    elif kind == "rabbitmq-3.10":
        yield Broker(request.getfixturevalue("rabbitmq_310_url"), kind)
    else:
        config = RabbitConfig(port=0, **(OLD if kind == "old-door" else {}))
        with ReferenceLog(folder) as log, ServerThread(log, AmqpConfig(port=0), config) as server:
            yield Broker(server.rabbit_url, kind)


@pytest.fixture(params=["door", "old-door", *REAL])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """Any broker; tests that use it run once for each."""
    with running(request.param, request, tmp_path / "log") as broker:
        yield broker


@pytest.fixture
def real(rabbitmq_url: str) -> Broker:
    """The real RabbitMQ."""
    return Broker(rabbitmq_url, "rabbitmq")


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Broker]:
    """The log's own door."""
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0), RabbitConfig(port=0)) as server:
        yield Broker(server.rabbit_url, "door")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that stay unavailable are given up soon."""
    for module in (retry, range_reader, publisher_pool, task_publisher):
        monkeypatch.setattr(module, "LONG_BACKOFF", Backoff(4, 1, 1))
