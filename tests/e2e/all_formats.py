"""A program of its own: every format, in a batch and as a stream, against a Spark that is not this process's alone.

usage: all_formats.py connect|cluster FOLDER

``connect`` is a Spark Connect client of a local server, ``cluster`` a driver with two workers, each a process. Before
Spark 4.2 feeds are copied in a batch, as there are no streams of them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.monitoring import Progress, PrometheusMetrics, StreamProgressListener, observed
from spark_streams.testing import LogProcess, LogStream, StreamFactory, eventually
from tests.e2e.connect_server import connect_server

FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi")
SPARK = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}


@contextlib.contextmanager
def session(kind: str, folder: Path) -> Iterator[Any]:
    """Start Spark, and end it."""
    if kind == "connect":
        with connect_server(folder, SETTINGS) as served:
            client = SparkSession.builder.remote(served.url).getOrCreate()
            assert type(client).__module__ == "pyspark.sql.connect.session"
            try:
                yield client
            finally:
                client.stop()
        return
    builder: Any = SparkSession.builder.master("local-cluster[2,1,768]").config("spark.executor.memory", "512m")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    members = made.sparkContext._jsc.sc().getExecutorMemoryStatus
    eventually(lambda: members().size() == 3, "a driver and two workers", 240)
    yield made
    made.stop()


def copy(spark: Any, name: str, read: dict[str, str], write: dict[str, str], checkpoint: Path) -> None:
    frame = observed(spark.readStream.format(name).options(**read).load()).select("value", "key")
    writer = frame.writeStream.format(name).options(**write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert query.exception() is None


def wait_for(told: list[Progress], figures: CollectorRegistry, stream: str) -> None:
    """Return when the listener was told of all events of a stream, their bytes, that none is left, and of the end."""

    def seen() -> None:
        of_it = [progress for progress in told if progress.stream == stream and progress.events]
        assert sum(progress.events for progress in of_it) == 40
        assert sum(progress.bytes or 0 for progress in of_it) == len("".join(f"v{n}" for n in range(40)))
        assert sum(progress.rows_written or 0 for progress in of_it) == 40
        assert bool(of_it[-1].partitions) == (SPARK >= (4, 2))
        assert {*of_it[-1].lag.values()} <= {0, None}
        samples = [sample for family in figures.collect() for sample in family.samples]
        shown = {sample.name: sample.value for sample in samples if sample.labels["stream"] == stream}
        assert shown["spark_streams_query_events_total"] == 40
        assert "spark_streams_query_input_events_per_second" not in shown, "the query has ended"

    eventually(lambda: seen() is None, f"what the listener is told of {stream}", 120)


def collected(spark: Any, name: str, source: LogStream) -> None:
    """Read in a batch; what its tasks logged is a table of Spark's, on Spark Connect too."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    assert spark.read.format(name).options(**source.options(name)).load().select("value").count() == 40

    def told() -> None:
        said = spark.tvf.python_worker_logs().where("logger = 'spark_streams.spark.tasks'").collect()
        contexts = [row.context for row in said if row.context["stream"] == source.name]
        assert sum(int(context["events"]) for context in contexts) == 40
        assert len({context["partition"] for context in contexts}) == 4

    eventually(lambda: told() is None, "Spark has stored what the tasks said", 120)
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


def copied(
    spark: Any, streams: StreamFactory, name: str, folder: Path, told: list[Progress], figures: CollectorRegistry
) -> None:
    """Read events in a batch, copy them in a stream, and look at both, and at what the listener was told."""
    source, target = streams.create("source", 4), streams.create("target", 2)
    source.produce({"value": f"v{n}", "key": f"k{n % 7}"} for n in range(40))
    frame = spark.read.format(name).options(**source.options(name)).load()
    assert frame.count() == 40
    if SPARK >= (4, 1):
        collected(spark, name, source)
    if name == "feedapi" and SPARK < (4, 2):
        frame.select("value", "key").write.format(name).options(**target.options(name)).mode("append").save()
        assert sorted(target.values()) == sorted(f"v{n}" for n in range(40))
        return
    read = source.options(name, startingOffsets="earliest")
    if name == "feedapi":
        read["spoolLocation"] = str(folder / "spool")
    copy(spark, name, read, target.options(name), folder / name)
    assert sorted(target.values()) == sorted(f"v{n}" for n in range(40))
    wait_for(told, figures, source.name)


def main(kind: str, folder: Path) -> None:
    with LogProcess() as process, session(kind, folder) as spark:
        streams = StreamFactory(process)
        spark_streams.register(spark)
        told: list[Progress] = []
        figures = CollectorRegistry()
        listener = StreamProgressListener(told.append, PrometheusMetrics(figures))
        spark.streams.addListener(listener)
        try:
            for name in FORMATS:
                copied(spark, streams, name, folder, told, figures)
                print("done:", name, flush=True)
        finally:
            # Spark Connect's client listens in a thread that keeps a program from ending.
            spark.streams.removeListener(listener)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
