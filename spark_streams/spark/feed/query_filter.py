"""The filter and the starting expressions of a feed's query: the parts that the feed, the tasks and fetchers check."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams import filters
from spark_streams.client.feed import Dialect, Discovery, FeedPartition
from spark_streams.client.feed.client import FeedClient
from spark_streams.client.feed.pushdown import FeedFilter, NotImplied, left_of, push, shown
from spark_streams.client.feed.range_reader import FeedRange
from spark_streams.client.feed.row_decoder import FirstMatch
from spark_streams.client.log_client import Pushdown
from spark_streams.errors import CheckpointError, OptionError
from spark_streams.filters.row_columns import columns_needed
from spark_streams.filters.tree import Expression
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.position import After, Matching
from spark_streams.spark.feed.tasks import FeedTask, rows_of
from spark_streams.spark.pushdown.spark_filters import log_filter


class QueryFilter:
    """The part of a query's filter that the feed checks: a new query chooses it, and then keeps it (C-13).

    Args:
        options: of the query.
    """

    def __init__(self, options: FeedSourceOptions) -> None:
        self._options = options
        self._pushed: Mapping[str, FeedFilter] | None = None
        self.pushdown: Pushdown | None = None
        """The pushed and the residual part of the filter; None without a filter, and before the choice."""
        self.residual: Expression | None = options.filter
        """The part that the tasks check on the events; None for nothing."""

    @property
    def pushed(self) -> Mapping[str, FeedFilter]:
        """The filters that the feed checks, by name; empty before the choice."""
        return self._pushed or {}

    @property
    def arguments(self) -> dict[str, str]:
        """Names and values of the filters in requests to the feed."""
        return {name: each.value for name, each in self.pushed.items()}

    def choose(self, client: FeedClient, discovery: Discovery) -> None:
        """Choose the pushed filters of a new query among those that the feed offers; ``client`` sends them from now on.

        Raises:
            OptionError: the user names a filter that the feed does not offer.
        """
        if self._pushed is not None:
            return
        options, has_filters = self._options, client.dialect is Dialect.V2A
        if options.filter_fields and not has_filters:
            assert client.dialect is not None
            raise OptionError("filterFields", f"the feed speaks dialect {client.dialect.value}, which has no filters")
        starts = [options.starting.everywhere, *options.starting.each.values()]
        ends = [] if options.ending is None else [*options.ending.each.values()]
        # The user's cursor comes from a read without our filters, and is not valid with them (C-13).
        cursors = any(isinstance(position, After) for position in (*starts, *ends))
        chosen = push(
            None if cursors or not has_filters else options.filter,
            discovery,
            declared=options.filter_fields,
            key_field=options.key_field,
            taken=dict(options.filters),
            starts=[filters.read_filter(start.text) for start in starts if isinstance(start, Matching)],
        )
        self._use(client, chosen)

    def keep(self, client: FeedClient, pushed: Mapping[str, FeedFilter]) -> None:
        """Use the pushed filters of the checkpoint, whatever the feed offers now.

        Raises:
            CheckpointError: the options' filter matches events that the feed does not send with these filters.
        """
        if self._pushed is None or dict(self._pushed) != dict(pushed):
            self._use(client, pushed)

    def last_cursor(self, partition: FeedPartition) -> str | None:
        """Return the last cursor from discovery; None with filters, as it belongs to a read without any (C-13)."""
        return None if self._options.filters or self._pushed else partition.last_cursor

    def ends(self, client: FeedClient, partition: FeedPartition) -> tuple[str, ...]:
        """Return the cursors that may mark a partition's current end, for a read with the query's filters."""
        cursors = (client.last_cursor(partition.id), self.last_cursor(partition))
        return tuple(sorted({cursor for cursor in cursors if cursor is not None}))

    def task(self, dialect: Dialect, fetch: FeedRange, start: str | None = None) -> FeedTask:
        """Return a task that fetches the events that match the filter.

        Args:
            dialect: the dialect of the feed.
            fetch: the range to fetch.
            start: the expression whose first match is the first row; None for all rows.
        """
        begin = None if start is None else filters.read_filter(start)
        return FeedTask(
            fetch.partition,
            fetch=fetch,
            dialect=dialect,
            pushed=tuple(self.arguments.items()),
            start=begin,
            residual=self.residual,
        )

    def _use(self, client: FeedClient, pushed: Mapping[str, FeedFilter]) -> None:
        options = self._options
        try:
            self.residual = left_of(options.filter, pushed, options.key_field)
        except NotImplied:
            raise CheckpointError(
                f"the checkpoint's cursors belong to {shown(pushed)}, which the first run's option 'filter' asked for, "
                "and the filter does not any more: events that it lets through would not come, as cursors are valid "
                "for the identical filters only (FeedAPI, 'filter-*'). Go back to a filter that asks for that, too, or "
                "start again with another checkpointLocation"
            ) from None
        self._pushed = dict(pushed)
        client.push(self.arguments)
        if options.filter is not None:
            self.pushdown = Pushdown(shown(pushed) if pushed else None, self.residual)
            log_filter(options, self.pushdown)


def first_match(options: FeedSourceOptions, partition: int, expression: str) -> FirstMatch:
    """Return an object that drops the lines of a partition before the first event for which an expression is true."""
    begin = filters.read_filter(expression)
    return FirstMatch(begin, rows_of(options, partition, columns_needed(begin, feed=True)))
