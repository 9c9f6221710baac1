"""What the end-to-end tests share; their Spark session is that of the whole run (tests/conftest.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_streams.testing import LogProcess, StreamFactory
from tests.real_rabbitmq.conftest import rabbitmq_amqp_url as rabbitmq_amqp_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

if TYPE_CHECKING:
    from tests.e2e.places import Place


@pytest.fixture(scope="session")
def rate_limits() -> bool:
    """Whether this Spark lets a Python source limit a batch: since 4.2 it tells it where the batch starts."""
    import pyspark

    return tuple(int(number) for number in pyspark.__version__.split(".")[:2]) >= (4, 2)


@pytest.fixture(scope="session")
def streams_of_feeds(rate_limits: bool) -> None:
    """For tests that read a feed as a stream."""
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")


@pytest.fixture(scope="session")
def log_process_v2b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcess]:
    """The reference log, its door for feeds speaking version 2b."""
    settings = tmp_path_factory.mktemp("v2b") / "log.toml"
    settings.write_text('[feedapi]\ndialect = "v2b"\n')
    with LogProcess(arguments=["--config", str(settings)]) as process:
        yield process


@pytest.fixture
def create(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], Place]]:
    """A function that makes a stream of so many partitions, in each place in turn (tests/e2e/places.py)."""
    from tests.e2e import places
    from tests.e2e.rabbitmq.conftest import Real

    if request.param in (places.REAL, places.REAL_AMQP):
        with contextlib.closing(Real(request.getfixturevalue("rabbitmq_url"))) as broker:
            if request.param == places.REAL:
                yield lambda partitions: places.OnRabbitMQ(broker, partitions)
            else:
                url = request.getfixturevalue("rabbitmq_amqp_url")
                yield lambda partitions: places.OnRabbitMQOverAmqp(broker, partitions, url)
        return
    format, dialect = places.IN_LOG[request.param]
    log = request.getfixturevalue("log_process_v2b" if dialect == "v2b" else "reference_log_process")
    streams = StreamFactory(log)
    if request.param == places.HUB:
        hub = streams.event_hubs_connection_string
        yield lambda partitions: places.InHub(streams.create("orders", partitions), hub)
    elif dialect:
        spool = str(tmp_path / "spool")
        yield lambda partitions: places.InFeed(streams.create("orders", partitions), dialect, spool)
    else:
        yield lambda partitions: places.InLog(format, streams.create("orders", partitions))
