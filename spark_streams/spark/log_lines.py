"""Logging in the Python processes of a query: the driver logs to its stderr, a task to Spark's table of logs.

Spark runs a source in its own Python processes, which set up no logging. The driver's and the executors' logs have what
these processes write to stderr. Spark 4.1 and later also collect the records of Python's loggers if the user sets
``spark.sql.pyspark.worker.logging.enabled``, and show them as a table, ``spark.tvf.python_worker_logs()``.
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
    """Send this package's log lines, from INFO on, to stderr, unless logging is already set up in this process."""
    package = logging.getLogger(PACKAGE)
    if logging.getLogger().handlers or package.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


def show_task_lines() -> None:
    """Set this package's level to INFO in a task whose lines Spark collects, unless it is set; else WARNING applies."""
    package = logging.getLogger(PACKAGE)
    if COLLECTED in os.environ and package.level == logging.NOTSET:
        package.setLevel(logging.INFO)


def counted(batches: Iterator[pa.RecordBatch], stream: str, partition: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and log events, bytes of values and seconds after the last one, if level INFO is on.

    Args:
        batches: the batches that a task returns to Spark.
        stream: the log's name.
        partition: the partition that the task reads.
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
    context = {
        "stream": stream,
        "partition": partition,
        "events": str(events),
        "bytes": str(size),
        "seconds": f"{time.monotonic() - began:.3f}",
    }
    line = "stream '%(stream)s' partition '%(partition)s': %(events)s events, %(bytes)s bytes in %(seconds)s s"
    _log.info(line, context, extra={"context": context})
