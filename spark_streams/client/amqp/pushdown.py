"""Splits a filter between an AMQP peer and the client, by what the peer offers and what it echoes.

A filter set has one entry for the start of the read, which the peer must accept, and these optional ones:

==============  =================================================  ==============================================
name            descriptor                                         value
==============  =================================================  ==============================================
``bounds``      ``amqp:event-streams-delivery-annotations-filter``  exclusive lower bounds
``match``       ``amqp:event-streams-sql-filter``                   SQL over offset and timestamp
``sql-filter``  ``amqp:sql-filter``                                 full SQL; RabbitMQ knows it by this name only
``end``         ``amqp:event-streams-sql-filter``                   nothing after the range's end
==============  =================================================  ==============================================

An entry that the peer does not echo is not in force (A-21). If any but ``end`` is missing, the client relies on none of
them: it checks the whole filter itself.

Spec: Event Stream Extensions §5.2; AMQP 1.0 part 3 §3.5.8; AMQP Filter Expressions 1.0 §2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.log_client import RangeRead
from spark_streams.errors import Refused
from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp
from spark_streams.filters.tree import Expression
from spark_streams.wire.amqp.event_streams import (
    ANNOTATIONS_FILTER,
    FULL_SQL_FILTER,
    OFFSET_KEY,
    SQL_CAPABILITY,
    SQL_FILTER,
)
from spark_streams.wire.amqp.values import Described, Symbol, Timestamp, ULong

_END: Final = "end"
_TYPED_AS_RABBITMQ: Final = frozenset({"RabbitMQ", "spark-streams"})
"""Products (open.properties) that compare char, uuid and binary values as RabbitMQ does."""
_FILTER_CONDITIONS: Final = frozenset({"amqp:invalid-field", "amqp:not-implemented", "amqp:not-allowed"})


@dataclass(frozen=True)
class PushedFilter:
    """A filter, split for one peer.

    Args:
        filters: entries of the filter set, by name.
        residual: the part that the client checks when the peer accepts all of them.
        whole: the whole filter, which the client checks when the peer does not accept all of them.
        words: the pushed part, for people; None for nothing.
    """

    filters: Mapping[str, Described]
    residual: Expression | None
    whole: Expression | None
    words: str | None

    def in_force(self, taken: frozenset[str]) -> bool:
        """Return whether the peer accepted all entries of the filter, by the names of those that it echoed."""
        return self.filters.keys() - {_END} <= taken


def nothing_pushed(expression: Expression | None) -> PushedFilter:
    """Return the split that pushes nothing: the client checks the whole filter."""
    return PushedFilter({}, expression, expression, None)


def push(expression: Expression | None, connection: Connection, read: RangeRead | None) -> PushedFilter:
    """Split a filter for a peer.

    Args:
        expression: the filter; None if there is none.
        connection: the connection to the peer, which knows what the peer offers.
        read: the range to read, with its last offset, which is pushed beside any other entry, so that the peer stops
            there; None only to learn how the filter would be split.
    """
    if expression is None:
        return nothing_pushed(None)
    capability = AmqpCapability(
        event_streams=connection.peer.offers_event_streams,
        filtex_sql=SQL_CAPABILITY in connection.peer.offered,
        rabbitmq_types=connection.peer.properties.get("product") in _TYPED_AS_RABBITMQ,
    )
    split = split_for_amqp(expression, capability)
    filters: dict[str, Described] = {}
    if split.annotations is not None:
        bounds = {Symbol(name): _bound(value) for name, value in split.annotations.items()}
        filters["bounds"] = Described(ULong(ANNOTATIONS_FILTER[0]), bounds)
    if split.event_streams_sql is not None:
        filters["match"] = Described(ULong(SQL_FILTER[0]), split.event_streams_sql)
    if split.sql is not None:
        filters["sql-filter"] = Described(ULong(FULL_SQL_FILTER[0]), split.sql)
    if not filters:
        return nothing_pushed(expression)
    if read is not None and read.end.isascii() and connection.peer.offers_event_streams:
        quoted = read.end.replace("'", "''")
        filters[_END] = Described(ULong(SQL_FILTER[0]), f"d.{OFFSET_KEY} <= '{quoted}'")
    return PushedFilter(filters, split.residual, expression, split.words)


def is_about_filters(refusal: Refused) -> bool:
    """Return whether a peer may have refused a link because of its filters; it may accept the link without them."""
    return refusal.condition in _FILTER_CONDITIONS


def _bound(value: str | int) -> Symbol | Timestamp:
    return Symbol(value) if isinstance(value, str) else Timestamp(value)
