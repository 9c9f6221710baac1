"""A JVM that dies in mid-task, before its Python workers do: the rows they have do not pass for all of the task's."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_streams.testing import StreamFactory
from tests.e2e.lives import Job

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 20_000


@pytest.mark.timeout(1_200)
def test_every_row_is_there_once(reference_log: StreamFactory, tmp_path: Path) -> None:
    orders, copies = reference_log.create("orders"), reference_log.create("copies")
    expected = [f"{n:06}" for n in range(ROWS)]
    orders.produce(expected)
    given = {
        "source": {"format": "amqp-events", "options": orders.options("amqp-events", startingOffsets="earliest")},
        "select": ["value"],
        "sink": {"format": "rabbitmq-stream", "options": copies.options("rabbitmq-stream")},
    }
    job = Job(tmp_path, {"orders": given}, rows=70, pause=0.1)
    with job.life():
        job.wait(lambda: copies.ends() != {})
        job.lose_spark()
    assert job.copies["orders"].in_the_middle(), "the JVM ended in the middle of a batch"
    assert 0 < len(copies.values()) < ROWS
    job.drain()
    assert copies.values() == expected
