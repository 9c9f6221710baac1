"""What the Python processes of a query log: the driver's lines reach its stderr, a task's reach Spark's table of logs.

Spark runs a source in Python processes of its own, in which nobody sets up logging. What they write to stderr is in the
driver's and the executors' logs. Spark 4.1 and later collect what Python's loggers say there too, where the user wants
it (``spark.sql.pyspark.worker.logging.enabled``), and give it as a table, ``spark.tvf.python_worker_logs()``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_log = logging.getLogger("spark_streams.spark.tasks")

PACKAGE: Final = "spark_streams"
COLLECTED: Final = "PYSPARK_SPARK_SESSION_UUID"
"""Environment variable of a process whose log lines Spark collects (pyspark.logger.worker_io)."""


def show_log_lines() -> None:
    """Send this package's log lines, from INFO on, to stderr, if nobody else has set up logging in this process."""
    package = logging.getLogger(PACKAGE)
    if logging.getLogger().handlers or package.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


def show_task_lines() -> None:
    """Let this package's log lines, from INFO on, pass in a task whose lines Spark collects; else those of WARNING."""
    package = logging.getLogger(PACKAGE)
    if COLLECTED in os.environ and package.level == logging.NOTSET:
        package.setLevel(logging.INFO)


def counted(batches: Iterator[pa.RecordBatch], stream: str, partition: str) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and log a line of them when all are read, if anybody reads such lines; its bytes are of values.

    Args:
        batches: what a task hands to Spark.
        stream: the log's name.
        partition: that is read.
    """
    show_task_lines()
    if not _log.isEnabledFor(logging.INFO):
        yield from batches
        return
    began = time.monotonic()
    events = size = 0
    for batch in batches:
        events += batch.num_rows
        if "value" in batch.schema.names:
            size += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
        yield batch
    seconds = time.monotonic() - began
    context = {
        "stream": stream,
        "partition": partition,
        "events": str(events),
        "bytes": str(size),
        "seconds": f"{seconds:.3f}",
    }
    _log.info(
        "stream '%s' partition '%s': %d events, %d bytes in %.3f s",
        stream,
        partition,
        events,
        size,
        seconds,
        extra={"context": context},
    )
