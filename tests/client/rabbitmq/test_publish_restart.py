"""A real broker is killed with kill -9 under an attempt, with rows on their way: the next one adds what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.client import RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.errors import SparkStreamsError
from tests.client.rabbitmq.brokers import Broker
from tests.client.rabbitmq.publishing import body, send, write
from tests.client.rabbitmq.test_publish_exactly_once import held

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(300)]


@pytest.mark.parametrize("how", [{}, {"sub_entry_size": 50, "compression": "gzip"}], ids=["entries", "batches"])
def test_a_broker_that_crashes_under_an_attempt(
    real: Broker, restart_rabbitmq: Callable[[], None], how: dict[str, Any]
) -> None:
    identity, rows = TaskIdentity("spark/query/0", 1), [body(f"{n}") for n in range(30_000)]
    with real.stream() as stream:
        for come_to in (9_000, 20_000):
            publisher = TaskPublisher(real.endpoint, RabbitPublishing(timeout_ms=10_000, **how), identity)
            send(publisher, rows[:come_to], stream)
            restart_rabbitmq()
            with pytest.raises(SparkStreamsError):
                send(publisher, rows[come_to:], stream)
                publisher.flush()
            publisher.close()
            _retried(lambda: held(real, stream))
        _retried(lambda: write(real.endpoint, rows, stream, identity, **how))
        assert held(real, stream) == [row[8:] for row in rows]


def _retried(attempt: Callable[[], Any]) -> None:
    """Try for a minute: streams come up one by one after a restart, and connections to them are cut."""
    deadline = time.monotonic() + 60
    while True:
        try:
            attempt()
            return
        except (SparkStreamsError, AssertionError, EOFError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.2)
