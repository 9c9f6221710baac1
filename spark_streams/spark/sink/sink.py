"""What a format's sink is to the writers: a ``Sink`` on the driver, which opens an ``Outlet`` in each task.

Spark's part of every guarantee is **at least once**: a task that fails is tried again, and a micro-batch that was not
committed is written again after a restart, so rows that were delivered before the fault are handed over a second time.
What that means is the format's, said by its ``Sink``: what is written again has the same ``TaskName``, and rows of a
Spark partition that come in the same order again have the same numbers, from which a sink derives ids. By them a reader
(docs/adr/0007-sink-delivery.md: message-ids) or the log itself (publishing ids) drops what it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_streams.client import TaskIdentity
from spark_streams.errors import OptionError, SparkStreamsError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_checked: Final[dict[Hashable, object]] = {}
"""What ``check_once`` has checked in this process, to what the check returned."""


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

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns, on the driver.

        Raises:
            SchemaError: the sink does not know a column or its type, or one is missing.
            OptionError: a column and an option contradict each other.
        """

    def check(self) -> Sink:
        """Ask for the stream, so that a wrong name fails on the driver, before any task starts (``check_once``).

        Returns:
            The sink for the tasks, which may know more of the peer than this one.

        Raises:
            NotFound: there is no such stream.
            AuthenticationFailed: the peer does not take the credentials.
            Refused: the peer does not let us write there.
        """

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

    def identity(self, format_name: str, most: int, remembered: str) -> TaskIdentity:
        """Return what makes writing exactly once.

        Args:
            format_name: for errors.
            most: Spark partitions that may write; each has a publisher's reference of its own.
            remembered: why there are no more.

        Raises:
            OptionError: exactly once cannot be kept: too many Spark partitions, or Spark tells this task no query id.
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


def check_once(key: Hashable, what: str, check: Callable[[], _T]) -> _T | None:
    """Make a check on the driver, once a process and key: Spark makes a writer for every micro-batch.

    Trouble of the network is logged and left to the tasks, which Spark tries again; it is checked the next time.

    Args:
        key: what is checked, and as whom.
        what: the same in words.
        check: raises if it fails.

    Returns:
        What ``check`` returned, now or earlier; None after trouble of the network.

    Raises:
        SparkStreamsError: of ``check``, if another try cannot help.
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
