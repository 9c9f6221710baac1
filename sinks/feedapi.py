"""The sink of format ``feedapi``: rows become events of a feed, published to the reference log that serves it.

Streaming queries write exactly once, batch writes at least once. docs/feedapi-sink.md is for users;
docs/adr/0015-feed-sink.md has the argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_streams.client.feed.published_events import event_columns
from spark_streams.client.feed.publisher import FeedIdentity, FeedPublisher, HttpFeed, Target
from spark_streams.client.feed.row_parts import PART_SCHEMA
from spark_streams.errors import OptionError, SparkStreamsError
from spark_streams.options.feedapi import FeedSinkOptions, parse_feed_sink
from spark_streams.spark.sink.schema import check_feed_schema
from spark_streams.spark.sink.writer import BatchWriter, StreamWriter, TaskName

__all__ = ["FeedOutlet", "FeedSink", "batch_writer", "stream_writer"]

_log = logging.getLogger(__name__)

MAX_PARTITIONS: Final = 5_000
"""Spark partitions of an exactly-once write: each has a reference of its own, and a log remembers the last numbers of
the 10,000 references that wrote last to a partition of it."""

_checked: Final[set[FeedSinkOptions]] = set()


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> BatchWriter:
    """Return what ``df.write.format("feedapi")`` runs.

    Args:
        options: as the user gave them.
        schema: the DataFrame's, a ``StructType``.
        overwrite: whether the save mode is ``overwrite``.

    Raises:
        OptionError: an option is unknown, missing or has a value that cannot be used, or the mode is ``overwrite``.
        SchemaError: the sink does not know a column or its type.
        NotFound: there is no such feed, or it cannot be published to.
        AuthenticationFailed: the server does not take the credentials.
    """
    if overwrite:
        raise OptionError("mode", "'overwrite' cannot be done, events in a log are never replaced: use mode 'append'")
    return BatchWriter(_sink(options, schema))


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> StreamWriter:
    """Return what ``df.writeStream.format("feedapi")`` runs.

    Args:
        options: as the user gave them.
        schema: the DataFrame's, a ``StructType``.
        overwrite: whether the output mode is ``complete``.

    Raises:
        OptionError: as ``batch_writer``; the output mode that cannot be done is ``complete``.
        SchemaError, NotFound, AuthenticationFailed: as ``batch_writer``.
    """
    if overwrite:
        raise OptionError(
            "outputMode",
            "'complete' cannot be done, events in a log are never replaced: use 'append', or 'update' to add an event "
            "for each row that changed",
        )
    return StreamWriter(_sink(options, schema))


def _sink(options: Mapping[str, str], schema: Any) -> FeedSink:
    sink = FeedSink(parse_feed_sink(options))
    check_feed_schema(schema, key_field=sink.options.key_field is not None)
    sink.check()
    return sink


@dataclass(frozen=True)
class FeedSink:
    """Where the rows of one write go; it is pickled to the tasks.

    Args:
        options: checked.
    """

    options: FeedSinkOptions

    def check(self) -> None:
        """Ask for the feed, so that a wrong name fails on the driver, before any task starts.

        It is done once a process and feed: Spark makes a writer for every micro-batch. Trouble of the network is left
        to the tasks, which Spark tries again.

        Raises:
            NotFound: there is no such feed or stream, or it cannot be published to.
            AuthenticationFailed: the server does not take the credentials.
            Refused: the server does not let us in.
        """
        if self.options in _checked:
            return
        target = self._target()
        try:
            target.check()
        except SparkStreamsError as fault:
            if not fault.retriable:
                raise
            _log.warning("feed '%s' could not be checked before the write: %s", self.options.stream, fault)
            return
        finally:
            target.close()
        _checked.add(self.options)

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
        identity = _identity(name) if streaming else None
        return FeedOutlet(FeedPublisher(self._target(), self.options.stream, identity))

    def repetition(self, streaming: bool) -> str:
        """Return what becomes of rows that are written again."""
        if streaming:
            return "What is written again is dropped by the log where it has it already"
        return "What is written again goes out again: a batch write is at least once"


def _identity(name: TaskName) -> FeedIdentity:
    if not name.stable:
        raise OptionError(
            "feedapi",
            "Spark tells this task neither its query nor its micro-batch, so it cannot write exactly once: use "
            "foreachBatch with df.write, which is at least once",
        )
    if name.partition >= MAX_PARTITIONS:
        raise OptionError(
            "feedapi",
            f"this is Spark partition {name.partition}, and exactly once works for {MAX_PARTITIONS}: a log remembers "
            f"the last numbers of 10000 publishers. Write df.coalesce({MAX_PARTITIONS}), or fewer",
        )
    return FeedIdentity(f"spark/{name.query}/{name.partition}", int(name.batch))


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
