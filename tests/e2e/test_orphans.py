"""A JVM that dies in mid-task, before its Python workers do: the rows they have do not pass for all of the task's."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_streams.testing import StreamFactory
from tests.e2e.lives import Copy

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

ROWS = 20_000


@pytest.mark.timeout(1_200)
def test_every_row_is_there_once(reference_log: StreamFactory, tmp_path: Path) -> None:
    orders, copies = reference_log.create("orders"), reference_log.create("copies")
    expected = [f"{n:06}" for n in range(ROWS)]
    orders.produce(expected)
    copy = Copy(
        tmp_path,
        {
            "source": {
                "format": "amqp-events",
                "options": orders.options("amqp-events", startingOffsets="earliest"),
            },
            "select": ["value"],
            "sink": {"format": "rabbitmq-stream", "options": copies.options("rabbitmq-stream")},
            "rows": 70,
            "pause": 0.1,
        },
    )
    with copy.life():
        copy.wait(lambda: copies.ends() != {})
        copy.lose_spark()
    assert copy.in_the_middle(), "the JVM ended in the middle of a batch"
    assert 0 < len(copies.values()) < ROWS
    copy.drain()
    assert copies.values() == expected
