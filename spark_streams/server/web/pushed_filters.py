"""Shows the part of a filter that this log, as each protocol's peer, would check for a query with default options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_streams.errors import FilterError
from spark_streams.filters import to_text
from spark_streams.filters.row_columns import columns_needed
from spark_streams.filters.targets.amqp import AmqpCapability, AmqpSplit, split_for_amqp
from spark_streams.filters.targets.feed import FeedSplit, field_of, split_for_feed
from spark_streams.filters.targets.rabbitmq import RabbitSplit, split_for_rabbitmq
from spark_streams.filters.tree import KEY, Expression, Reference, place_of, references

_LOG: Final = AmqpCapability(event_streams=True, filtex_sql=True, rabbitmq_types=True)


@dataclass(frozen=True)
class Pushed:
    """The parts of a filter with one protocol.

    Args:
        title: the format that reads it, and what else it depends on.
        phrases: the parts that the peer is asked to check; empty for nothing.
        remains: the filter that the reader checks on the events that come; None for nothing.
        fault: why the format cannot use this filter at all; empty when it can.
    """

    title: str
    phrases: tuple[str, ...] = ()
    remains: str | None = None
    fault: str = ""


def pushed_filters(expression: Expression) -> list[Pushed]:
    """Return the parts of a filter with each protocol that has a format."""
    found = [
        _pushed("amqp-events", split_for_amqp(expression, _LOG)),
        _pushed("rabbitmq-stream", split_for_rabbitmq(expression, None)),
        *_with_filter_values(expression),
    ]
    try:
        columns_needed(expression, feed=True)
    except FilterError as fault:
        return [*found, Pushed("feedapi", fault=fault.reason)]
    fields = {field: each for each in references(expression) if (field := field_of(each)) is not None}
    return [*found, _pushed("feedapi", split_for_feed(expression, fields))]


def _pushed(title: str, split: AmqpSplit | RabbitSplit | FeedSplit) -> Pushed:
    return Pushed(title, tuple(split.phrases), None if split.residual is None else to_text(split.residual))


def _with_filter_values(expression: Expression) -> Iterator[Pushed]:
    """Yield the parts that would be pushed if publishers gave a part of the event as its filter value."""
    parts = {place_of(each) or ("", "key"): each for each in references(expression) if _may_be_filter_value(each)}
    for (section, name), reference in parts.items():
        split = split_for_rabbitmq(expression, reference)
        if split.values:
            part = f"{section}.{name}" if section else name
            yield _pushed(f"rabbitmq-stream, where filterValueFrom is {part}", split)


def _may_be_filter_value(reference: Reference) -> bool:
    place = place_of(reference)
    return reference == KEY if place is None else place[0] != "message_annotations"
