"""All formats through Spark Connect: its server runs beside the run's Spark, its client in this process.

Nothing may need a classic session. test_beyond_one_process.py has a server in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.testing import StreamFactory

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture
def client(spark: SparkSession) -> Iterator[Any]:
    """A session of a Spark Connect server."""
    session = pytest.importorskip("pyspark.sql.connect.session")
    context, jvm = spark.sparkContext._jsc.sc(), spark.sparkContext._jvm
    for name, value in (("port", "0"), ("address", "127.0.0.1")):
        context.conf().set(f"spark.connect.grpc.binding.{name}", value)
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(context)
    made = session.SparkSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    spark_streams.register(made)
    yield made
    made.stop()
    none = getattr(getattr(jvm, "scala.Option$"), "MODULE$").empty()
    service.stop(none, none)


@pytest.mark.timeout(600)
def test_batches_of_all_formats_and_a_stream(client: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    for name in ("amqp-events", "rabbitmq-stream", "feedapi"):
        orders, copies = reference_log.create("orders", 2), reference_log.create("copies")
        orders.produce({"value": f"v{n}", "key": f"k{n}"} for n in range(10))
        frame = client.read.format(name).options(**orders.options(name)).load().select("value", "key")
        frame.write.format(name).options(**copies.options(name)).mode("append").save()
        assert sorted(copies.values()) == sorted(f"v{n}" for n in range(10))
    stream = client.readStream.format("amqp-events").options(
        **orders.options("amqp-events", startingOffsets="earliest")
    )
    writer = stream.load().select("value", "key").writeStream.format("feedapi").options(**copies.options("feedapi"))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert query.exception() is None
    assert sorted(copies.values()) == sorted(f"v{n}" for n in range(10) for _ in range(2))
