"""Splits the filter of a range: what the broker filters by, and what the client checks itself.

A broker takes filter values, and leaves out chunks that have none of them; it takes an offset to begin with. Both let
through more than the filter does, so the client checks the rest of it on every row.

Spec: Streams Protocol Reference, Subscribe (filter.*, match-unfiltered); docs/specifications.md,
Z-3 to Z-5, Z-19.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_streams.filters.targets.rabbitmq import RabbitCapability, RabbitSplit, split_for_rabbitmq
from spark_streams.filters.tree import KEY, Expression, Reference, property_of


@dataclass(frozen=True)
class FilterValues:
    """Which messages of a RabbitMQ stream are wanted, by the filter value that they were published with.

    The broker skips chunks that have none of them; what else such a chunk holds is dropped by the client, which finds a
    message's filter value where it was taken from. ``RangeRead.filter`` may ask for filter values too; a message has to
    match both.

    Args:
        values: any of these; none of them: all messages, and only where they have their filter values is told.
        match_unfiltered: also messages without a filter value; those that ``values`` or the filter does not match by
            what they hold are dropped all the same.
        taken_from: ``key``, ``properties.<field>`` or ``application_properties.<name>``.
    """

    values: tuple[str, ...]
    match_unfiltered: bool
    taken_from: str


@dataclass(frozen=True)
class PushedFilter:
    """How a range is read.

    Args:
        pushed: the filter values that the broker filters by; None for none.
        first_offset: no message before this one (inclusive) is wanted; 0 for no bound.
        values: the user's own filter values, which the client compares; None for none.
        residual: the part of an expression that the client checks; None for nothing.
    """

    pushed: FilterValues | None = None
    first_offset: int = 0
    values: FilterValues | None = None
    residual: Expression | None = None


def push(expression: Expression | None, filters: FilterValues | None) -> PushedFilter:
    """Return how a range is read that is narrowed by an expression, by filter values, or by both.

    Args:
        expression: True of every message that is wanted; None for all.
        filters: the user's filter values, which may be none, and where messages have theirs; None where that is not
            known.
    """
    values = filters if filters is not None and filters.values else None
    if expression is None:
        return PushedFilter(values, 0, values)
    # A broker that has no filters, or ignores them, sends everything: nothing here counts on what it leaves out.
    split = split_for(expression, filters, True)
    pushed = values
    if filters is not None and split.values is not None:
        common = tuple(value for value in filters.values if value in split.values)
        pushed = replace(filters, values=common or filters.values or split.values)
    return PushedFilter(pushed, split.first_offset or 0, values, split.residual)


def split_for(expression: Expression, filters: FilterValues | None, has_filters: bool) -> RabbitSplit:
    """Split an expression for a broker.

    Args:
        expression: any filter.
        filters: where messages have their filter values; None where that is not known.
        has_filters: whether the broker takes filter values.
    """
    value_from = None if filters is None else _reference(filters.taken_from)
    return split_for_rabbitmq(expression, RabbitCapability(value_from, has_filters))


def _reference(taken_from: str) -> Reference:
    return KEY if taken_from == "key" else property_of(taken_from)
