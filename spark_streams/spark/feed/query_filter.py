"""A query's filter and starting expressions: what of them the feed checks, and what its tasks and followers do."""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.client.feed import Dialect, Discovery
from spark_streams.client.feed.client import FeedClient
from spark_streams.client.feed.pushdown import FeedFilter, NotImplied, left_of, push, shown
from spark_streams.client.feed.range_reader import FeedRange
from spark_streams.client.feed.row_decoder import FirstMatch
from spark_streams.client.log_client import Pushdown
from spark_streams.errors import CheckpointError, OptionError
from spark_streams.filters import Expression, read_filter
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.position import After, Matching
from spark_streams.spark.feed.tasks import FeedTask
from spark_streams.spark.pushdown.spark_filters import log_filter


class QueryFilter:
    """What of a query's filter the feed checks: chosen when the query is new, and then kept (C-13).

    Args:
        options: of the query.
    """

    def __init__(self, options: FeedSourceOptions) -> None:
        self._options = options
        self._pushed: Mapping[str, FeedFilter] | None = None
        self.pushdown: Pushdown | None = None
        """What becomes of the filter; None for a query without one, and until it is chosen."""
        self.residual: Expression | None = options.filter
        """What is checked on the events that come; None for nothing."""

    @property
    def pushed(self) -> Mapping[str, FeedFilter]:
        """What the feed checks; nothing until it is chosen."""
        return self._pushed or {}

    @property
    def arguments(self) -> dict[str, str]:
        """Names and values of the filters that the feed is sent."""
        return {name: each.value for name, each in self.pushed.items()}

    def choose(self, client: FeedClient, discovery: Discovery) -> None:
        """Choose for a new query, by what the feed offers; ``client`` sends it from now on.

        Raises:
            OptionError: the user names a filter that the feed does not offer.
        """
        if self._pushed is not None:
            return
        options = self._options
        if client.dialect is not Dialect.V2A:
            if options.filter_fields:
                assert client.dialect is not None
                raise OptionError(
                    "filterFields", f"the feed speaks dialect {client.dialect.value}, which has no filters"
                )
            self._use(client, {})
            return
        starts = [options.starting.everywhere, *options.starting.each.values()]
        ends = [] if options.ending is None else [*options.ending.each.values()]
        # A cursor that the user gives is one of a read without our filters: it means nothing under them (C-13).
        cursors = any(isinstance(position, After) for position in (*starts, *ends))
        chosen = push(
            None if cursors else options.filter,
            discovery,
            declared=options.filter_fields,
            key_field=options.key_field,
            taken=dict(options.filters),
            starts=[read_filter(start.text) for start in starts if isinstance(start, Matching)],
        )
        self._use(client, chosen)

    def keep(self, client: FeedClient, pushed: Mapping[str, FeedFilter]) -> None:
        """Go on with what the checkpoint says, whatever the feed offers now.

        Raises:
            CheckpointError: the options' filter lets through what is not sent under it.
        """
        if self._pushed is None or dict(self._pushed) != dict(pushed):
            self._use(client, pushed)

    def task(self, partition: int, dialect: Dialect, fetch: FeedRange, start: str | None = None) -> FeedTask:
        """Return a task that fetches what the filter lets through.

        Args:
            partition: its id.
            dialect: that the feed speaks.
            fetch: from where to where.
            start: the expression whose first match is the first row; None for all.
        """
        begin = None if start is None else read_filter(start)
        return FeedTask(
            partition,
            dialect,
            fetch=fetch,
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
                "start anew with another checkpointLocation"
            ) from None
        self._pushed = dict(pushed)
        client.push(self.arguments)
        if options.filter is not None:
            self.pushdown = Pushdown(shown(pushed) if pushed else None, self.residual)
            log_filter(options, self.pushdown)


def first_match(options: FeedSourceOptions, partition: int, expression: str) -> FirstMatch:
    """Return what drops the lines of a partition before the first event that an expression is true of."""
    return FirstMatch(
        read_filter(expression),
        options.stream,
        partition,
        options.key_field,
        options.timestamp_field,
        options.timestamp_overflow,
    )
