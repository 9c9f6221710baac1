"""A streaming query that writes to a RabbitMQ whose disk is full for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams.testing import StreamFactory, eventually
from tests.e2e.rabbitmq.broker import numbers
from tests.e2e.rabbitmq.conftest import Real
from tests.e2e.rabbitmq.queries import FORMAT
from tests.real_rabbitmq.conftest import Own
from tests.real_rabbitmq.conftest import own_rabbitmq as own_rabbitmq

pytestmark = [pytest.mark.spark, pytest.mark.rabbitmq, pytest.mark.nightly, pytest.mark.timeout(1_200)]


def refused(node: Own) -> int:
    """How many publishers the broker has refused so far, as it notes."""
    return sum(file.read_text().count("Cannot create publisher") for file in (Path(node.folder) / "log").glob("*.log"))


def test_a_query_outlives_a_short_alarm(
    spark: SparkSession, reference_log: StreamFactory, own_rabbitmq: Own, tmp_path: Path
) -> None:
    broker, source = Real(own_rabbitmq.url), reference_log.create()
    there = broker.create("copies")
    options = {"url": own_rabbitmq.url, "stream": there, "requestTimeout": "240000"}
    frame = (
        spark.readStream.format("amqp-events")
        .options(**source.options("amqp-events", startingOffsets="earliest"))
        .load()
    )
    writer = frame.select("value").writeStream.format(FORMAT).options(**options)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        source.produce(numbers(0, 500))
        eventually(lambda: len(broker.bodies(there)) == 500, "the first rows", 240, query=query)
        with own_rabbitmq.alarm():
            source.produce(numbers(500, 1_000))
            before = refused(own_rabbitmq)
            eventually(lambda: refused(own_rabbitmq) > before, "a task that is kept waiting", 200, query=query)
        eventually(lambda: len(broker.bodies(there)) >= 1_000, "all rows", 240, query=query)
        assert query.isActive and broker.bodies(there) == numbers(0, 1_000)
    finally:
        query.stop()
        broker.close()
