"""The readers that Spark runs: a batch reader, and a stream reader for each generation of Spark's interface.

The driver's side plans (``batch_plan``, ``micro_batch``); a task opens a client of its own, reads one range, and hands
Spark the Arrow batches as they are. No socket crosses a pickle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_streams.client.data_loss import LossPolicy, is_past_end
from spark_streams.client.log_client import LogClient, RangeRead
from spark_streams.errors import NotFound, OptionError
from spark_streams.options import MAX_OFFSETS_PER_TRIGGER, MIN_OFFSETS_PER_TRIGGER, SourceOptions
from spark_streams.position import After, Checkpoint
from spark_streams.spark.log_lines import counted, show_log_lines
from spark_streams.spark.pushdown.spark_filters import TakesFilters, wants_filters
from spark_streams.spark.schemas import arrow_schema, chosen_columns
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.checks import CREATED_AGAIN
from spark_streams.spark.source.driver import Connect, reaching
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.spark.source.ranges import PlannedRead
from spark_streams.spark.source.stored_offsets import ConnectStore, StoredPositions

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

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "BatchReader",
    "RangePartition",
    "StreamReader",
    "batch_reader",
    "read_range",
    "stream_reader",
]


class RangePartition(InputPartition):  # type: ignore[misc]
    """What one task reads; picklable.

    Args:
        planned: the range.
    """

    def __init__(self, planned: PlannedRead) -> None:
        super().__init__(planned)


class _Reading:
    """What batch and stream readers have in common: the options, the columns, and how a task reads.

    Args:
        options: checked.
        schema: the rows that Spark wants.
        rows: all columns that the format has.
        connect: opens a client.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
    """

    def __init__(self, options: SourceOptions, schema: StructType, rows: pa.Schema, connect: Connect) -> None:
        self._options = options
        self._columns = chosen_columns(schema, rows, options.format)
        self._arrow_schema = arrow_schema(schema)
        self._connect = connect

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, in a task.

        Raises:
            PositionLost: events of it are gone, or the log was deleted and created again meanwhile.
        """
        if not isinstance(partition, RangePartition):
            return  # Spark's own placeholder, for a query that has no partition
        planned: PlannedRead = partition.value
        batches = read_range(self._options, planned, self._arrow_schema, self._connect)
        yield from counted(batches, planned.read.stream, planned.read.partition)


class BatchReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """Reads between two positions; it has no ``pushFilters``: with one, reads fail unless a Spark setting is on."""

    def partitions(self) -> list[RangePartition]:
        """Plan the query, on the driver.

        Raises:
            OptionError: the positions do not fit the stream.
            PositionLost: a starting position is no longer there, and losses are to fail the query.
        """
        if self._options.filter is not None:
            show_log_lines()
        return [RangePartition(planned) for planned in plan_batch(self._options, self._columns, self._connect)]


class _FilteringBatchReader(TakesFilters, BatchReader):
    """A batch reader to which Spark pushes filters."""


def batch_reader(options: SourceOptions, schema: StructType, rows: pa.Schema, connect: Connect) -> BatchReader:
    """Return the reader of a batch query: one that takes Spark's filters where the user and Spark want that.

    Args:
        options: checked.
        schema: the rows that Spark wants.
        rows: all columns that the format has.
        connect: opens a client.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
    """
    kind = _FilteringBatchReader if wants_filters(options) else BatchReader
    return kind(options, schema, rows, connect)


class _AnyStreamReader(_Reading, DataSourceStreamReader):  # type: ignore[misc]
    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        rows: pa.Schema,
        connect: Connect,
        connect_store: ConnectStore | None = None,
    ) -> None:
        super().__init__(options, schema, rows, connect)
        self._batches = MicroBatches(options, self._columns, connect)
        self._stored = None if connect_store is None else StoredPositions(options, connect_store)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        show_log_lines()
        return self._batches.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of the batch (start, end]."""
        return [RangePartition(planned) for planned in self._batches.reads(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Store where a committed batch ends with the peer, if the query wants that; Spark tells it a batch late."""
        if self._stored is not None:
            self._stored.store(Checkpoint.from_json(end, self._options.format), self._batches.told)

    def stop(self) -> None:
        """Disconnect; it may never be called."""
        self._batches.close()
        if self._stored is not None:
            self._stored.close()


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
            return self._batches.next_end(start, most, patient=not isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return the end of the log and each partition's lag, for the progress of the query."""
            return self._batches.newest()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end: the query stops there."""
            self._batches.fix_end()

else:

    class StreamReader(_AnyStreamReader):  # type: ignore[no-redef]
        """A stream on Spark 4.0 and 4.1: each batch goes to the end of the log."""

        def latestOffset(self) -> dict[str, Any]:
            """Return where the log ends."""
            show_log_lines()
            return self._batches.next_end_without_start()


def stream_reader(
    options: SourceOptions,
    schema: StructType,
    rows: pa.Schema,
    connect: Connect,
    connect_store: ConnectStore | None = None,
) -> StreamReader:
    """Return the reader that this Spark can use.

    Args:
        options: checked.
        schema: the rows that Spark wants.
        rows: all columns that the format has.
        connect: opens a client.
        connect_store: opens a client that stores committed positions with the peer; None if that is not wanted.

    Raises:
        OptionError: an option that needs a later Spark.
        SchemaError: a column that the format does not have, or of another type.
    """
    needing = {
        MAX_OFFSETS_PER_TRIGGER: options.max_offsets_per_trigger,
        MIN_OFFSETS_PER_TRIGGER: options.min_offsets_per_trigger,
    }
    for name, value in needing.items():
        if value is not None and not HAS_ADMISSION_CONTROL:
            raise OptionError(
                name,
                f"needs Spark 4.2 or later, this is {pyspark.__version__}, which does not tell a Python source where a "
                "batch starts; leave the option out",
            )
    return StreamReader(options, schema, rows, connect, connect_store)


def read_range(
    options: SourceOptions, planned: PlannedRead, schema: pa.Schema, connect: Connect
) -> Iterator[pa.RecordBatch]:
    """Read one range over a connection of its own.

    Args:
        options: of the query.
        planned: the range.
        schema: what the batches have to look like, to the letter.
        connect: opens a client, which is closed at the end.

    Raises:
        PositionLost: events of it are gone, or the log was deleted and created again before the last one was read.
    """
    read, until = planned.read, planned.until
    policy = LossPolicy(read.stream, read.fail_on_data_loss)
    with connect(reaching(options, planned.told)) as client:
        fetched, same = read if until is None else _with_offset(read), False
        for batch in client.fetch(fetched):
            if until is not None:
                batch = batch.filter(pc.less(batch.column("offset"), until)).select(list(read.columns))
            if not batch.num_rows:
                continue
            if not read.fail_on_data_loss:
                # The query goes on at the beginning of another log: what that has at these offsets would come twice.
                if not _same_log(client, planned, policy):
                    return
                same = True
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if not same:
            _same_log(client, planned, policy)


def _same_log(client: LogClient, planned: PlannedRead, policy: LossPolicy) -> bool:
    """Ask whether the log is the one that the range is of: if it is after a row was read, it was so before.

    Raises:
        PositionLost, NotFound: it is another one, or not there any more, and losses are to fail the query.
    """
    partition, asked = planned.read.partition, f"to offset '{planned.read.end}'"
    try:
        again = _created_again(client, planned)
    except NotFound as fault:
        # What was read was there, and whether it was of the same log cannot be asked any more.
        policy.report(partition, asked, str(fault), fault)
        return True
    if again:
        policy.report(partition, asked, CREATED_AGAIN)
    return not again


def _created_again(client: LogClient, planned: PlannedRead) -> bool:
    """Ask whether the log is another one."""
    read = planned.read
    if planned.incarnation is not None and client.describe(read.stream).incarnation != planned.incarnation:
        return True
    if planned.witness is None:
        return False
    offset, witness = planned.witness
    now = client.witnesses(read.stream, {read.partition: offset}).get(read.partition)
    if now is not None or read.fail_on_data_loss:
        return now is not None and now != witness
    # Nothing is there: it was removed since, or the log is another one that does not reach so far.
    bounds = client.describe(read.stream, certain=(read.partition,)).partitions.get(read.partition)
    return bounds is not None and is_past_end(After(offset), bounds)


def _with_offset(read: RangeRead) -> RangeRead:
    return read if "offset" in read.columns else replace(read, columns=(*read.columns, "offset"))
