"""Spark reads and writes the log as an event hub: partitions that are added, losses, owners, and a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST
from spark_streams.testing import KeptQuery, LogStream, StreamFactory, eventually
from tests.client.amqp.fake_hub import FakeHub, Partition
from tests.e2e.amqp.conftest import WAIT_S, failure

pytestmark = pytest.mark.spark


def options(streams: StreamFactory | str, stream: str, **more: str) -> dict[str, str]:
    connection = streams if isinstance(streams, str) else streams.event_hubs_connection_string
    return {"connectionString": connection, "stream": stream, "requestTimeout": "120000", **more}


def load(spark: SparkSession, given: dict[str, str]) -> DataFrame:
    """A streaming read."""
    frame = spark.readStream.format("amqp-events").options(**given).load()
    return frame.selectExpr("partition", "CAST(offset AS BIGINT) AS offset", "CAST(value AS STRING) AS value")


def rows(query: KeptQuery) -> list[tuple[str, int, str]]:
    return sorted((row.partition, row.offset, row.value) for row in query.rows)


def numbers(partition: str, low: int, high: int, first: int = 0) -> list[tuple[str, int, str]]:
    return [(partition, first + n - low, f"e{n}") for n in range(low, high)]


def append(orders: LogStream, partition: str, low: int, high: int) -> None:
    orders.produce({"value": f"e{n}", "partition": partition} for n in range(low, high))


@pytest.mark.nightly
def test_partitions_that_are_added_are_read_from_their_beginning(
    spark: SparkSession, tmp_path: Path, query: KeptQuery, rate_limits: bool
) -> None:
    """In this process: no door adds partitions without a split."""
    from spark_streams.log import ReferenceLog
    from spark_streams.server import EventHubsConfig, ServerThread

    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, EventHubsConfig(port=0)) as server:
        connection = server.event_hubs_connection_string
        log.create_stream("orders", 2)

        def write(partition: str, *values: str) -> None:
            frame = spark.createDataFrame([(value, partition) for value in values], "value STRING, partition STRING")
            frame.coalesce(1).write.format("amqp-events").options(**options(connection, "orders")).mode("append").save()

        write("0", "before")
        limit = {"maxOffsetsPerTrigger": "2"} if rate_limits else {}
        query.start(load(spark, options(connection, "orders", **limit)))
        query.wait_for_batch(0)
        log.add_partitions("orders", 1)
        write("2", "e0", "e1", "e2")
        query.wait_for_rows(3)
        assert rows(query) == numbers("2", 0, 3)


@pytest.mark.nightly
def test_a_compacted_hub(spark: SparkSession, query: KeptQuery, rate_limits: bool) -> None:
    """Its last event is gone: half a minute of silence is its end, once for a batch and once for a stream."""
    left = [(number, f"e{number}") for number in range(4_210, 4_229) if number not in (4_214, 4_215)]
    bodies = [b"e%d" % number for number in range(4_210, 4_230)]
    with FakeHub({"0": Partition(4_210, bodies, {4_214, 4_215, 4_229})}) as hub:
        given = options(hub.connection_string, "orders", startingOffsets="earliest")
        read = spark.read.format("amqp-events").options(**given, failOnDataLoss="false").load()
        found = read.selectExpr("CAST(offset AS BIGINT)", "CAST(value AS STRING)").collect()
        assert sorted(map(tuple, found)) == left
        query.start(load(spark, {**given, **({"maxOffsetsPerTrigger": "5"} if rate_limits else {})}))
        query.wait_for_rows(len(left))
        hub.partitions["0"].bodies.append(b"e4230")
        query.wait_for_rows(len(left) + 1)
        assert rows(query) == [("0", *row) for row in [*left, (4_230, "e4230")]]


@pytest.mark.nightly
def test_a_stream_is_copied_from_hub_to_hub_with_its_keys(
    spark: SparkSession, reference_log: StreamFactory, tmp_path: Path
) -> None:
    orders, copies = reference_log.create("orders", 2), reference_log.create("copies", 2)
    orders.produce({"value": f"e{n}", "key": f"k{n % 5}"} for n in range(100))
    frame = spark.readStream.format("amqp-events").options(
        **options(reference_log, orders.name, startingOffsets="earliest")
    )
    writer = frame.load().select("key", "value", "application_properties").writeStream.format("amqp-events")
    query = (
        writer.options(**options(reference_log, copies.name))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)

    def keyed(stream: LogStream) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for row in stream.table(["key", "value"]).to_pylist():
            found.setdefault(row["key"], []).append(row["value"])
        return found

    assert keyed(copies) == keyed(orders) and len(keyed(orders)) == 5


@pytest.mark.nightly
@pytest.mark.parametrize("tolerated", [False, True], ids=["it fails", "it goes on"])
def test_retention_past_the_position(
    spark: SparkSession, reference_log: StreamFactory, query: KeptQuery, tolerated: bool
) -> None:
    small = reference_log.create("small", segment_max_bytes=2_000, retention_max_bytes=2_000)
    append(small, "0", 0, 5)
    query.drain(load(spark, options(reference_log, small.name, startingOffsets="earliest")))
    for n in range(5, 60, 5):
        small.produce({"value": f"e{m}" + "x" * 400, "partition": "0"} for m in range(n, n + 5))
    eventually(lambda: int(small.begins()["0"]) > 5, "retention", WAIT_S)
    more = {"failOnDataLoss": "false"} if tolerated else {}
    frame = load(spark, options(reference_log, small.name, startingOffsets="earliest", **more))
    if tolerated:
        query.drain(frame)
        read = [(partition, number, value.rstrip("x")) for partition, number, value in rows(query)]
        first = 60 - (len(read) - 5)
        assert read == numbers("0", 0, 5) + numbers("0", first, 60, first) and first > 5
    else:
        query.start(frame, availableNow=True)
        message = failure(query)
        assert f"partition '0': reading was to go on after '{4:020d}'" in message
        assert "'failOnDataLoss' to 'false'" in message


@pytest.mark.nightly
def test_a_hub_deleted_and_created_again(spark: SparkSession, reference_log: StreamFactory, query: KeptQuery) -> None:
    """It has more events than the old one: its time of creation shows that it is another one."""
    orders = reference_log.create("orders")
    append(orders, "0", 0, 10)
    frame = load(spark, options(reference_log, orders.name, startingOffsets="earliest"))
    query.drain(frame)
    orders.delete()
    orders.create()
    append(orders, "0", 100, 130)
    query.start(frame, availableNow=True)
    message = failure(query)
    assert "deleted and created again" in message and "'failOnDataLoss'" in message, message
    again = load(spark, options(reference_log, orders.name, startingOffsets="earliest", failOnDataLoss="false"))
    query.drain(again)
    assert rows(query) == sorted(numbers("0", 0, 10) + numbers("0", 100, 130))


@pytest.mark.nightly
def test_a_query_whose_partition_another_owner_takes_ends(
    spark: SparkSession, reference_log: StreamFactory, query: KeptQuery
) -> None:
    orders = reference_log.create("orders")
    append(orders, "0", 0, 10)
    given = options(reference_log, orders.name, startingOffsets="earliest", epoch="3")
    query.drain(load(spark, given))
    assert rows(query) == numbers("0", 0, 10)
    owner = AmqpClient(parse_source(given, streaming=True).endpoint, timeout_ms=120_000, epoch=4)
    with owner:
        held: Any = owner.fetch(RangeRead(orders.name, "0", EARLIEST, f"{9:020d}", ("offset",)), max_rows=1)
        next(held)
        append(orders, "0", 10, 20)
        query.start(load(spark, given))
        message = failure(query)
        assert "OwnershipLost" in message and "epoch of '4'" in message, message
