"""The interface between the writers and a format's sink: a ``Sink`` on the driver opens an ``Outlet`` in each task.

Spark's part of every guarantee is **at least once**: it retries a task that fails, and after a restart writes a
micro-batch again that was not committed. So a sink gets rows a second time that were delivered before the fault. Rows
that are written again have the same ``TaskName``, and if they come in the same order within their Spark partition, the
same numbers. A format's ``Sink`` derives ids from these, by which a reader (docs/adr/0007-sink-delivery.md:
message-ids) or the log itself (publishing ids) drops duplicates.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_streams.client import TaskIdentity
from spark_streams.client.kept_connections import SERVED_S, KeptConnections
from spark_streams.errors import OptionError, SparkStreamsError
from spark_streams.spark.reused_worker import is_reused

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_checked: Final[dict[Hashable, object]] = {}
"""Keys of the checks that ``check_once`` has made in this process, to the results of the checks."""


GOES_OUT_AGAIN: Final = "goes out again: a batch write is at least once"
"""The end of the sentence about rows that a batch write writes again, whose task then has another name; see
``Sink``."""


class Outlet(Protocol):
    """The connection that sends one task's rows; it exists as long as the task's write."""

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Send rows, and wait while the peer gives no credit.

        Args:
            columns: the result of ``Sink.columns``.
            label: names row i of these columns in errors, also after this call has returned.

        Raises:
            DeliveryFailed: the peer did not accept one of these rows, or an earlier one.
            DeadlineExceeded: the peer gave no credit in time.
        """

    def flush(self) -> None:
        """Return once the peer has accepted every row.

        Raises:
            DeliveryFailed: the peer did not accept a row.
            DeadlineExceeded: the peer did not settle all rows in time.
        """

    def close(self) -> None:
        """Disconnect; rows that are not settled then may or may not be stored."""


class Sink(Protocol):
    """A format's sink, as the writers use it; picklable, and opened once in each task that has rows."""

    @property
    def options(self) -> Any:
        """Checked options; ``log_level`` is among them."""

    repeats_of_batch: ClassVar[str]
    """The end of a sentence about rows that a batch write sends again, after "What is written again"."""
    repeats_of_stream: ClassVar[str]
    """The end of the same sentence for a stream."""

    @property
    def label(self) -> str:
        """The format and where the rows go, for log lines, as ``feedapi stream 'orders'``."""

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns, on the driver.

        Raises:
            SchemaError: the sink does not know a column or its type, or one is missing.
            OptionError: a column and an option contradict each other.
        """

    def check(self) -> Sink:
        """Check that the stream exists, so that a wrong name fails on the driver before tasks start (``check_once``).

        Returns:
            The sink for the tasks, which may know more about the peer than this one.

        Raises:
            NotFound: there is no such stream.
            AuthenticationFailed: the peer does not accept the credentials.
            Refused: the peer does not let us write there.
        """

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns that ``Outlet.send`` takes.

        Args:
            rows: rows with a schema that ``check_schema`` accepts.
            name: the name of the task.
            first_row: number of the first of these rows within the task, counted from 0.

        Returns:
            ``message_columns`` of the rows, and the columns that the format adds. Errors name a row by its number, and
            by ``key`` and ``message_id`` where these columns are there.
        """

    def open(self, name: TaskName, streaming: bool) -> Outlet:
        """Return the outlet of a task.

        Args:
            name: the name of the task that writes.
            streaming: whether it writes a micro-batch, which may be written again after a restart; else a batch write.

        Raises:
            SparkStreamsError: it cannot connect, or cannot keep its guarantee with this name (``TaskName.stable``).
        """


@dataclass(frozen=True)
class TaskName:
    """The name of a task's work, the same on every attempt.

    Args:
        query: a streaming query's id, which its checkpoint keeps over restarts, or a random id made for this write.
        batch: number of the micro-batch; 0 for a batch write.
        partition: number of the Spark partition.
        stable: whether the work has this name also after a restart of the query. It does not in a batch write, nor
            where Spark hides the query's id from its tasks.
    """

    query: str
    batch: str
    partition: int
    stable: bool = False

    @property
    def prefix(self) -> str:
        """The prefix of the ids of the task's rows; the row's number, from 0, follows it."""
        return f"{self.query}/{self.batch}/{self.partition}/"

    def identity(self, format_name: str, most: int, remembered: str) -> TaskIdentity:
        """Return the identity with which a task writes exactly once.

        Args:
            format_name: the format's name, for errors.
            most: most Spark partitions that may write; each has its own publisher's reference.
            remembered: the reason for this limit, for errors.

        Raises:
            OptionError: exactly once is impossible: too many Spark partitions, or Spark gives this task no query id.
        """
        if not self.stable:
            raise OptionError(
                format_name,
                "Spark tells this task neither its query nor its micro-batch, so it cannot write exactly once: use "
                "foreachBatch with df.write, which is at least once",
            )
        if self.partition >= most:
            raise OptionError(
                format_name,
                f"this is Spark partition {self.partition}, and exactly once works for {most}: {remembered}. Write "
                f"df.coalesce({most}), or fewer",
            )
        return TaskIdentity(f"spark/{self.query}/{self.partition}", int(self.batch))


def stream_label(name: str | None) -> str:
    """Return where rows go, for log lines: the stream of that name, or for None those of column ``stream``."""
    return "streams of column 'stream'" if name is None else f"stream '{name}'"


def check_once(key: Hashable, what: str, check: Callable[[], _T]) -> _T | None:
    """Make a check on the driver once per process and key, as Spark makes a writer for every micro-batch.

    A network error is logged, since Spark retries the tasks; the next call checks again.

    Args:
        key: identifies the check: the stream, and the user.
        what: the stream as text, for the log.
        check: raises if the check fails.

    Returns:
        The result of ``check``, now or earlier; None after a network error.

    Raises:
        SparkStreamsError: ``check`` raised it, and a retry cannot help.
    """
    if key not in _checked:
        try:
            _checked[key] = check()
        except SparkStreamsError as fault:
            if not fault.retriable:
                raise
            _log.warning("%s could not be checked before the write: %s", what, fault)
            return None
    return cast(_T, _checked[key])


_kept: Final = KeptConnections[Any]()


def kept_connections() -> KeptConnections[Any] | None:
    """Return the connections that this process's tasks leave to later ones; None where Spark reuses no worker."""
    return _kept if is_reused() else None


class KeepAlive:
    """A thread that serves an outlet's connection while the task waits for its next rows.

    A peer closes a connection that is silent for longer than its idle-time-out (AMQP) or two heartbeats (RabbitMQ), and
    Spark may compute for minutes between two batches of rows. The thread and the task take turns.

    Args:
        serve: serves the connection without waiting; the thread calls it.
    """

    def __init__(self, serve: Callable[[], object]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._fault: SparkStreamsError | None = None
        self._thread = threading.Thread(target=self._run, name="spark-streams-keep-alive", daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the thread from the connection while the task uses it.

        Raises:
            SparkStreamsError: the connection failed in the thread, which then stopped serving it.
        """
        with self._lock:
            if self._fault is not None:
                raise self._fault
            yield

    def stop(self) -> None:
        """End the thread, and return when it has ended."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(SERVED_S):
            with self._lock:
                try:
                    self._serve()
                except SparkStreamsError as fault:
                    self._fault = fault
                    return
