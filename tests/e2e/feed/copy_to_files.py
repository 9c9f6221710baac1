"""A streaming copy in a process of its own, so that a test can kill all of it: ``python copy_to_files.py`` + JSON.

It reads a feed, slowly, and writes Parquet files, which Spark does exactly once; ``drain`` makes it stop at the end.
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
    """Pass rows on in small steps, so that a kill finds micro-batches that have been planned."""
    for batch in batches:
        for start in range(0, batch.num_rows, 100):
            yield batch.slice(start, 100)
            time.sleep(0.05)


def main(given: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    frame = spark.readStream.format("feedapi").options(**given["source"]).load()
    frame = frame.selectExpr("partition", "cast(value AS STRING) AS value")
    if not given["drain"]:
        frame = frame.mapInArrow(slowly, frame.schema)
    writer = frame.writeStream.format("parquet").option("path", given["target"])
    trigger = {"availableNow": True} if given["drain"] else {"processingTime": "0 seconds"}
    writer.option("checkpointLocation", given["checkpoint"]).trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
