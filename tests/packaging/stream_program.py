"""What a user's program does, with nothing but the installed package: no registration, no path tricks."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession


def main(url: str, rabbit: str, feed: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"url": url, "stream": "orders", "startingOffsets": "earliest"}
    batch = spark.read.format("amqp-events").options(**options).load()
    said = {"spark": spark.version, "batch": batch.count()}

    stream = spark.readStream.format("amqp-events").options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        counted = (
            stream.writeStream.format("parquet")
            .option("path", f"{folder}/out")
            .option("checkpointLocation", f"{folder}/one")
            .trigger(availableNow=True)
            .start()
        )
        counted.awaitTermination()
        said["stream"] = spark.read.parquet(f"{folder}/out").count()
        written = (
            stream.selectExpr("concat('again ', string(value)) AS value", "key")
            .writeStream.format("amqp-events")
            .options(url=url, stream="orders", checkpointLocation=f"{folder}/two")
            .trigger(availableNow=True)
            .start()
        )
        written.awaitTermination()
    rows = spark.read.format("amqp-events").options(**options).load().where("string(value) like 'again %'")
    said["written"] = rows.select("value").distinct().count()

    said |= through_rabbitmq(spark, rabbit)
    said |= through_feed(spark, feed)
    try:
        spark.read.format("amqp-events").options(**options, strem="x").load().count()
        said["unknown_option"] = ""
    except PySparkException as fault:
        said["unknown_option"] = str(fault)
    import spark_streams

    said["module"] = spark_streams.__file__
    said["sources_at_top"] = any(importlib.util.find_spec(name) is not None for name in ("sources", "sinks"))
    spark.stop()
    print(json.dumps(said))


def through_rabbitmq(spark: SparkSession, url: str) -> dict[str, int]:
    """Read the same log as a super stream, and write to it: exactly once, so twice with one checkpoint adds nothing."""
    options = {"url": url, "superStream": "orders"}
    before = spark.read.format("rabbitmq-stream").options(**options).load().count()
    stream = spark.readStream.format("rabbitmq-stream").options(**options, startingOffsets="earliest").load()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            query = (
                stream.where("string(value) like 'event %'")
                .selectExpr("concat('rabbit ', string(value)) AS value", "string(value) AS key")
                .writeStream.format("rabbitmq-stream")
                .options(**options, checkpointLocation=folder)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    rows = spark.read.format("rabbitmq-stream").options(**options).load().where("string(value) like 'rabbit %'")
    return {"rabbit_batch": before, "rabbit_written": rows.count(), "rabbit_partitions": partitions_of(rows)}


def through_feed(spark: SparkSession, url: str) -> dict[str, int]:
    """Read the same log as a feed, and publish to it."""
    rows = spark.read.format("feedapi").option("url", url).load()
    before = rows.count()
    events = rows.where("string(value) like 'event %'").selectExpr("concat('feed ', string(value)) AS value")
    events.write.format("feedapi").option("url", url).mode("append").save()
    return {"feed_batch": before, "feed_written": rows.where("string(value) like 'feed %'").count()}


def partitions_of(rows: DataFrame) -> int:
    return rows.select("partition").distinct().count()


if __name__ == "__main__":
    main(*sys.argv[1:4])
