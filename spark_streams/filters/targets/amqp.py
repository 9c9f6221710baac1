"""Split an expression for an AMQP peer: delivery annotations, the SQL subset of event streams, full SQL, and the rest.

All filters of a link are ANDed (A-10), so the part that one filter leaves of an expression goes to the next one:

1. a lower bound of the offset (``>``) or the publish time into the delivery annotations, from which a peer can seek;
2. predicates on offsets and publish times into the SQL of event streams;
3. predicates on the properties section and application properties into full SQL, as a superset where their types are
   not certain.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.2; docs/specifications.md, X-1 to X-9, Z-1, Z-6,
Z-10, Z-11, Z-16, Z-18, Z-20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.filters.split import PeerSplit, Split, Target, split
from spark_streams.filters.targets.event_streams import DeliveryAnnotations, EventStreams, text_of
from spark_streams.filters.targets.full_sql import FullSql
from spark_streams.filters.tree import Expression, without_not

T = TypeVar("T")


@dataclass(frozen=True)
class AmqpCapability:
    """The filters that a peer takes, and how its rows are read.

    Args:
        event_streams: the two filters of event streams: delivery annotations, and the SQL subset.
        filtex_sql: full SQL filters (``AMQP_FILTEX_SQL_V1_0``).
        rabbitmq_types: whether full SQL sees values as RabbitMQ does where the draft is silent: a char equals its code
            point, a uuid its 16 bytes, and texts and binary values have the order of their bytes. True of RabbitMQ and
            of this project's door; without it less is pushed.
    """

    event_streams: bool
    filtex_sql: bool
    rabbitmq_types: bool = False


@dataclass(frozen=True)
class AmqpSplit(PeerSplit):
    """An expression, split between an AMQP peer and the reader; all filters of a link are ANDed (A-10).

    Args:
        annotations: the map of ``amqp:event-streams-delivery-annotations-filter`` (0x200): the full name of a delivery
            annotation to its exclusive lower bound: ``event-streams-offset`` a symbol's text (ASCII),
            ``event-streams-timestamp`` ms since the epoch, possibly negative. None for no such filter.
        event_streams_sql: the text of ``amqp:event-streams-sql-filter`` (0x201), or None.
        sql: the text of ``amqp:sql-filter`` (0x120), or None.
        residual: the part left to check on each delivered event; None when nothing remains.
    """

    annotations: Mapping[str, str | int] | None
    event_streams_sql: str | None
    sql: str | None
    residual: Expression | None

    @property
    def phrases(self) -> tuple[str, ...]:
        """The filters that the peer gets, for people."""
        bounds = " AND ".join(f"{name} > {bound!r}" for name, bound in (self.annotations or {}).items())
        filters = {"delivery annotations": bounds, "event streams SQL": self.event_streams_sql, "SQL": self.sql}
        return tuple(f"{name}: {text}" for name, text in filters.items() if text)


def split_for_amqp(expression: Expression, capability: AmqpCapability) -> AmqpSplit:
    """Split an expression for an AMQP peer.

    Args:
        expression: any filter.
        capability: the filters that the peer takes; one that it then does not echo counts as not pushed (A-21).

    Returns:
        The filters to attach with, and the residual.
    """
    whole = without_not(expression)
    full_sql = FullSql(as_rabbitmq=capability.rabbitmq_types)
    bounds = _split(whole, DeliveryAnnotations(), capability.event_streams)
    terms = _split(bounds.residual, EventStreams(), capability.event_streams)
    sql = _split(terms.residual, full_sql, capability.filtex_sql)
    return AmqpSplit(
        bounds.pushed,
        None if terms.pushed is None else text_of(terms.pushed),
        None if sql.pushed is None else sql.pushed.text,
        sql.residual,
    )


def _split(expression: Expression | None, target: Target[T], offered: bool) -> Split[T]:
    return Split(None, expression) if expression is None or not offered else split(expression, target)
