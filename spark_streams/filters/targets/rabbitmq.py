"""An expression for a RabbitMQ stream: filter values, an offset to start from, and what remains.

Spec: RabbitMQ stream protocol, Subscribe (properties ``filter.<n>``, ``match-unfiltered``); notes 4.1, 4.2, Z-3 to Z-5.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.filters.nodes import Expression, Reference

__all__ = ["RabbitCapability", "RabbitSplit", "split_for_rabbitmq"]


@dataclass(frozen=True)
class RabbitCapability:
    """What a broker can check.

    Args:
        value_from: what publishers gave as filter value; None when that is not known.
        filters: whether the broker has filters (3.13 and later).
    """

    value_from: Reference | None
    filters: bool


@dataclass(frozen=True)
class RabbitSplit:
    """An expression, split between a broker and the reader.

    Args:
        values: subscribe with ``filter.0``, ``filter.1`` … of these, and ``match-unfiltered`` false: every matching
            message was published with one of them. None for no filter; never empty.
        first_offset: no message before this one (inclusive) matches: start there, and *drop what the first chunk has
            below it*, for the residual no longer says so. None for no bound; it may lie beyond the end.
        residual: what is still to be checked on each message; None when nothing is.
    """

    values: tuple[str, ...] | None
    first_offset: int | None
    residual: Expression | None

    @property
    def words(self) -> str | None:
        """What is pushed, for people; None when nothing is."""
        raise NotImplementedError


def split_for_rabbitmq(expression: Expression, capability: RabbitCapability) -> RabbitSplit:
    """Split an expression for a RabbitMQ stream.

    Args:
        expression: any filter.
        capability: what the broker can check.
    """
    return RabbitSplit(None, None, expression)
