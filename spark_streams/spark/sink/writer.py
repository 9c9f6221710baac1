"""The writers that Spark runs: rows in Arrow batches go out, a commit message says that the peer has them.

Spark's part of every guarantee is **at least once**: a task that fails is tried again, and a micro-batch that was not
committed is written again after a restart, so rows that were delivered before the fault are handed over a second time.
What that means is the format's, said by its ``Sink``: what is written again has the same ``TaskName``, and rows of a
Spark partition that come in the same order again have the same numbers, from which a sink derives ids. By them a reader
(docs/adr/0007-sink-delivery.md: message-ids) or the log itself (publishing ids) drops what it has.

Spark makes a writer on the driver, pickles it for the tasks, and for ``commit`` and ``abort`` rebuilds a stream's in
another process: what these know comes in the commit messages alone.

Whether a task was given all of its rows.

Spark gives a task's rows to Python as an Arrow stream through a socket. When the JVM at its other end dies, or stops
the task, the stream breaks off; pyarrow takes a stream that breaks off between two batches for one that has ended. A
sink must not: the rows so far would pass for all rows of the task, under ids that belong to other windows or parts.
"""

from __future__ import annotations

import io
import logging
import select
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from spark_streams.errors import SparkStreamsError, TransportError
from spark_streams.spark.log_lines import show_log_lines
from spark_streams.spark.sink.columns import slices

__all__ = ["BatchWriter", "Outlet", "Sink", "SinkCommit", "StreamWriter", "TaskName", "broke_off"]


def broke_off() -> bool:
    """Return whether the rows ended because Spark has gone; asked by a task when there are no more rows.

    After the last row Spark sends the end of its own protocol and keeps the socket open until the task has answered, so
    a socket that is closed means that the rows are not complete. Where the socket is not found (Python workers without
    their daemon, as on Windows) the end is believed.
    """
    socket_file = _input()
    if socket_file is None:
        return False
    try:
        readable, _, _ = select.select([socket_file], [], [], 0)
        return bool(readable) and not socket_file.peek(1)
    except OSError:
        return True  # reset: the JVM was killed with bytes of ours unread


def _input() -> Any:
    """Return the file that ``pyspark.worker.main(infile, outfile)`` reads; None where there is none to ask."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == "pyspark.worker":
            return _waitable(frame.f_locals.get("infile"))
        frame = frame.f_back
    return None


def _waitable(file: Any) -> Any:
    try:
        file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return None
    return file if hasattr(file, "peek") else None


_log = logging.getLogger(__name__)

_MAX_SHOWN = 100
"""Characters of a key or id in an error: enough to find the row, whatever the key is."""

# DataSourceStreamArrowWriter came with Spark 4.1. Spark 4.0 asks a stream's writer too whether it is a
# DataSourceArrowWriter before it turns rows into objects, so being both takes Arrow batches there as well.
_ARROW_STREAM_WRITER: tuple[type, ...] = (
    (datasource.DataSourceStreamArrowWriter,)
    if hasattr(datasource, "DataSourceStreamArrowWriter")
    else (DataSourceStreamWriter, DataSourceArrowWriter)
)


class Outlet(Protocol):
    """Where one task's rows go; it lives as long as the task's write."""

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Send rows, waiting while the peer gives no credit.

        Args:
            columns: of ``Sink.columns``.
            label: names row i of these columns in errors, also after this call has returned.

        Raises:
            DeliveryFailed: the peer did not accept a row, of these or of earlier ones.
            DeadlineExceeded: no credit in time.
        """

    def flush(self) -> None:
        """Return once the peer has accepted every row, or raise as ``send``."""

    def close(self) -> None:
        """Disconnect; what is not settled then may or may not have been stored."""


class Sink(Protocol):
    """What a format tells the writers: picklable, opened once in each task that has rows."""

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns that ``Outlet.send`` takes.

        Args:
            rows: of a schema that ``check_schema`` let pass.
            name: of the task.
            first_row: number of the first of these rows within the task, counted from 0.

        Returns:
            ``message_columns`` of the rows, and what the format adds. In errors a row is named by its number, and by
            ``key`` and ``message_id`` where these columns are there.
        """

    def open(self, name: TaskName, streaming: bool) -> Outlet:
        """Connect.

        Args:
            name: of the task that writes.
            streaming: whether it writes a micro-batch, which may be written again after a restart; else a batch write.

        Raises:
            SparkStreamsError: no connection, or the sink cannot keep its promise under this name (``TaskName.stable``).
        """

    def repetition(self, streaming: bool) -> str:
        """Return a sentence for the log, without a full stop: what becomes of rows that are written again."""


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):  # type: ignore[misc]
    """One task's rows are all accepted by the peer.

    Args:
        partition: number of the Spark partition.
        rows: how many.
        first_id: message-id of the first row, None when there is none.
        last_id: of the last.
        bytes: of the rows' values.
        began_at: when the task began, in seconds since the epoch.
        ended_at: when the peer had accepted the last row.
    """

    partition: int
    rows: int
    first_id: str | None
    last_id: str | None
    bytes: int = field(default=0, compare=False)
    began_at: float = field(default=0.0, compare=False)
    ended_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class TaskName:
    """What a task's work is called on every attempt at it.

    Args:
        query: a streaming query's id, which its checkpoint keeps over restarts, or a random id made for this write.
        batch: number of the micro-batch; 0 where there is none.
        partition: number of the Spark partition.
        stable: whether the work has this name also when it is done again after a restart of the query. It does not in
            a batch write, nor where Spark hides the query's id from its tasks.
    """

    query: str
    batch: str
    partition: int
    stable: bool = False

    @property
    def prefix(self) -> str:
        """What ids of the task's rows begin with; the row's number from 0 follows."""
        return f"{self.query}/{self.batch}/{self.partition}/"


def _deliver(sink: Sink, name: TaskName, streaming: bool, batches: Iterator[pa.RecordBatch]) -> SinkCommit:
    """Send all rows of a task and wait until they are accepted; a task without rows does not connect."""
    row, size, first_id, last_id = 0, 0, None, None
    began_at = time.time()
    with _last_word(), ExitStack() as stack:
        outlet: Outlet | None = None
        for batch in batches:
            for run in slices(batch):
                columns = sink.columns(run, name, row)
                ids = columns.get("message_id")
                if outlet is None:
                    outlet = sink.open(name, streaming)
                    stack.callback(outlet.close)
                outlet.send(columns, _Labels(row, name.partition, columns.get("key"), ids))
                if ids is not None:
                    first_id, last_id = first_id or ids[0].as_py(), ids[-1].as_py()
                row += run.num_rows
                bodies = columns.get("value", columns.get("message"))
                size += pc.sum(pc.binary_length(bodies)).as_py() or 0
        if broke_off():
            raise TransportError(
                "Spark has ended this task before it gave all of its rows: what was sent stays, and the next attempt "
                "goes on from there"
            )
        if outlet is not None:
            outlet.flush()
    return SinkCommit(name.partition, row, first_id, last_id, size, began_at, time.time())


@contextmanager
def _last_word() -> Iterator[None]:
    """Nothing that a task raises is tried again in it: Spark begins another attempt, or the query fails."""
    try:
        yield
    except SparkStreamsError as fault:
        fault.given_up = True
        raise


@dataclass(frozen=True)
class _Labels:
    """Names a row for an error: built for each slice, asked only when the peer did not accept a row."""

    first_row: int
    partition: int
    keys: pa.Array | None
    ids: pa.Array | None

    def __call__(self, i: int) -> str:
        told = {"key": self.keys, "message-id": self.ids}
        known = {what: column[i].as_py() for what, column in told.items() if column is not None}
        shown = ", ".join(f"{what} '{_cut(text)}'" for what, text in known.items() if text is not None)
        return f"row {self.first_row + i} of Spark partition {self.partition}" + (f" ({shown})" if shown else "")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write``: a task that Spark tries again has the same name, another write never.

    Args:
        sink: where rows go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        # Made once on the driver and pickled to the tasks, so that all attempts of one write share it. The id of a
        # streaming query is not used even inside foreachBatch: two writes of one micro-batch must not share names.
        self._job = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send the rows of one Spark partition; returns only once the peer has accepted them all."""
        return _deliver(self._sink, TaskName(self._job, "0", TaskContext.get().partitionId()), False, iterator)

    def commit(self, messages: Sequence[SinkCommit | None]) -> None:
        """Note the end of a write: there is nothing to commit, each row was accepted before its task ended."""
        show_log_lines()
        _log.info("%s", _delivered(messages))

    def abort(self, messages: Sequence[SinkCommit | None]) -> None:
        """Log what may have been delivered, since it cannot be taken back."""
        _log.warning("write %s failed: %s", self._job, _may_have_been_delivered(self._sink, False, messages))


class StreamWriter(*_ARROW_STREAM_WRITER):  # type: ignore[misc]
    """``df.writeStream``: a micro-batch that is written again, also after a restart, has the same task names.

    Args:
        sink: where rows go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._job = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommit:
        """Send one Spark partition of one micro-batch; returns only once the peer has accepted its rows."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            # Some managed runtimes hide local properties. A name that only task retries repeat is still unique.
            _log.warning("Spark tells this task no query id: its rows have other ids when the micro-batch is repeated")
            name = TaskName(self._job, "0", context.partitionId())
        else:
            name = TaskName(query, batch, context.partitionId(), stable=True)
        return _deliver(self._sink, name, True, iterator)

    def commit(self, messages: Sequence[SinkCommit | None], batchId: int) -> None:
        """Note the end of a micro-batch: there is nothing to commit, each row was accepted before its task ended."""
        show_log_lines()
        _log.info("batch %d: %s", batchId, _delivered(messages))

    def abort(self, messages: Sequence[SinkCommit | None], batchId: int) -> None:
        """Log what may have been delivered, since it cannot be taken back."""
        _log.warning("batch %d failed: %s", batchId, _may_have_been_delivered(self._sink, True, messages))


def _rows(messages: Sequence[SinkCommit | None]) -> int:
    return sum(m.rows for m in messages if m is not None)


def _delivered(messages: Sequence[SinkCommit | None]) -> str:
    done = [m for m in messages if m is not None and m.rows]
    if not done:
        return "0 rows delivered"
    # Clocks of executors may differ a little: it took at least as long as the slowest task.
    span = max(m.ended_at for m in done) - min(m.began_at for m in done)
    seconds = max(span, *(m.ended_at - m.began_at for m in done), 1e-3)
    rows, size = _rows(done), sum(m.bytes for m in done)
    return (
        f"{rows} rows delivered, {rows / seconds:.0f} rows/s, {size} bytes, {size / seconds:.0f} bytes/s, "
        f"by {len(done)} {'task' if len(done) == 1 else 'tasks'} in {seconds:.3f} s"
    )


def _may_have_been_delivered(sink: Sink, streaming: bool, messages: Sequence[SinkCommit | None]) -> str:
    done = [m for m in messages if m is not None]
    ranges = "".join(
        f"; Spark partition {m.partition}: {m.rows} rows" + (f", '{m.first_id}' to '{m.last_id}'" if m.first_id else "")
        for m in done
        if m.rows
    )
    return (
        f"{_rows(messages)} rows of {len(done)} finished tasks were delivered{ranges}; the other "
        f"{len(messages) - len(done)} tasks may have delivered some of theirs. {sink.repetition(streaming)}"
    )
