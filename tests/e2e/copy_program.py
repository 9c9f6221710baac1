"""A streaming query in a process of its own, so that a test can kill all of it: ``python copy_program.py`` + JSON.

It reads one format and writes another, or Parquet files, in small steps; with ``drain`` it goes on to the end of now::

    {"source": {"format": ..., "options": {...}}, "select": [EXPRESSION, ...],
     "sink": {"format": ..., "options": {...}}, "checkpoint": FOLDER,
     "rows": 50, "pause": 0.02, "drain": false}

A step is of so many ``rows``, of Arrow batches and of a feed's requests too; ``pause`` seconds lie between two of them,
and before the first and after the last.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def slowly(rows: int, pause: float) -> Step:
    """Return what passes rows on in small steps, so that a kill finds tasks that have done some of their rows."""

    def steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(pause)
        for batch in batches:
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
                time.sleep(pause)

    return steps


def in_small_requests(rows: int) -> type:
    """Return the feeds' format with requests of so many rows in place of 50,000: there is much to be interrupted."""
    from spark_streams.sources.feedapi import FeedDataSource

    from spark_streams.spark.writer import StreamWriter, Written

    class InSmallParts(StreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
            from spark_streams.client.feed import parts

            parts.MAX_PART_ROWS = rows
            return super().write(iterator)

    class Feed(FeedDataSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return InSmallParts(super().streamWriter(schema, overwrite)._sink)

    return Feed


def main(given: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(given["rows"]))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    source, sink = given["source"], given["sink"]
    if sink["format"] == "feedapi":
        spark.dataSource.register(in_small_requests(given["rows"]))
    frame = spark.readStream.format(source["format"]).options(**source["options"]).load().selectExpr(*given["select"])
    if not given["drain"]:
        frame = frame.mapInArrow(slowly(given["rows"], given["pause"]), frame.schema)
    writer = frame.writeStream.format(sink["format"]).options(**sink["options"])
    trigger = {"availableNow": True} if given["drain"] else {"processingTime": "0 seconds"}
    writer.option("checkpointLocation", given["checkpoint"]).trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
