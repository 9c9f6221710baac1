"""The readers of feeds that Spark runs: in batch queries tasks fetch, in streams they read what the driver spooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_streams.client.feed.client import FeedClient
from spark_streams.client.feed.range_reader import FeedRange
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.position import LATEST, After, Matching
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.feed.micro_batch import FeedBatches
from spark_streams.spark.feed.offset import BEGINNING
from spark_streams.spark.feed.query_filter import QueryFilter
from spark_streams.spark.feed.tasks import FeedTask, address_of, read_task
from spark_streams.spark.log_lines import counted, show_log_lines
from spark_streams.spark.pushdown.spark_filters import TakesFilters, wants_filters
from spark_streams.spark.schemas import arrow_schema, chosen_columns
from spark_streams.spark.source.driver import position_in, require_all
from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL

if HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

__all__ = [
    "FeedBatchReader",
    "FeedPartition",
    "FeedStreamReader",
    "feed_batch_reader",
    "feed_stream_reader",
    "plan_feed_batch",
]


class FeedPartition(InputPartition):  # type: ignore[misc]
    """What one Spark task reads; picklable.

    Args:
        task: what.
    """

    def __init__(self, task: FeedTask) -> None:
        super().__init__(task)


class _Reading:
    """What batch and stream readers have in common.

    Args:
        options: checked.
        schema: the rows that Spark wants.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
    """

    def __init__(self, options: FeedSourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = chosen_columns(schema, COMMON_SCHEMA, options.format)
        self._arrow_schema = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what a task reads.

        Raises:
            SpoolLost: the pages are not where this task looks for them.
            SparkStreamsError: what the feed does, in a batch query.
        """
        if not isinstance(partition, FeedPartition):
            return  # Spark's own placeholder, for a query that has no partition
        task: FeedTask = partition.value
        batches = read_task(self._options, task, self._columns)
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=self._arrow_schema) for batch in batches)
        yield from counted(rows, self._options.stream, str(task.partition))


class FeedBatchReader(_Reading, DataSourceReader):  # type: ignore[misc]
    """Reads what a feed has, each partition in a task of its own."""

    def partitions(self) -> list[FeedPartition]:
        """Plan the query, on the driver.

        Raises:
            OptionError: the positions do not fit the feed's partitions.
        """
        if self._options.filter is not None:
            show_log_lines()
        return [FeedPartition(task) for task in plan_feed_batch(self._options)]


class _FilteringFeedBatchReader(TakesFilters, FeedBatchReader):
    """A batch reader to which Spark pushes filters."""

    _message = False


def feed_batch_reader(options: FeedSourceOptions, schema: StructType) -> FeedBatchReader:
    """Return the reader of a batch query: one that takes Spark's filters where the user and Spark want that.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
    """
    kind = _FilteringFeedBatchReader if wants_filters(options) else FeedBatchReader
    return kind(options, schema)


def plan_feed_batch(options: FeedSourceOptions) -> list[FeedTask]:
    """Return what the tasks of a batch query read: each partition up to what is its end now, or to the cursor given.

    Raises:
        OptionError: the positions do not fit the feed's partitions.
        SparkStreamsError: the feed cannot be asked.
    """
    tasks: list[FeedTask] = []
    filtering = QueryFilter(options)
    with FeedClient(address_of(options)) as client:
        discovery = client.discover()
        names = [str(p.id) for p in discovery.partitions]
        ending = options.ending
        require_all(options.starting, names)
        if ending is not None:
            require_all(ending, names)
        filtering.choose(client, discovery)
        assert client.dialect is not None
        for partition in discovery.partitions:
            start = position_in(options.starting, str(partition.id))
            cursor = start.offset if isinstance(start, After) else BEGINNING
            stop = LATEST if ending is None else position_in(ending, str(partition.id))
            if isinstance(stop, After):
                stops: tuple[str, ...] = (stop.offset,)
            else:
                told: set[str | None] = {client.last_cursor(partition.id)}
                if not options.filters and not filtering.pushed:  # discovery's cursors are those of no filters (C-13)
                    told.add(partition.last_cursor)
                stops = tuple(sorted(c for c in told if c is not None))
            wanted = FeedRange(partition.id, cursor, stops, required=isinstance(stop, After))
            expression = start.text if isinstance(start, Matching) else None
            tasks.append(filtering.task(partition.id, client.dialect, wanted, expression))
    return tasks


class _AnyFeedStreamReader(_Reading, DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, options: FeedSourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._batches = FeedBatches(options)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the planning behind: what goes to the tasks only reads."""
        return {**self.__dict__, "_batches": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        show_log_lines()
        return self._batches.initial()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of the micro-batch (start, end]."""
        return [FeedPartition(task) for task in self._batches.reads(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        """Remove what was spooled for committed micro-batches; Spark tells it one late."""
        self._batches.committed(end)

    def stop(self) -> None:
        """Stop fetching; it may never be called."""
        self._batches.close()


if HAS_ADMISSION_CONTROL:

    class FeedStreamReader(_AnyFeedStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
        """A stream on Spark 4.2 and later, which says where a micro-batch starts and how much it may hold."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return option ``maxOffsetsPerTrigger``, or ``minOffsetsPerTrigger``."""
            most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
            if most is not None:
                return ReadMaxRows(most)
            return ReadAllAvailable() if least is None else ReadMinRows(least)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Return where the micro-batch ends that starts at ``start`` (exclusive)."""
            show_log_lines()
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return self._batches.next_end(start, most, patient=not isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> dict[str, Any] | None:
            """Return how far the feed was fetched and each partition's lag, for the progress of the query."""
            return self._batches.newest()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end: the query stops there."""
            self._batches.fix_end()


def feed_stream_reader(options: FeedSourceOptions, schema: StructType) -> DataSourceStreamReader:
    """Return the reader of a stream.

    Raises:
        SchemaError: a column that the format does not have, or of another type.
        NotImplementedError: a Spark that does not say where a micro-batch starts: a feed has no end to name instead.
    """
    if not HAS_ADMISSION_CONTROL:
        raise NotImplementedError(
            f"feedapi: streams need Spark 4.2 or later, this is {pyspark.__version__}, which does not tell a Python "
            "source where a micro-batch starts; read the feed in batch queries (spark.read), or use a later Spark"
        )
    return FeedStreamReader(options, schema)
