"""Split an expression for a RabbitMQ stream: filter values, an offset to start from, and the residual.

Spec: RabbitMQ stream protocol, Subscribe (properties ``filter.<n>``, ``match-unfiltered``); docs/specifications.md,
S-91, S-92, Z-3 to Z-5, Z-19.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_streams.filters.intervals import offsets_of, within
from spark_streams.filters.split import Inexpressible, PeerSplit, Split, split
from spark_streams.filters.tree import (
    Expression,
    Operator,
    Predicate,
    Reference,
    ReferenceKind,
    ValueType,
    place_of,
    without_not,
)
from spark_streams.offsets import MAX_OFFSET, OFFSET_DIGITS

_MAX_VALUES: Final = 128
"""The most filter values in one subscription: the broker tests each against every chunk's Bloom filter."""
_MAX_VALUE_BYTES: Final = 16_384
"""The most bytes of all filter values together, because one frame holds them."""


@dataclass(frozen=True)
class RabbitSplit(PeerSplit):
    """An expression, split between a broker and the reader.

    Args:
        values: subscribe with ``filter.0``, ``filter.1`` … of these: every matching message was published with one of
            them, or with none, which ``match-unfiltered`` asks for. None for no filter; never empty.
        first_offset: no message before this one (inclusive) matches. Start there, and *drop the first chunk's messages
            below it*, because the residual no longer tests this bound. None for no bound; it may lie beyond the end.
        residual: the part left to check on each message; None when nothing remains.
    """

    values: tuple[str, ...] | None
    first_offset: int | None
    residual: Expression | None

    @property
    def phrases(self) -> tuple[str, ...]:
        """The filters that the peer gets, for people."""
        phrases = []
        if self.first_offset is not None:
            phrases.append(f"starting offset {self.first_offset}")
        if self.values is not None:
            phrases.append("filter values " + ", ".join(map(repr, self.values)))
        return tuple(phrases)


def split_for_rabbitmq(expression: Expression, value_from: Reference | None) -> RabbitSplit:
    """Split an expression for a RabbitMQ stream.

    Args:
        expression: any filter.
        value_from: the part of a message that publishers give as filter value; None when that is unknown, or when the
            broker has no filters (before 3.13).
    """
    normal = without_not(expression)
    seek = split(normal, _Seek())
    first = seek.pushed or 0
    values = None if value_from is None else split(normal, _FilterValues(value_from)).pushed
    return RabbitSplit(values, min(first, MAX_OFFSET) if first > 0 else None, seek.residual)


class _Seek:
    """The start offset as a target: the lowest offset, inclusive, that may match."""

    def both(self, left: int, right: int) -> int:
        return max(left, right)

    def either(self, left: int, right: int) -> int:
        return min(left, right)

    def test(self, predicate: Predicate) -> Split[int]:
        if predicate.reference.kind is not ReferenceKind.OFFSET:
            raise Inexpressible
        if predicate.operator is Operator.IS_NOT_NULL:
            return Split(0, None)
        offsets = within(offsets_of(predicate), 0, 10**OFFSET_DIGITS - 1)
        low, high = offsets[0] if offsets else (10**OFFSET_DIGITS, None)
        return Split(low or 0, None if len(offsets) <= 1 and high is None else predicate)


class _FilterValues:
    """Filter values as a target: a message that matches was published with one of them, or with none."""

    def __init__(self, value_from: Reference) -> None:
        self._part = place_of(value_from) or value_from

    def both(self, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        # Nothing equals two texts at once: without a common value, either tuple is right.
        return tuple(value for value in left if value in right) or left

    def either(self, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        values = tuple(dict.fromkeys((*left, *right)))
        if len(values) > _MAX_VALUES or sum(len(value.encode()) for value in values) > _MAX_VALUE_BYTES:
            raise Inexpressible
        return values

    def test(self, predicate: Predicate) -> Split[tuple[str, ...]]:
        if (place_of(predicate.reference) or predicate.reference) != self._part:
            raise Inexpressible
        if predicate.type is not ValueType.STRING or predicate.operator not in (Operator.EQUALS, Operator.IN):
            raise Inexpressible
        values = self.either(tuple(str(value) for value in predicate.values), ())
        if "" in values:
            raise Inexpressible  # an empty filter value counts as none (Z-4)
        return Split(values, predicate)
