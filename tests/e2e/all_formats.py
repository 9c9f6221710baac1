"""A program of its own: every format, in a batch and as a stream, against a Spark that is not this process's alone.

usage: all_formats.py connect|cluster FOLDER

``connect`` is a Spark Connect client of a local server, ``cluster`` a driver with two workers, each a process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import spark_streams
from spark_streams.monitoring import Progress, StreamProgressListener, observed
from spark_streams.testing import LogProcess, StreamFactory, eventually

FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi")


def session(kind: str) -> Any:
    builder: Any = SparkSession.builder
    if kind == "connect":
        builder = builder.remote("local[2]")
    else:
        builder = builder.master("local-cluster[2,1,768]").config("spark.executor.memory", "512m")
    made = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false").getOrCreate()
    spark_streams.register(made)
    if kind == "connect":
        assert type(made).__module__ == "pyspark.sql.connect.session"
    else:
        assert made.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 3, "a driver and two workers"
    return made


def copy(spark: Any, name: str, read: dict[str, str], write: dict[str, str], checkpoint: Path) -> None:
    frame = observed(spark.readStream.format(name).options(**read).load()).select("value", "key")
    writer = frame.writeStream.format(name).options(**write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert query.exception() is None


def wait_for(told: list[Progress], stream: str) -> None:
    """Return when the listener was told of all events of a stream, their bytes, and that nothing is left."""

    def seen() -> None:
        of_it = [progress for progress in told if progress.stream == stream and progress.events]
        assert sum(progress.events for progress in of_it) == 40
        assert sum(progress.bytes or 0 for progress in of_it) == len("".join(f"v{n}" for n in range(40)))
        assert sum(progress.rows_written or 0 for progress in of_it) == 40
        assert of_it[-1].partitions.keys()
        assert {*of_it[-1].lag.values()} <= {0, None}

    eventually(lambda: seen() is None, f"what the listener is told of {stream}", 120)


def copied(spark: Any, streams: StreamFactory, name: str, folder: Path, told: list[Progress]) -> None:
    """Read events in a batch, copy them in a stream, and look at both, and at what the listener was told."""
    source, target = streams.create("source", 4), streams.create("target", 2)
    source.produce({"value": f"v{n}", "key": f"k{n % 7}"} for n in range(40))
    assert spark.read.format(name).options(**source.options(name)).load().count() == 40
    read = source.options(name, startingOffsets="earliest")
    if name == "feedapi":
        read["spoolLocation"] = str(folder / "spool")
    copy(spark, name, read, target.options(name), folder / name)
    assert sorted(target.values()) == sorted(f"v{n}" for n in range(40))
    wait_for(told, source.name)


def main(kind: str, folder: Path) -> None:
    with LogProcess() as process:
        streams = StreamFactory(process)
        spark = session(kind)
        told: list[Progress] = []
        listener = StreamProgressListener(told.append)
        spark.streams.addListener(listener)
        try:
            for name in FORMATS:
                copied(spark, streams, name, folder, told)
                print("done:", name, flush=True)
        finally:
            # Spark Connect's client listens in a thread that keeps a program from ending.
            spark.streams.removeListener(listener)
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
