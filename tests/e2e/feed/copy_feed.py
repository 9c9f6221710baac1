"""A streaming copy in a process of its own, so that a test can kill all of it: ``python copy_feed.py`` + JSON.

It reads a feed, slowly, and publishes its rows to another one; ``drain`` makes it stop at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on in small steps, so that a kill finds tasks that have written some of their rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, 50):
            yield batch.slice(start, 50)
            time.sleep(0.02)


def main(given: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession
    from spark_streams.sources.feedapi import FeedDataSource

    import spark_streams
    from spark_streams.spark.writer import StreamWriter, Written

    class InSmallParts(StreamWriter):
        """Requests of 50 rows in place of 50,000: there is much to be interrupted."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            from spark_streams.client.feed import parts

            parts.MAX_PART_ROWS = 50
            return super().write(iterator)

    class Source(FeedDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            writer = super().streamWriter(schema, overwrite)
            return InSmallParts(writer._sink)

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    spark.dataSource.register(Source)
    frame = spark.readStream.format("feedapi").options(**given["source"]).load()
    frame = frame.selectExpr("value", "cast(value AS STRING) AS key")
    if not given["drain"]:
        frame = frame.mapInArrow(slowly, frame.schema)
    writer = frame.writeStream.format("feedapi").options(**given["sink"])
    trigger = {"availableNow": True} if given["drain"] else {"processingTime": "0 seconds"}
    writer.option("checkpointLocation", given["checkpoint"]).trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
