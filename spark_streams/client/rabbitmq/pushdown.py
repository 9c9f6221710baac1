"""Splits the filter of a range between the broker and the client.

A broker accepts filter values, and leaves out chunks that have none of them; it accepts an offset to begin with. Both
select more messages than the filter does, so the client checks the rest of it on every row.

Spec: Streams Protocol Reference, Subscribe (filter.*, match-unfiltered); docs/specifications.md,
Z-3 to Z-5, Z-19.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_streams.filters.targets.rabbitmq import RabbitSplit, split_for_rabbitmq
from spark_streams.filters.tree import KEY, Expression, property_of


@dataclass(frozen=True)
class FilterValues:
    """The filter values of the wanted messages of a RabbitMQ stream, which publishers gave to the messages.

    The broker skips chunks without any of them; the client drops the other messages of the remaining chunks, and finds
    a message's filter value where its publisher took it from. ``RangeRead.filter`` may require filter values too; a
    message has to match both.

    Args:
        values: a message needs one of these; empty for all messages, when only ``taken_from`` is known.
        match_unfiltered: whether the broker also sends messages without a filter value; the client still drops those
            with a content that ``values`` or the filter does not match.
        taken_from: ``key``, ``properties.<field>``, ``application_properties.<name>`` or
            ``message_annotations.<name>``.
    """

    values: tuple[str, ...]
    match_unfiltered: bool
    taken_from: str


@dataclass(frozen=True)
class PushedFilter:
    """The parts of a range's filter.

    Args:
        pushed: the filter values that the broker filters by; None if there is none.
        first_offset: the first offset that can match (inclusive); 0 for no bound.
        values: the user's own filter values, which the client compares; None if there is none.
        residual: the part of an expression that the client checks; None for nothing.
    """

    pushed: FilterValues | None = None
    first_offset: int = 0
    values: FilterValues | None = None
    residual: Expression | None = None


def push(expression: Expression | None, filters: FilterValues | None) -> PushedFilter:
    """Split the filter of a range: an expression, filter values, or both.

    Args:
        expression: true of every wanted message; None for all.
        filters: the user's filter values, which may be empty, and where messages have theirs; None for an unknown
            place.
    """
    values = filters if filters is not None and filters.values else None
    if expression is None:
        return PushedFilter(values, 0, values)
    # A broker that has no filters, or ignores them, sends all messages: nothing here relies on what it leaves out.
    split = split_for(expression, filters)
    pushed = values
    if filters is not None and split.values is not None:
        common = tuple(value for value in filters.values if value in split.values)
        pushed = replace(filters, values=common or filters.values or split.values)
    return PushedFilter(pushed, split.first_offset or 0, values, split.residual)


def split_for(expression: Expression, filters: FilterValues | None) -> RabbitSplit:
    """Split an expression for a broker.

    Args:
        expression: any filter.
        filters: where messages have their filter values; None for an unknown place, or a broker without filters.
    """
    value_from = None
    if filters is not None:
        value_from = KEY if filters.taken_from == "key" else property_of(filters.taken_from)
    return split_for_rabbitmq(expression, value_from)
