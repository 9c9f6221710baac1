"""The sink of format ``feedapi``: rows become events of a feed, published to the reference log that serves it.

Streaming queries write exactly once, batch writes at least once. docs/feedapi-sink.md is for users;
docs/adr/0015-feed-sink.md has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_streams.client.digested_rows import PART_SCHEMA
from spark_streams.client.feed.publisher import FeedPublisher, HttpFeed, Target, event_columns
from spark_streams.options.feedapi import FeedSinkOptions
from spark_streams.spark.sink.schema import check_feed_schema
from spark_streams.spark.sink.sink import TaskName, check_once

MAX_PARTITIONS: Final = 5_000
"""Spark partitions of an exactly-once write: each has a reference of its own, and a log remembers the last numbers of
the 10,000 references that wrote last to a partition of it."""
REMEMBERED: Final = "a log remembers the last numbers of 10000 publishers"
"""Why there are no more, in the error."""


@dataclass(frozen=True)
class FeedSink:
    """Where the rows of one write go; it is pickled to the tasks.

    Args:
        options: checked.
    """

    options: FeedSinkOptions

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns; raises as ``check_feed_schema``."""
        check_feed_schema(schema, key_field=self.options.key_field is not None)

    def check(self) -> FeedSink:
        """Ask for the feed; see ``Sink``.

        Raises:
            NotFound: there is no such feed or stream, or it cannot be published to.
            AuthenticationFailed: the server does not take the credentials.
            Refused: the server does not let us in.
        """

        def ask() -> None:
            with closing(self._target()) as target:
                target.check()

        check_once(self.options, f"feed '{self.options.stream}'", ask)
        return self

    def _target(self) -> Target:
        chosen = self.options
        if chosen.endpoint is not None:
            return HttpFeed(chosen.endpoint, chosen.request_timeout_ms)
        assert chosen.data_dir is not None
        # The door's own code, on a log that this process opens; http publishers never load it.
        from spark_streams.server.feed.local_target import FeedFolder

        return FeedFolder(chosen.data_dir, chosen.stream, chosen.request_timeout_ms)

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return value, key and timestamp of each event.

        Raises:
            SchemaError: a row has no value.
        """
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        return event_columns(columns, self.options.key_field, first_row, name.partition)

    def open(self, name: TaskName, streaming: bool) -> FeedOutlet:
        """Make ready to publish, for one task.

        Raises:
            OptionError: exactly once cannot be kept: too many Spark partitions, or Spark tells this task no query id.
        """
        identity = name.identity("feedapi", MAX_PARTITIONS, REMEMBERED) if streaming else None
        return FeedOutlet(FeedPublisher(self._target(), self.options.stream, identity))

    def repetition(self, streaming: bool) -> str:
        """Return what becomes of rows that are written again."""
        if streaming:
            return "What is written again is dropped by the log where it has it already"
        return "What is written again goes out again: a batch write is at least once"


class FeedOutlet:
    """One task's way to the feed.

    Args:
        publisher: the task's.
    """

    def __init__(self, publisher: FeedPublisher) -> None:
        self._publisher = publisher

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Publish rows in their order, with those before them in requests of a few MB.

        Raises:
            DeliveryFailed: rows, of these or of earlier ones, were not confirmed; or they are not those of an earlier
                attempt.
        """
        self._publisher.send(pa.RecordBatch.from_arrays(list(columns.values()), schema=PART_SCHEMA), label)

    def flush(self) -> None:
        """Return once the log has every row.

        Raises:
            DeliveryFailed: as ``send``.
        """
        self._publisher.flush()

    def close(self) -> None:
        """Disconnect."""
        self._publisher.close()
