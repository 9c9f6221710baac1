"""An expression for a feed: its ``filter-<name>`` arguments, and what remains.

Spec: FeedAPI version 2a, discovery ``filters``; notes 4.1 (column FeedAPI v2a), Z-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.filters.nodes import Expression, Reference

__all__ = ["FeedSplit", "split_for_feed"]


@dataclass(frozen=True)
class FeedSplit:
    """An expression, split between a feed and the reader.

    Args:
        filters: name to value, without ``filter-`` and not yet percent-encoded; empty for none. Cursors belong to one
            set of filters.
        residual: what is still to be checked on each event; None when nothing is.
    """

    filters: Mapping[str, str]
    residual: Expression | None

    @property
    def words(self) -> str | None:
        """What is pushed, for people; None when nothing is."""
        raise NotImplementedError


def split_for_feed(expression: Expression, fields: Mapping[str, Reference]) -> FeedSplit:
    """Split an expression for a feed.

    Args:
        expression: any filter.
        fields: the filters that the feed offers, by name without ``filter-``, to what each compares *exactly*: an event
            passes ``filter-<name>=v`` if and only if that part of it is the text v.
    """
    return FeedSplit({}, expression)
