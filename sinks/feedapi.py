"""The sink of format ``feedapi``: it publishes rows as events of a feed to the reference log that serves the feed.

Streaming queries write exactly once, batch writes at least once. docs/feedapi-sink.md is for users;
docs/adr/0015-feed-sink.md has the reasons.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_streams.client.feed.publisher import FeedPublisher, HttpFeed, Target, event_columns
from spark_streams.client.kept_connections import KeptConnections
from spark_streams.options.feedapi import FeedSinkOptions
from spark_streams.spark.schemas import check_feed_schema
from spark_streams.spark.sink.sink import GOES_OUT_AGAIN, TaskName, check_once, kept_connections, stream_label

MAX_PARTITIONS: Final = 5_000
"""Most Spark partitions of an exactly-once write: each has its own reference, and a log remembers the last numbers of
the 10,000 references that wrote last to one of its partitions."""
REMEMBERED: Final = "a log remembers the last numbers of 10000 publishers"
"""The reason for the limit, in the error."""


@dataclass(frozen=True)
class FeedSink:
    """The destination of the rows of one write; it is pickled to the tasks.

    Args:
        options: checked.
    """

    options: FeedSinkOptions
    repeats_of_batch: ClassVar = GOES_OUT_AGAIN
    repeats_of_stream: ClassVar = "is dropped by the log where it has it already"

    @property
    def label(self) -> str:
        """The format and where the rows go, for log lines."""
        return f"feedapi {stream_label(self.options.stream)}"

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns.

        Raises:
            SchemaError: a column is unknown, has a type that cannot be published, or is missing.
            OptionError: option ``keyField`` and column ``key`` are both there.
        """
        check_feed_schema(schema, key_field=self.options.key_field is not None)

    def check(self) -> FeedSink:
        """Check that the feed exists and takes events; see ``Sink``.

        Raises:
            NotFound: there is no such feed or stream, or it does not take events.
            AuthenticationFailed: the server does not accept the credentials.
            Refused: the server refuses access.
        """

        def ask() -> None:
            with closing(self._target(None)) as target:
                target.check()

        check_once(self.options, f"feed '{self.options.stream}'", ask)
        return self

    def _target(self, kept: KeptConnections[Any] | None) -> Target:
        chosen = self.options
        if chosen.endpoint is not None:
            return HttpFeed(chosen.endpoint, chosen.request_timeout_ms, kept)
        assert chosen.data_dir is not None
        # The door's own code, on a log that this process opens; http publishers never load it.
        from spark_streams.server.feed.local_target import FeedFolder

        return FeedFolder(chosen.data_dir, chosen.stream, chosen.request_timeout_ms)

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return value, key and timestamp of each event.

        Raises:
            SchemaError: a column has no JSON form.
        """
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        return event_columns(columns, self.options.key_field)

    def open(self, name: TaskName, streaming: bool) -> FeedPublisher:
        """Return the publisher of one task; requests of a few MB hold the rows of several calls.

        Raises:
            OptionError: exactly once is impossible: too many Spark partitions, or Spark gives this task no query id.
        """
        identity = name.identity("feedapi", MAX_PARTITIONS, REMEMBERED) if streaming else None
        return FeedPublisher(self._target(kept_connections()), self.options.stream, identity)
