"""The writers that Spark runs: they send rows of Arrow batches, and a commit message confirms that the peer has them.

Spark makes a writer on the driver and pickles it for the tasks. For ``commit`` and ``abort`` it rebuilds a stream's
writer in another process, where the commit messages are the only information.

A task also checks whether it got all of its rows (``broke_off``). Spark sends them to Python as an Arrow stream through
a socket. When the JVM at the other end dies, or stops the task, the stream breaks off; pyarrow cannot tell a stream
that breaks off between two batches from one that has ended. A sink must: otherwise the rows so far would count as all
rows of the task, with ids that belong to other blocks or parts.
"""

from __future__ import annotations

import io
import logging
import re
import select
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.client.retry import retries
from spark_streams.errors import OptionError, SparkStreamsError, TransportError
from spark_streams.filters.describe import shorten
from spark_streams.options.common import query_label
from spark_streams.spark.boundary import CalledBySpark
from spark_streams.spark.log_lines import show_log_lines, show_task_lines
from spark_streams.spark.reused_worker import acknowledge_at_once, ease_reuse
from spark_streams.spark.sink.columns import slices
from spark_streams.spark.sink.sink import Outlet, Sink, TaskName


def broke_off() -> bool:
    """Return whether the rows ended because Spark has gone; a task calls this when there are no more rows.

    After the last row Spark sends the end of its own protocol and keeps the socket open until the task has answered, so
    a closed socket means that the rows are incomplete. Where the socket cannot be found (Python workers without their
    daemon, as on Windows) the rows count as complete.
    """
    socket_file = _input()
    if socket_file is None:
        return False
    try:
        readable, _, _ = select.select([socket_file.fileno()], [], [], 0)
        return bool(readable) and not socket_file.peek(1)
    except (AttributeError, io.UnsupportedOperation):
        return False  # it is no socket's file
    except OSError:
        return True  # the connection was reset: the JVM was killed before it had read all of our bytes


def _input() -> Any:
    """Return the file that ``pyspark.worker.main(infile, outfile)`` reads; None where it cannot be found."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == "pyspark.worker":
            return frame.f_locals.get("infile")
        frame = frame.f_back
    return None


_log = logging.getLogger(__name__)

_MAX_SHOWN: Final = 100
"""Characters of a key or id in an error: enough to find the row, whatever the key is."""

# Spark 4.1 introduced DataSourceStreamArrowWriter. Spark 4.0 tests also for a stream's writer whether it is a
# DataSourceArrowWriter before it converts rows to objects, so a class that is both gets Arrow batches there too.
_ARROW_STREAM_WRITER: tuple[type, ...] = (
    (datasource.DataSourceStreamArrowWriter,)
    if hasattr(datasource, "DataSourceStreamArrowWriter")
    else (DataSourceStreamWriter, DataSourceArrowWriter)
)


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):  # type: ignore[misc]
    """The commit message of one task: the peer has accepted all of its rows.

    Args:
        partition: number of the Spark partition.
        rows: number of rows.
        first_id: message-id of the first row, None when there is none.
        last_id: message-id of the last row, None when there is none.
        bytes: bytes of the rows' values.
        began_at: when the task began, in seconds since the epoch.
        ended_at: when the peer had accepted the last row, in seconds since the epoch.
        query: the query that wrote, by its name or its id; None where Spark does not tell, or it is no query.
        batch: number of the query's micro-batch, as text; None likewise.
        retries: how many times the task had to try something again.
    """

    partition: int
    rows: int
    first_id: str | None
    last_id: str | None
    bytes: int = field(default=0, compare=False)
    began_at: float = field(default=0.0, compare=False)
    ended_at: float = field(default=0.0, compare=False)
    query: str | None = field(default=None, compare=False)
    batch: str | None = field(default=None, compare=False)
    retries: int = field(default=0, compare=False)


def _deliver(sink: Sink, name: TaskName, streaming: bool, batches: Iterator[pa.RecordBatch]) -> SinkCommit:
    """Send all rows of a task and wait until the peer accepts them; a task without rows does not connect."""
    row, size, first_id, last_id = 0, 0, None, None
    began_at, before = time.time(), retries()
    try:
        with ExitStack() as stack:
            outlet: Outlet | None = None
            for batch in batches:
                for run in slices(batch):
                    columns = sink.columns(run, name, row)
                    ids = columns.get("message_id")
                    if outlet is None:
                        outlet = sink.open(name, streaming)
                        stack.callback(outlet.close)
                    outlet.send(columns, _labels(row, name.partition, columns))
                    if ids is not None:
                        first_id, last_id = first_id or ids[0].as_py(), ids[-1].as_py()
                    row += run.num_rows
                    bodies = columns.get("value", columns.get("message"))
                    size += pc.sum(pc.binary_length(bodies)).as_py() or 0
            if broke_off():
                raise TransportError(
                    "Spark has ended this task before it gave all of its rows: what was sent stays, and the next "
                    "attempt goes on from there"
                )
            if outlet is not None:
                outlet.flush()
    except SparkStreamsError as fault:
        fault.given_up = True  # the task does not retry: Spark starts another attempt of it, or the query fails
        raise
    ease_reuse()
    query, number = _query()
    again = retries() - before
    return SinkCommit(name.partition, row, first_id, last_id, size, began_at, time.time(), query, number, again)


def _query() -> tuple[str | None, str | None]:
    """Return the query that this task belongs to, by its name or its id, and its micro-batch; in foreachBatch too."""
    context = TaskContext.get()
    # MicroBatchExecution describes its jobs so, and nothing else tells a query's name.
    told = context.getLocalProperty("spark.job.description") or ""
    described = re.match(r"(?:(.*?)(?:\n|<br/>))?id = \S+?(?:\n|<br/>)runId = ", told, re.DOTALL)
    name = None if described is None else described[1]
    return name or context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")


def _labels(first_row: int, partition: int, columns: Mapping[str, pa.Array]) -> Callable[[int], str]:
    """Return a function that names row i of these columns in an error; only a row that the peer rejects needs it."""
    naming = {what: columns[name] for name, what in (("key", "key"), ("message_id", "message-id")) if name in columns}

    def label(i: int) -> str:
        known = {what: column[i].as_py() for what, column in naming.items()}
        shown = ", ".join(f"{what} '{shorten(text, _MAX_SHOWN)}'" for what, text in known.items() if text is not None)
        return f"row {first_row + i} of Spark partition {partition}" + (f" ({shown})" if shown else "")

    return label


class _Writer(CalledBySpark):
    """The base of the writers.

    Args:
        sink: the format's sink.
    """

    streaming: ClassVar[bool]
    """Whether it writes micro-batches."""

    def __init__(self, sink: Sink) -> None:
        show_log_lines(sink.options.log_level)
        self._sink = sink
        # The driver makes this id once and pickles it to the tasks, so that all attempts of one write share it. A write
        # in foreachBatch does not use the query's id either: two writes of one micro-batch must not share names.
        self._job = str(uuid.uuid4())

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin a task, or a commit: Spark unpickles the writer in the worker, and reads the task's rows after that."""
        self.__dict__.update(state)
        show_task_lines(self._sink.options.log_level)
        acknowledge_at_once()

    def commit(self, messages: Sequence[SinkCommit | None], batchId: int | None = None) -> None:
        """Log the end of a write; it needs no commit, as the peer accepted each row before its task ended.

        Raises:
            OptionError: a task has no message: Spark never gave its rows to this sink.
        """
        show_log_lines(self._sink.options.log_level)
        if None in messages:
            raise OptionError(
                "trigger",
                f"{messages.count(None)} of {len(messages)} tasks have no commit message, so Spark gave none of their "
                "rows to this sink: trigger(continuous=…) does so with every Python sink, and ignores this error. The "
                "query writes and commits nothing: stop it, and start it with processingTime or availableNow",
            )
        _log.info("%s: %s", _who(self._sink, messages, batchId), _delivered(messages))
        ease_reuse()

    def abort(self, messages: Sequence[SinkCommit | None], batchId: int | None = None) -> None:
        """Log which rows may have been delivered, since a delivery cannot be undone."""
        show_log_lines(self._sink.options.log_level)
        left = _may_have_been_delivered(self._sink, self.streaming, messages)
        _log.warning("%s failed: %s", _who(self._sink, messages, batchId), left)


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of ``df.write``: a retried task has the same name, another write never has."""

    streaming = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one Spark partition, and return once the peer has accepted them all."""
        return _deliver(self._sink, TaskName(self._job, "0", TaskContext.get().partitionId()), False, iterator)


class StreamWriter(_Writer, *_ARROW_STREAM_WRITER):  # type: ignore[misc]
    """The writer of ``df.writeStream``: a repeated micro-batch has the same task names, also after a restart."""

    streaming = True

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send one Spark partition of one micro-batch, and return once the peer has accepted its rows."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            # Some managed runtimes hide local properties. This name is unique too, but only task retries share it.
            _log.warning("Spark tells this task no query id: its rows have other ids when the micro-batch is repeated")
            name = TaskName(self._job, "0", context.partitionId())
        else:
            name = TaskName(query, batch, context.partitionId(), stable=True)
        return _deliver(self._sink, name, True, iterator)


def batch_writer(sink: Sink, schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of ``df.write``.

    Args:
        sink: the format's sink, with its options.
        schema: the DataFrame's schema.
        overwrite: whether the save mode is ``overwrite``.

    Raises:
        OptionError: the mode is ``overwrite``, or a column and an option contradict each other.
        SchemaError: the sink does not know a column or its type, or one is missing.
        NotFound: there is no such stream.
        AuthenticationFailed: the peer does not accept the credentials.
        Refused: the peer does not let us write there.
    """
    if overwrite:
        raise OptionError(
            "mode",
            "'overwrite' cannot be done, events in a log are never replaced: use mode 'append', in SQL INSERT INTO",
        )
    sink.check_schema(schema)
    return BatchWriter(sink.check())


def stream_writer(sink: Sink, schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of ``df.writeStream``; like ``batch_writer``, but ``overwrite`` is output mode ``complete``."""
    if overwrite:
        raise OptionError(
            "outputMode",
            "'complete' cannot be done, events in a log are never replaced: use 'append', with withWatermark for an "
            "aggregation, or 'update' with foreachBatch, whose function appends the rows that have changed "
            "(df.write.mode('append')); Spark gives 'update' to no Python sink itself",
        )
    sink.check_schema(schema)
    writer = StreamWriter(sink.check())
    ease_reuse()  # Spark asks for a writer in each micro-batch
    return writer


def _who(sink: Sink, messages: Sequence[SinkCommit | None], batch: int | None) -> str:
    """Return the query and the micro-batch where these are known, the format and the stream, for a log line."""
    told = next((m for m in messages if m is not None), None)
    number = batch if told is None or batch is not None else told.batch
    label = query_label(None if told is None else told.query) + sink.label
    return label if number is None else f"{label}: batch {number}"


def _delivered(messages: Sequence[SinkCommit | None]) -> str:
    done = [m for m in messages if m is not None and m.rows]
    if not done:
        return "0 rows delivered"
    # Clocks of executors may differ a little: the write took at least as long as the slowest task.
    span = max(m.ended_at for m in done) - min(m.began_at for m in done)
    seconds = max(span, *(m.ended_at - m.began_at for m in done), 1e-3)
    rows, size, again = (sum(values) for values in zip(*((m.rows, m.bytes, m.retries) for m in done), strict=True))
    return (
        f"{rows} rows delivered, {rows / seconds:.0f} rows/s, {size} bytes, {size / seconds:.0f} bytes/s, "
        f"by {len(done)} {'task' if len(done) == 1 else 'tasks'} in {seconds:.3f} s"
        + (f", retries: {again}" if again else "")
    )


def _may_have_been_delivered(sink: Sink, streaming: bool, messages: Sequence[SinkCommit | None]) -> str:
    done = [m for m in messages if m is not None]
    ranges = "".join(
        f"; Spark partition {m.partition}: {m.rows} rows" + (f", '{m.first_id}' to '{m.last_id}'" if m.first_id else "")
        for m in done
        if m.rows
    )
    return (
        f"{sum(m.rows for m in done)} rows of {len(done)} finished tasks were delivered{ranges}; the other "
        f"{len(messages) - len(done)} tasks may have delivered some of theirs. What is written again "
        f"{sink.repeats_of_stream if streaming else sink.repeats_of_batch}"
    )
