"""Logging in the Python processes of a query: the driver logs to its stderr, a task to Spark's table of logs.

Spark runs a source in its own Python processes, which set up no logging, and which the user's program cannot reach:
only option ``logLevel``, and modules that such a process imports, can. The driver's and the executors' logs have what
these processes write to stderr. Spark 4.1 and later also collect the records of Python's loggers if the user sets
``spark.sql.pyspark.worker.logging.enabled``, and show them as a table, ``spark.tvf.python_worker_logs()``.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.retry import retries
from spark_streams.options.connection import DEFAULT_LOG_LEVEL

_log = logging.getLogger("spark_streams.spark.tasks")

PACKAGE: Final = "spark_streams"
COLLECTED: Final = "PYSPARK_SPARK_SESSION_UUID"
"""Environment variable of a process whose log lines Spark collects (pyspark.logger.worker_io)."""
FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
READ_S: Final = 1.0
"""How long a line waits until it is read, at most: the JVM may be busy, or may not read at all."""

_level_before: int | None = None
"""The level of our logger before ``logLevel`` set it in this process, which tasks of other queries use too."""


class ReadHandler(logging.StreamHandler[Any]):
    """Writes lines to stderr, and returns when the JVM has read them where stderr is a pipe to it.

    Spark ends the process of a stream's source as soon as the query has its last answer, and drops what it has not read
    from the process's pipe by then (``Process.destroy`` of Java closes its end): lines just before that answer, such as
    a loss that shows when the query looks for more, or the traceback of the error that ends it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        deadline = time.monotonic() + READ_S
        while _unread(self.stream) and time.monotonic() < deadline:
            time.sleep(0.0005)


def show_log_lines(level: str) -> None:
    """Send this package's log lines to stderr, unless logging is already set up in this process.

    Args:
        level: the lowest, as in option ``logLevel``. With the option's default, a level that was set in this process
            before counts.
    """
    package, root = logging.getLogger(PACKAGE), logging.getLogger()
    ours = [handler for handler in package.handlers if isinstance(handler, ReadHandler)]
    is_set_up = bool(root.handlers or len(package.handlers) > len(ours))
    if not ours and not is_set_up:
        handler = ReadHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
        package.addHandler(handler)
    _choose(level, logging.NOTSET if is_set_up else logging.INFO)


def show_task_lines(level: str) -> None:
    """Set this package's level in a task, for the lines that Spark collects; else warnings go to the executor's stderr.

    Where ``logLevel`` is not its default and Spark does not collect them, all lines of that level go there.
    """
    if level == DEFAULT_LOG_LEVEL or COLLECTED in os.environ:
        _choose(level, logging.INFO if COLLECTED in os.environ else logging.NOTSET)
    else:
        show_log_lines(level)


def _choose(level: str, default: int) -> None:
    """Set our logger's level to the option's; with its default, back to what it was, or to ``default`` for none."""
    global _level_before
    package = logging.getLogger(PACKAGE)
    if level != DEFAULT_LOG_LEVEL:
        if _level_before is None:
            _level_before = package.level
        package.setLevel(level.upper())
        return
    if _level_before is not None:
        package.setLevel(_level_before)
        _level_before = None
    if package.level == logging.NOTSET:
        package.setLevel(default)


def _unread(stream: Any) -> bool:
    """Return whether a stream is a pipe with bytes that were not read yet; only Linux can tell."""
    if sys.platform != "linux":
        return False
    import fcntl
    import termios

    try:
        descriptor = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        return any(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except (OSError, ValueError):  # no descriptor, or a closed one
        return False


def counted(batches: Iterator[pa.RecordBatch], label: str, stream: str, partition: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and log events, bytes of values, seconds and retries after the last one, if level INFO is on.

    Args:
        batches: the batches that a task returns to Spark.
        label: who reads what: ``SourceOptions.label``.
        stream: the log's name.
        partition: the partition that the task reads.
    """
    if not _log.isEnabledFor(logging.INFO):
        yield from batches
        return
    began, before = time.monotonic(), retries()
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
        "retries": str(retries() - before),
    }
    line = "%(label)s partition '%(partition)s': %(events)s events, %(bytes)s bytes in %(seconds)s s"
    if retries() > before:
        line += ", retries: %(retries)s"
    _log.info(line, {"label": label, **context}, extra={"context": context})
