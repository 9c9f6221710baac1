"""An expression for an AMQP peer: delivery annotations, the SQL subset of event streams, full SQL, and what remains.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.2; notes sections 2 and 4 (X-1 to X-9, Z-1, Z-6, Z-10, Z-11, Z-16).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.filters.nodes import Expression

__all__ = ["AmqpCapability", "AmqpSplit", "split_for_amqp"]


@dataclass(frozen=True)
class AmqpCapability:
    """What a peer takes, and how its rows are read.

    Args:
        event_streams: the two filters of event streams: delivery annotations, and the SQL subset.
        filtex_sql: full SQL filters (``AMQP_FILTEX_SQL_V1_0``).
        rabbitmq_types: whether full SQL sees typed values as RabbitMQ does, where the draft is silent: a char is its
            code point, a uuid its 16 bytes, and binary is ordered by its bytes among the strings. True of RabbitMQ and
            of this project's door; without it fewer predicates are pushed.
        overflow_is_null: whether an instant beyond int64 microseconds reads as null (``timestampOverflow=null``): then
            no predicate on a time is pushed exactly.
    """

    event_streams: bool
    filtex_sql: bool
    rabbitmq_types: bool = False
    overflow_is_null: bool = False


@dataclass(frozen=True)
class AmqpSplit:
    """An expression, split between an AMQP peer and the reader; all filters of a link are ANDed (A-10).

    Args:
        annotations: the map of ``amqp:event-streams-delivery-annotations-filter`` (0x200): the full name of a delivery
            annotation to its exclusive lower bound: ``event-streams-offset`` a symbol's text (ASCII),
            ``event-streams-timestamp`` ms since the epoch, possibly negative. None for no such filter.
        event_streams_sql: the text of ``amqp:event-streams-sql-filter`` (0x201), or None.
        sql: the text of ``amqp:sql-filter`` (0x120), or None.
        residual: what is still to be checked on each delivered event; None when nothing is.
    """

    annotations: Mapping[str, str | int] | None
    event_streams_sql: str | None
    sql: str | None
    residual: Expression | None

    @property
    def words(self) -> str | None:
        """What is pushed, for people; None when nothing is."""
        raise NotImplementedError


def split_for_amqp(expression: Expression, capability: AmqpCapability) -> AmqpSplit:
    """Split an expression for an AMQP peer.

    Args:
        expression: any filter.
        capability: what the peer takes; a filter that it then does not echo counts as not pushed (A-21).

    Returns:
        The filters to attach with, and the residual.
    """
    return AmqpSplit(None, None, None, expression)
