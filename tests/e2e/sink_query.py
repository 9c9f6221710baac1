"""The main job in a process of its own, so that a test can kill all of it: ``python sink_query.py`` + JSON.

It reads a stream, slowly, and writes it to another one; ``drain`` makes it stop at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

import pyarrow as pa


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on in small steps, so that a kill finds a task that has delivered some of its rows."""
    for batch in batches:
        for start in range(0, batch.num_rows, 20):
            yield batch.slice(start, 20)
            time.sleep(0.05)


def main(given: dict) -> None:
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    frame = spark.readStream.format("amqp-events").options(**given["source"]).load().select("value", "partition")
    if not given["drain"]:
        frame = frame.mapInArrow(slowly, frame.schema)
    writer = frame.writeStream.format("amqp-events").options(**given["sink"])
    trigger = {"availableNow": True} if given["drain"] else {"processingTime": "0 seconds"}
    writer.option("checkpointLocation", given["checkpoint"]).trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
