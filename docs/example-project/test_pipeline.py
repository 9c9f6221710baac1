"""Three tests to copy: of the computation, of a stream, and of a restart."""

from __future__ import annotations

from pathlib import Path

import pipeline
from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_streams.testing import StreamFactory, wait_until_caught_up

SMALL = {"id": 1, "customer": "alice", "eur": 12.0}
LARGE = {"id": 2, "customer": "bob", "eur": 250.0}
HUGE = {"id": 3, "customer": "alice", "eur": 9000.0}


def test_only_large_orders_pass(spark: SparkSession, reference_log: StreamFactory) -> None:
    orders = reference_log.create("orders", partitions=2)
    orders.produce([SMALL, LARGE, HUGE])
    found = pipeline.large_orders(orders.dataframe(spark)).selectExpr(
        "key", "get_json_object(string(value), '$.id') AS id"
    )
    expected = spark.createDataFrame([("bob", "2"), ("alice", "3")], "key string, id string")
    assert_df_equality(found, expected, ignore_row_order=True)


def test_from_amqp_to_a_feed_as_it_comes(spark: SparkSession, reference_log: StreamFactory, tmp_path: Path) -> None:
    orders, large = reference_log.create("orders", partitions=2), reference_log.create("large")
    source = ("amqp-events", orders.options("amqp-events"))
    query = pipeline.start(
        spark, source, ("feedapi", large.options("feedapi")), str(tmp_path), processingTime="0 seconds"
    )
    try:
        for order in (SMALL, LARGE, HUGE):
            orders.produce([order])
            wait_until_caught_up(query, orders)
        assert large.values() == [
            '{"id":2,"customer":"bob","eur":250.0}',
            '{"id":3,"customer":"alice","eur":9000.0}',
        ]
    finally:
        query.stop()


def test_a_restart_loses_nothing_and_repeats_nothing(
    spark: SparkSession, reference_log: StreamFactory, tmp_path: Path
) -> None:
    orders, large = reference_log.create("orders"), reference_log.create("large", partitions=2)
    source = ("rabbitmq-stream", orders.options("rabbitmq-stream"))
    sink = ("rabbitmq-stream", large.options("rabbitmq-stream"))
    for number in range(3):
        orders.produce([SMALL, {"id": number, "customer": f"c{number}", "eur": 101.0}])
        query = pipeline.start(spark, source, sink, str(tmp_path), availableNow=True)
        assert query.awaitTermination(120)
    found = large.table(["key"]).column("key").to_pylist()
    assert sorted(found) == ["c0", "c1", "c2"]
