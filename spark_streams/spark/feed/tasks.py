"""Tasks of a feed's query: they read pages of the spool, or the feed itself; picklable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_streams.client.feed import Dialect
from spark_streams.client.feed.row_decoder import FeedRows, from_first_match
from spark_streams.errors import SpoolLost
from spark_streams.filters.row_columns import rows_that_match, wanted_columns
from spark_streams.filters.tree import Expression
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.spark.feed.page_file import PageRange, read_events
from spark_streams.spark.feed.spool import open_file_system
from spark_streams.spark.pushdown.unseen_names import looked_at

# A task that reads pages makes no request, and what requests need takes a tenth of a second to import.
if TYPE_CHECKING:
    from spark_streams.client.feed.client import FeedAddress
    from spark_streams.client.feed.range_reader import FeedRange


@dataclass(frozen=True)
class FeedTask:
    """The part of one partition that one task reads.

    Args:
        partition: the partition's id.
        pages: events of the spool, in order; empty when the task reads the feed itself.
        spool: location and id of the spool.
        fetch: the range to read from the feed itself, or None.
        dialect: the feed's dialect, for ``fetch``.
        pushed: for ``fetch``, names and values of the filters that the feed checks, besides the user's own.
        start: condition of the first event that a fetch returns; None for all events.
        residual: the part of the query's filter that the task checks on the rows; None for nothing.
        looks: whether the task warns if none of its events has what the residual names: one task of a query does.
    """

    partition: int
    pages: tuple[PageRange, ...] = ()
    spool: tuple[str, str] = ("", "")
    fetch: FeedRange | None = None
    dialect: Dialect | None = None
    pushed: tuple[tuple[str, str], ...] = ()
    start: Expression | None = None
    residual: Expression | None = None
    looks: bool = False


def address_of(
    options: FeedSourceOptions, dialect: Dialect | None = None, pushed: Mapping[str, str] | None = None
) -> FeedAddress:
    """Return the address of a query's feed, with the filters that the feed checks."""
    from spark_streams.client.feed.client import FeedAddress

    if dialect is None and options.dialect != "auto":
        dialect = Dialect(options.dialect)
    return FeedAddress(
        options.endpoint,
        options.stream,
        dialect,
        options.partitions,
        dict(options.filters),
        options.page_size,
        options.request_timeout_ms,
        options.max_line_bytes,
        pushed,
    )


def rows_of(options: FeedSourceOptions, partition: int, columns: tuple[str, ...]) -> FeedRows:
    """Return what makes these columns of a partition's events, as the query's options say."""
    return FeedRows(
        options.stream, partition, columns, options.key_field, options.timestamp_field, options.timestamp_overflow
    )


def read_task(options: FeedSourceOptions, task: FeedTask, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; every attempt yields the same spooled rows.

    Raises:
        SpoolLost: the task cannot read the pages at their location.
        PositionLost: the feed lacks the events after a cursor, or the cursor at which a range must end; and losses fail
            the query.
        RemoteProtocolError: a response has no cursor, or cannot be read.
        TransportError: the network failed, also on retries.
        PeerError: the feed answered with an error, also on retries where these can help.
    """
    needed = wanted_columns(wanted_columns(columns, task.residual, feed=True), task.start, feed=True)
    rows = rows_of(options, task.partition, needed)
    events = _events(options, task, rows)
    for batch in looked_at(events, options.stream, task.residual) if task.looks else events:
        found = rows_that_match(batch, task.residual, columns, feed=True)
        if found.num_rows:
            yield found


def _events(options: FeedSourceOptions, task: FeedTask, rows: FeedRows) -> Iterator[pa.RecordBatch]:
    """Yield the events of a task from its start on."""
    if task.fetch is not None:
        from spark_streams.client.feed.client import FeedClient
        from spark_streams.client.feed.range_reader import scan

        with FeedClient(address_of(options, task.dialect, dict(task.pushed))) as client:
            events = scan(client, task.fetch, rows, fail_on_data_loss=options.fail_on_data_loss)
            yield from events if task.start is None else from_first_match(events, task.start)
        return
    location, identity = task.spool
    file_system, base = open_file_system(location)
    for page in task.pages:
        path = f"{base.rstrip('/')}/{identity}/{page.file}"
        try:
            with file_system.open_input_file(path) as file:
                for block in read_events(file, page):
                    yield rows.batch(*block)
        except SpoolLost as fault:
            raise SpoolLost(f"{path}: {fault}") from None
        except OSError as fault:
            raise SpoolLost(
                f"{path} cannot be read here: {fault}. Tasks run where they reach option 'spoolLocation' only; without "
                "the option pages lie in a folder of the driver's machine"
            ) from None
