"""The readers that Spark runs: a batch reader, and a stream reader for each generation of Spark's interface.

The driver plans (``Planner``), and each task reads its part of the plan (``Source.read``). A ``Source`` represents a
kind of peer: ``LogSource`` here reads any log whose client is a ``LogClient``; ``FeedSource`` reads feeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_streams.errors import OptionError, SparkStreamsError
from spark_streams.options.common import SourceOptions
from spark_streams.options.names import MAX_OFFSETS_PER_TRIGGER, MIN_OFFSETS_PER_TRIGGER
from spark_streams.spark.boundary import CalledBySpark
from spark_streams.spark.log_lines import counted, show_log_lines, show_task_lines
from spark_streams.spark.pushdown.spark_filters import push, wants_filters
from spark_streams.spark.reused_worker import acknowledge_at_once, ease_reuse
from spark_streams.spark.schemas import arrow_schema, as_schema, chosen_columns, source_schema
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.driver import Connect
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.spark.source.ranges import PlannedRead
from spark_streams.spark.source.stored_offsets import ConnectStore, StoredPositions
from spark_streams.spark.source.task import read_range

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # Spark before 4.2
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True


class Planner(Protocol):
    """Plans the micro-batches of one query, on the driver; offsets are the JSON objects of Spark's checkpoint."""

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; each call returns the same offset."""

    def next_end(self, start: dict[str, Any], limit: int | None, *, may_wait: bool = True) -> dict[str, Any]:
        """Return the end of the micro-batch that starts at ``start`` (exclusive); ``start`` if there is none yet.

        Args:
            start: the end of the previous micro-batch, or the initial offset.
            limit: maximum number of events in the micro-batch; None for no limit.
            may_wait: whether the micro-batch may wait for ``minOffsetsPerTrigger``.
        """

    def reads(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        """Return the tasks of the micro-batch (start, end], picklable; each call returns tasks for the same events."""

    def newest(self) -> dict[str, Any]:
        """Return where the log ends, each partition's lag, and the other facts for the query's progress."""

    def fix_end(self) -> None:
        """Fix the end for Trigger.AvailableNow: the query reads the events that are there now, and no later ones."""

    def committed(self, end: dict[str, Any]) -> None:
        """Note that Spark has committed the micro-batch that ends at ``end``; Spark calls it one micro-batch late."""

    def close(self) -> None:
        """Disconnect; Spark may never call it."""


class Source(Protocol):
    """A kind of peer, as the readers use it; picklable."""

    def plan(self, options: Any, columns: tuple[str, ...]) -> Sequence[Any]:
        """Return the tasks of a batch query, picklable."""

    def planner(self, options: Any, columns: tuple[str, ...]) -> Planner:
        """Return the planner of a stream; it connects on first use.

        Raises:
            OptionError: an option, or a stream of this format, needs a later Spark.
        """

    def read(self, options: Any, task: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the events of a task; it runs in the task.

        Args:
            options: of the query.
            task: the task, as the plan has it.
            schema: the exact schema of the batches.
        """


@dataclass(frozen=True)
class LogSource:
    """A log that a ``LogClient`` reads.

    Args:
        connect: opens a client.
        connect_store: opens a client that stores committed positions with the peer; None to store none.
    """

    connect: Connect
    connect_store: ConnectStore | None = None

    def plan(self, options: SourceOptions, columns: tuple[str, ...]) -> list[PlannedRead]:
        """Return the ranges of a batch query; see ``plan_batch``."""
        return plan_batch(options, columns, self.connect)

    def planner(self, options: SourceOptions, columns: tuple[str, ...]) -> MicroBatches:
        """Return the planner of a stream.

        Raises:
            OptionError: an option needs a later Spark.
        """
        needing = {
            MAX_OFFSETS_PER_TRIGGER: options.max_offsets_per_trigger,
            MIN_OFFSETS_PER_TRIGGER: options.min_offsets_per_trigger,
        }
        for name, value in needing.items():
            if value is not None and not HAS_ADMISSION_CONTROL:
                raise OptionError(
                    name,
                    f"needs Spark 4.2 or later, this is {pyspark.__version__}, which does not tell a Python source "
                    "where a batch starts; leave the option out",
                )
        stored = None if self.connect_store is None else StoredPositions(options, self.connect_store)
        return MicroBatches(options, columns, self.connect, stored=stored)

    def read(self, options: SourceOptions, task: PlannedRead, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the events of a range; see ``read_range``."""
        batches = read_range(options, task, schema, self.connect)
        return counted(batches, options.label, task.read.stream, task.read.partition)


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """The part of a plan that one Spark task reads; picklable. Its value is the task for ``Source.read``."""


class _Reader(CalledBySpark):
    """The base of batch and stream readers: the options, the columns, and how a task reads.

    Args:
        options: checked.
        schema: the schema of the rows that Spark wants.
        rows: all columns that the format has.
        source: the kind of peer.

    Raises:
        SchemaError: the format does not have a column, or has it with another type.
    """

    def __init__(self, options: SourceOptions, schema: StructType, rows: pa.Schema, source: Source) -> None:
        show_log_lines(options.log_level)
        self._options = options
        self._columns = chosen_columns(schema, rows, options.format)
        self._of_messages = "properties" in rows.names
        self._arrow_schema = arrow_schema(schema)
        self._source = source

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin a task: Spark unpickles the reader in the worker, and reads the task's partition after that."""
        self.__dict__.update(state)
        show_task_lines(self._options.log_level)
        acknowledge_at_once()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a planned task; it runs in the task. See ``Source.read``."""
        if isinstance(partition, PlannedPartition):  # else Spark's own placeholder, for a query without partitions
            schema = self._arrow_schema
            for batch in self._source.read(self._options, partition.value, source_schema(schema)):
                yield as_schema(batch, schema)
        ease_reuse()


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """Reads between two positions; it has no ``pushFilters``: with one, reads fail unless a Spark setting is on."""

    def partitions(self) -> list[PlannedPartition]:
        """Plan the query, on the driver; see ``Source.plan``."""
        return [PlannedPartition(task) for task in self._source.plan(self._options, self._columns)]


class _FilteringBatchReader(BatchReader):
    """A batch reader to which Spark pushes filters; only for a process in which ``wants_filters`` returns True."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take the filters that have an exact translation, and return those that Spark must evaluate."""
        self._options, left = push(self._options, filters, message=self._of_messages)
        return left


class _AnyStreamReader(_Reader, DataSourceStreamReader):  # type: ignore[misc]
    """The base of the stream readers for all generations of Spark's interface."""

    def __init__(self, options: SourceOptions, schema: StructType, rows: pa.Schema, source: Source) -> None:
        super().__init__(options, schema, rows, source)
        self._planner = source.planner(options, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the planner: the reader in a task only reads."""
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        return self._planner.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of the micro-batch (start, end]."""
        return [PlannedPartition(task) for task in self._planner.reads(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Note a committed micro-batch; Spark calls it one micro-batch late."""
        self._planner.committed(end)

    def stop(self) -> None:
        """Disconnect; Spark may never call it."""
        self._planner.close()


if HAS_ADMISSION_CONTROL:

    class StreamReader(_AnyStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        """A stream reader for Spark 4.2 and later, which passes the start and the limit of a batch."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return option ``maxOffsetsPerTrigger``, or ``minOffsetsPerTrigger``, as Spark's limit.

            Spark replaces it by ``ReadAllAvailable`` where a trigger reads all events, so this method must not return
            ``ReadAllAvailable`` when a batch may wait.
            """
            most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
            if most is not None:
                return ReadMaxRows(most)
            return ReadAllAvailable() if least is None else ReadMinRows(least)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Return the end of the batch that starts at ``start`` (exclusive)."""
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return self._planner.next_end(start, most, may_wait=not isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return the end of the log and each partition's lag, for the progress of the query."""
            return self._planner.newest()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end: the query stops there."""
            self._planner.fix_end()

else:

    class StreamReader(_AnyStreamReader):  # type: ignore[no-redef]
        """A stream reader for Spark 4.0 and 4.1: each batch reads to the end of the log."""

        def latestOffset(self) -> dict[str, Any]:
            """Return where the log ends."""
            # This is the only planner on these versions: a source of another kind refuses them.
            return cast(MicroBatches, self._planner).next_end_without_start()


class RefusedStreamReader(StreamReader):
    """Replaces a stream reader that cannot be made, and raises the reason whenever Spark asks it anything.

    Args:
        fault: the reason.
    """

    def __init__(self, fault: SparkStreamsError) -> None:
        self._fault = fault

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the reason along; there is nothing to begin."""
        self.__dict__.update(state)

    def _refuse(self, *arguments: object) -> Any:
        raise self._fault

    def stop(self) -> None:
        """Do nothing: nothing was begun."""

    # The arguments of latestOffset show Spark that this is a reader with admission control.
    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = reportLatestOffset = _refuse
    latestOffset = partitions = read = commit = _refuse  # type: ignore[assignment]


def batch_reader(options: SourceOptions, schema: StructType, rows: pa.Schema, source: Source) -> BatchReader:
    """Return the reader of a batch query; it takes Spark's filters if the user asks for it and Spark pushes them.

    Args:
        options: checked.
        schema: the schema of the rows that Spark wants.
        rows: all columns that the format has.
        source: the kind of peer.

    Raises:
        SchemaError: the format does not have a column, or has it with another type.
    """
    kind = _FilteringBatchReader if wants_filters(options) else BatchReader
    return kind(options, schema, rows, source)
