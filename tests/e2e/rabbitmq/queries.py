"""What the scenarios do in Spark: batch reads and writes, and a streaming query whose batches are kept one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from spark_streams.sources.rabbitmq_stream import connect

from spark_streams.options.rabbitmq_stream import parse_source
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.task import read_range
from spark_streams.testing import KeptQuery
from tests.e2e.rabbitmq.broker import Broker

FORMAT = "rabbitmq-stream"
WAIT_S = 120

Rows = dict[str, list[str]]
"""Partition to the bodies that were read of it, in the order of offsets."""


def values(frame: DataFrame) -> Rows:
    """Collect a frame of the source."""
    out: Rows = {}
    for row in sorted(frame.select("partition", "offset", "value").collect()):
        out.setdefault(row.partition, []).append(bytes(row.value).decode())
    return out


SCHEMA = pa.schema([("offset", pa.string()), ("value", pa.binary())])


def read_here(url: str, *, on_batch: Callable[[int], None] | None = None, **more: str) -> Rows:
    """Do what a batch query does, in this process: plan it on the driver, and read each range as a task.

    Args:
        url: of the broker.
        on_batch: called with the number of rows of each Arrow batch, before the next one is asked for.
        more: options.
    """
    options = parse_source({"url": url, "requestTimeout": "120000", **more}, streaming=False)
    out: Rows = {}
    for planned in plan_batch(options, tuple(SCHEMA.names), connect):
        for batch in read_range(options, planned, SCHEMA, connect):
            out.setdefault(planned.read.partition, []).extend(v.decode() for v in batch.column("value").to_pylist())
            if on_batch is not None:
                on_batch(batch.num_rows)
    return out


class Query(KeptQuery):
    """A query over partitions, offsets and values."""

    def bodies(self) -> Rows:
        """All values so far, partition by partition; none twice."""
        out: Rows = {}
        seen = set()
        for _, rows in sorted(self.batches.items()):
            for row in sorted(rows):
                assert (row.partition, row.offset) not in seen, "no row comes twice"
                seen.add((row.partition, row.offset))
                out.setdefault(row.partition, []).append(bytes(row.value).decode())
        return out

    def shares(self) -> list[dict[str, int]]:
        """How many rows of each partition each batch had."""
        out = []
        for _, rows in sorted(self.batches.items()):
            names = sorted(row.partition for row in rows)
            out.append({name: names.count(name) for name in dict.fromkeys(names)})
        return out

    def failure(self) -> str:
        """Wait until the query fails, and return why."""
        with pytest.raises(PySparkException) as caught:
            self.running.awaitTermination(WAIT_S)
        return str(caught.value)


class Queries:
    """Reads, writes and starts queries."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.query = Query(folder, timeout_s=WAIT_S)

    def options(self, stream: str | None = None, **more: str) -> dict[str, str]:
        """Options for a stream, unless ``superStream`` is given."""
        given = {"url": self.broker.url, "requestTimeout": "120000"}
        return given | ({} if stream is None else {"stream": stream}) | more

    def batch(self, stream: str | None = None, schema: str | None = None, **more: str) -> DataFrame:
        """A batch read."""
        reader = self.spark.read.format(FORMAT).options(**self.options(stream, **more))
        return (reader.schema(schema) if schema else reader).load()

    def refused(self, stream: str | None = None, **more: str) -> str:
        """Read in a batch query that has to fail, and return why."""
        with pytest.raises(PySparkException) as caught:
            self.batch(stream, **more).collect()
        return str(caught.value)

    def load(self, stream: str | None = None, **more: str) -> DataFrame:
        """A streaming read."""
        return self.spark.readStream.format(FORMAT).options(**self.options(stream, **more)).load()

    def start(self, stream: str | None = None, trigger: dict[str, Any] | None = None, **more: str) -> Query:
        """Start the test's query, or start it again."""
        self.query.start(self.load(stream, **more).select("partition", "offset", "value"), **(trigger or {}))
        return self.query

    def drain(self, stream: str | None = None, **more: str) -> Query:
        """Run Trigger.AvailableNow to its end."""
        self.query.drain(self.load(stream, **more).select("partition", "offset", "value"))
        return self.query

    def write(self, frame: DataFrame, stream: str | None = None, **more: str) -> None:
        """A batch write."""
        frame.write.format(FORMAT).options(**self.options(stream, **more)).mode("append").save()

    def not_written(self, frame: DataFrame, stream: str | None = None, **more: str) -> str:
        """Write in a batch query that has to fail, and return why."""
        with pytest.raises(PySparkException) as caught:
            self.write(frame, stream, **more)
        return str(caught.value)

    def copy(self, frame: DataFrame, stream: str | None = None, name: str = "sink", **more: str) -> Any:
        """Write a streaming frame until there is no more of it; raises what makes the query fail."""
        query = (
            frame.writeStream.format(FORMAT)
            .options(**self.options(stream, **more), checkpointLocation=str(self.folder / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(WAIT_S), query.lastProgress
        finally:
            query.stop()
        return query
