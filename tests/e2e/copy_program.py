"""Streaming copies in a process of its own, so that a test can kill all of it: ``python copy_program.py`` + JSON.

Each reads one format and writes another, or Parquet files, in small steps; with ``drain`` to the end of now::

    {"copies": {NAME: {"source": {"format": ..., "options": {...}}, "select": [EXPRESSION, ...],
                       "sink": {"format": ..., "options": {...}}, "checkpoint": FOLDER}},
     "rows": 50, "pause": 0.02, "in_sink": false, "hold": null, "held": FOLDER, "cores": 2, "drain": false}

A step is of so many ``rows``, of Arrow batches and of a feed's requests too; ``pause`` seconds lie between two of them,
and before the first and after the last. Steps are made before the sink, with Spark's buffers between, or ``in_sink``,
which has to be one of ours. A task that has passed on ``hold`` rows makes a file ``NAME-<partition>`` in
folder ``held`` and goes no further. A task of a sink that has the connection of the task before it makes a file
``kept-NAME`` there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

HELD_S = 3_600
"""Far longer than a life."""


def slowly(rows: int, pause: float, hold: int | None, mark: str) -> Step:
    """Return what passes rows on in small steps, so that a kill finds tasks that have done some of their rows."""

    def steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        passed = 0
        time.sleep(pause)
        for batch in batches:
            for start in range(0, batch.num_rows, rows):
                step = batch.slice(start, rows)
                yield step
                passed += step.num_rows
                if hold is not None and passed >= hold:
                    context = TaskContext.get()
                    assert context is not None
                    Path(f"{mark}-{context.partitionId()}").touch()
                    time.sleep(HELD_S)
                time.sleep(pause)

    return steps


def interruptible(format: type, own_name: str, rows: int, step: Step | None, kept: str) -> type:
    """Return one of our formats whose sink takes the rows of a task in steps, and asks feeds to take as few at once.

    It has a name of its own: Spark 4.0 lets no other format have the name of one that it has found by itself.
    """
    from spark_streams.spark.sink.writer import SinkCommit, StreamWriter

    class Interruptible(StreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
            from spark_streams.client import digested_rows
            from spark_streams.client.kept_connections import KeptConnections

            usual, usually = digested_rows.MAX_PART_ROWS, KeptConnections.take

            def take(connections: Any, key: Any) -> Any:
                found = usually(connections, key)
                if found is not None:
                    Path(kept).touch()
                return found

            digested_rows.MAX_PART_ROWS = rows
            KeptConnections.take = take  # type: ignore[method-assign]
            try:
                return super().write(iterator if step is None else step(iterator))
            finally:
                KeptConnections.take = usually  # type: ignore[method-assign]
                digested_rows.MAX_PART_ROWS = usual  # Spark gives the process to other queries, too

    class Source(format):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return own_name

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Interruptible(super().streamWriter(schema, overwrite)._sink)

    return Source


def start(spark: Any, given: dict[str, Any]) -> list[Any]:
    """Start all copies and return their queries."""
    from spark_streams.sources.amqp_events import AmqpEventsDataSource
    from spark_streams.sources.feedapi import FeedDataSource
    from spark_streams.sources.rabbitmq_stream import RabbitStreamDataSource

    import spark_streams

    spark_streams.register(spark)
    ours = {each.name(): each for each in (AmqpEventsDataSource, RabbitStreamDataSource, FeedDataSource)}
    trigger = {"availableNow": True} if given["drain"] else {"processingTime": "0 seconds"}
    queries = []
    for name, copy in given["copies"].items():
        source, sink = copy["source"], copy["sink"]
        step = None
        if not given["drain"]:
            step = slowly(given["rows"], given["pause"], given["hold"], f"{given['held']}/{name}")
        frame = (
            spark.readStream.format(source["format"]).options(**source["options"]).load().selectExpr(*copy["select"])
        )
        written = sink["format"]
        if step is not None and not given["in_sink"]:
            frame, step = frame.mapInArrow(step, frame.schema), None
        if sink["format"] in ours:
            written = f"{name}-in-steps"
            kept = f"{given['held']}/kept-{name}"
            spark.dataSource.register(interruptible(ours[sink["format"]], written, given["rows"], step, kept))
        writer = frame.writeStream.format(written).options(**sink["options"])
        queries.append(writer.option("checkpointLocation", copy["checkpoint"]).trigger(**trigger).start())
    return queries


def main(given: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{given['cores']}]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(given["rows"]))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    queries = start(spark, given)
    if not given["drain"]:
        spark.streams.awaitAnyTermination()
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
