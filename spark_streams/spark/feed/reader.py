"""The source of feeds: the tasks of a batch query fetch, those of a stream read the pages that the driver spooled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark

from spark_streams.errors import OptionError
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.position import LATEST, After, Matching
from spark_streams.spark.feed.tasks import FeedTask, address_of, read_task
from spark_streams.spark.log_lines import counted
from spark_streams.spark.source.driver import position_in, require_all
from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL

# Tasks import this module, and those of a stream plan nothing and make no request.
if TYPE_CHECKING:
    from spark_streams.spark.feed.micro_batch import FeedBatches


class FeedSource:
    """A feed as a ``Source``; in a batch query each partition has its own task."""

    def plan(self, options: FeedSourceOptions, columns: tuple[str, ...]) -> list[FeedTask]:
        """Return the tasks of a batch query: each reads one partition to its present end, or to the user's cursor.

        Raises:
            OptionError: the positions do not fit the feed's partitions.
            SparkStreamsError: a request to the feed failed.
        """
        from spark_streams.client.feed.client import FeedClient
        from spark_streams.client.feed.range_reader import BEGINNING, FeedRange
        from spark_streams.spark.feed.query_filter import QueryFilter

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
                stops = (stop.offset,) if isinstance(stop, After) else filtering.ends(client, partition)
                wanted = FeedRange(partition.id, cursor, stops, required=isinstance(stop, After))
                expression = start.text if isinstance(start, Matching) else None
                tasks.append(filtering.task(client.dialect, wanted, expression))
        return [replace(task, looks=not number) for number, task in enumerate(tasks)]

    def planner(self, options: FeedSourceOptions, columns: tuple[str, ...]) -> FeedBatches:
        """Return the planner of a stream.

        Raises:
            OptionError: this Spark does not pass the start of a micro-batch, and a feed does not tell its end.
        """
        if not HAS_ADMISSION_CONTROL:
            raise OptionError(
                "format",
                f"'feedapi': streams need Spark 4.2 or later, this is {pyspark.__version__}, which does not tell a "
                "Python source where a micro-batch starts; read the feed in batch queries (spark.read), or use a later "
                "Spark",
            )
        from spark_streams.spark.feed.micro_batch import FeedBatches

        return FeedBatches(options)

    def read(self, options: FeedSourceOptions, task: FeedTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the events of a task.

        Raises:
            SpoolLost: the task cannot read the pages at their location.
            SparkStreamsError: reading the feed itself failed.
        """
        batches = read_task(options, task, tuple(schema.names))
        rows = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
        return counted(rows, options.label, options.stream, str(task.partition))
