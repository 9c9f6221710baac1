"""A real broker that is killed and comes back, in mid-range."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from spark_streams.client import RangeRead, retry
from spark_streams.position import EARLIEST
from tests.client.rabbitmq.brokers import Broker, amqp, latest, text

pytestmark = pytest.mark.rabbitmq
COUNT = 60_000


def test_a_range_goes_on_after_a_restart(
    real: Broker,
    restart_rabbitmq: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "spark_streams")
    monkeypatch.setattr(retry, "_pause", time.sleep)
    filler = b"." * 990
    with real.stream() as stream, real.client(timeout_ms=30_000) as client, real.client(timeout_ms=30_000) as other:
        real.publish(stream, [amqp(b"%07d" % i + filler) for i in range(COUNT)])
        end = latest(client, stream)
        before = other.describe(stream)
        asked = RangeRead(stream, stream, EARLIEST, end, ("value", "offset"))
        rows = client.fetch(asked, max_rows=500)
        batches = [next(rows)]
        restarting = threading.Thread(target=restart_rabbitmq)
        restarting.start()
        try:
            while "trying again" not in caplog.text:  # it is down, or coming back
                batches.append(next(rows))
                time.sleep(0.01)
            batches += rows
            assert other.describe(stream) == before
        finally:
            restarting.join()
        values = [value[:7] for batch in batches for value in batch["value"].to_pylist()]
        assert values == [b"%07d" % i for i in range(COUNT)]
        assert batches[-1]["offset"][-1].as_py() == text(COUNT - 1)
        assert other.describe(stream) == before
