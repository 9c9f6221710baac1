"""The readers that Spark runs: a batch reader, and a stream reader for each generation of Spark's interface.

The driver's side plans (``Planner``); a task reads what was planned for it (``Source.read``). What kind of peer is read
says a ``Source``: ``LogSource`` here is any log whose client is a ``LogClient``; feeds have one of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_streams.errors import OptionError
from spark_streams.options import MAX_OFFSETS_PER_TRIGGER, MIN_OFFSETS_PER_TRIGGER, SourceOptions
from spark_streams.spark.log_lines import counted, show_log_lines
from spark_streams.spark.pushdown.spark_filters import push, wants_filters
from spark_streams.spark.schemas import arrow_schema, chosen_columns
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
    """Plans the micro-batches of one query, on the driver. Offsets are the JSON objects of Spark's checkpoint."""

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts; each time the same."""

    def next_end(self, start: dict[str, Any], limit: int | None, *, patient: bool = True) -> dict[str, Any]:
        """Return where the micro-batch ends that starts at ``start`` (exclusive); ``start`` if there is none yet.

        Args:
            start: where the one before ended, or the initial offset.
            limit: events in it, at most; None for no limit.
            patient: whether it may wait for ``minOffsetsPerTrigger``.
        """

    def reads(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Any]:
        """Return the tasks of the micro-batch (start, end], picklable; they read the same whenever it is asked."""

    def newest(self) -> dict[str, Any]:
        """Return where the log ends, each partition's lag, and what else the query's progress shows."""

    def fix_end(self) -> None:
        """Fix the end for Trigger.AvailableNow: what is there now is read, and nothing that comes later."""

    def committed(self, end: dict[str, Any]) -> None:
        """Note that Spark has committed the micro-batch that ends at ``end``; Spark tells it one micro-batch late."""

    def close(self) -> None:
        """Disconnect; it may never be called."""


class Source(Protocol):
    """What the readers need of a kind of peer; picklable."""

    message: ClassVar[bool]
    """Whether rows have the sections of a message, as ``push`` takes it."""

    def plan(self, options: Any, columns: tuple[str, ...]) -> Sequence[Any]:
        """Return the tasks of a batch query, picklable."""

    def planner(self, options: Any, columns: tuple[str, ...]) -> Planner:
        """Return what plans a stream; it connects when first asked.

        Raises:
            OptionError, NotImplementedError: this Spark cannot do what is wanted.
        """

    def read(self, options: Any, task: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read what a task reads, in the task.

        Args:
            options: of the query.
            task: what was planned.
            schema: what the batches have to look like, to the letter.
        """


@dataclass(frozen=True)
class LogSource:
    """A log that a ``LogClient`` reads.

    Args:
        connect: opens a client.
        connect_store: opens a client that stores committed positions with the peer; None if that is not wanted.
    """

    connect: Connect
    connect_store: ConnectStore | None = None
    message: ClassVar[bool] = True

    def plan(self, options: SourceOptions, columns: tuple[str, ...]) -> list[PlannedRead]:
        """Return the ranges of a batch query; raises as ``plan_batch``."""
        return plan_batch(options, columns, self.connect)

    def planner(self, options: SourceOptions, columns: tuple[str, ...]) -> MicroBatches:
        """Return what plans a stream.

        Raises:
            OptionError: an option that needs a later Spark.
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
        """Read a range; raises as ``read_range``."""
        batches = read_range(options, task, schema, self.connect)
        return counted(batches, task.read.stream, task.read.partition)


class PlannedPartition(InputPartition):  # type: ignore[misc]
    """What one Spark task reads; picklable.

    Args:
        task: as ``Source.read`` takes it.
    """

    def __init__(self, task: object) -> None:
        super().__init__(task)


class _Reading:
    """What batch and stream readers have in common: the options, the columns, and how a task reads.

    Args:
        options: checked.
        schema: the rows that Spark wants.
        rows: all columns that the format has.
        source: the kind of peer.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
    """

    def __init__(self, options: SourceOptions, schema: StructType, rows: pa.Schema, source: Source) -> None:
        self._options = options
        self._columns = chosen_columns(schema, rows, options.format)
        self._arrow_schema = arrow_schema(schema)
        self._source = source

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what was planned for a task, in the task; raises as ``Source.read``."""
        if isinstance(partition, PlannedPartition):  # else Spark's own placeholder, for a query without partitions
            yield from self._source.read(self._options, partition.value, self._arrow_schema)


class BatchReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """Reads between two positions; it has no ``pushFilters``: with one, reads fail unless a Spark setting is on."""

    def partitions(self) -> list[PlannedPartition]:
        """Plan the query, on the driver; raises as ``Source.plan``."""
        if self._options.filter is not None:
            show_log_lines()
        return [PlannedPartition(task) for task in self._source.plan(self._options, self._columns)]


class _FilteringBatchReader(BatchReader):
    """A batch reader to which Spark pushes filters; only for a process in which ``wants_filters`` says yes."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Take the filters that can be said exactly; return those that Spark has to evaluate."""
        self._options, left = push(self._options, filters, message=self._source.message)
        return left


class _AnyStreamReader(_Reading, DataSourceStreamReader):  # type: ignore[misc]
    """What the stream readers of all generations have in common."""

    def __init__(self, options: SourceOptions, schema: StructType, rows: pa.Schema, source: Source) -> None:
        super().__init__(options, schema, rows, source)
        self._planner = source.planner(options, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the planner behind: what goes to the tasks only reads."""
        return {**self.__dict__, "_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        show_log_lines()
        return self._planner.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of the micro-batch (start, end]."""
        return [PlannedPartition(task) for task in self._planner.reads(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Note a committed micro-batch; Spark tells it one late."""
        self._planner.committed(end)

    def stop(self) -> None:
        """Disconnect; it may never be called."""
        self._planner.close()


if HAS_ADMISSION_CONTROL:

    class StreamReader(_AnyStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        """A stream on Spark 4.2 and later, which says where a batch starts and how much it may hold."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return option ``maxOffsetsPerTrigger``, or ``minOffsetsPerTrigger``.

            Spark puts ``ReadAllAvailable`` in its place where a trigger reads all there is, so it must not be that
            when a batch may wait.
            """
            most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
            if most is not None:
                return ReadMaxRows(most)
            return ReadAllAvailable() if least is None else ReadMinRows(least)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Return where the batch ends that starts at ``start`` (exclusive)."""
            show_log_lines()
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return self._planner.next_end(start, most, patient=not isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return the end of the log and each partition's lag, for the progress of the query."""
            return self._planner.newest()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end: the query stops there."""
            self._planner.fix_end()

else:

    class StreamReader(_AnyStreamReader):  # type: ignore[no-redef]
        """A stream on Spark 4.0 and 4.1: each batch goes to the end of the log."""

        def latestOffset(self) -> dict[str, Any]:
            """Return where the log ends."""
            show_log_lines()
            # The only planner that there is then: a source of another kind refuses this Spark.
            return cast(MicroBatches, self._planner).next_end_without_start()


def batch_reader(options: SourceOptions, schema: StructType, rows: pa.Schema, source: Source) -> BatchReader:
    """Return the reader of a batch query: one that takes Spark's filters where the user and Spark want that.

    Args:
        options: checked.
        schema: the rows that Spark wants.
        rows: all columns that the format has.
        source: the kind of peer.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
    """
    kind = _FilteringBatchReader if wants_filters(options) else BatchReader
    return kind(options, schema, rows, source)
