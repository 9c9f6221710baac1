"""A streaming query in a process of its own, so that a test can kill all of it: ``python source_query.py`` + JSON.

It reads events, slowly, into a file sink. ``drain`` makes it stop at the end and write what the sink holds to a file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import pyarrow as pa


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hold each task up before and after its rows, so that a kill finds a batch in the middle."""
    time.sleep(0.25)
    yield from batches
    time.sleep(0.25)


def main(given: dict) -> None:
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    frame = spark.readStream.format("amqp-events").options(**given["options"]).load()
    frame = frame.select("partition", "offset", "value")
    if not given["drain"]:
        frame = frame.mapInArrow(slowly, frame.schema)
    writer = frame.writeStream.format("parquet").option("path", given["out"])
    writer = writer.option("checkpointLocation", given["checkpoint"])
    trigger = {"availableNow": True} if given["drain"] else {"processingTime": "0 seconds"}
    query = writer.trigger(**trigger).start()
    query.awaitTermination()
    rows = spark.read.parquet(given["out"]).collect()
    with open(given["report"], "w") as report:
        json.dump([[row.partition, row.offset, bytes(row.value).decode()] for row in rows], report)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
