"""Pruning of ranges that no event can match: ranges for which a filter can never be true need no task.

Only the partition of a range and its bounds are known, nothing else about its events. So each part of a filter has a
set of possible outcomes (true, false, unknown), and a task reads the range if the set of the whole filter has true. The
sets are never too small: events of a pruned range cannot match, so no matching event is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial, reduce
from typing import Any, Final

from spark_streams.client.log_client import RangeRead
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.tree import (
    OFFSET,
    PARTITION,
    And,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Value,
    ValueType,
)
from spark_streams.position import After, Earliest
from spark_streams.spark.source.driver import Driver

_Outcomes = frozenset[bool | None]
_ANY: Final[_Outcomes] = frozenset({True, False, None})


def matching_ranges(reads: list[RangeRead], driver: Driver) -> list[RangeRead]:
    """Return the ranges that can have a matching event, split as option ``minPartitions`` requires.

    Args:
        reads: one range of each partition, all with the same filter.
        driver: of the query.
    """
    if not reads or reads[0].filter is None:
        return driver.split(reads)
    numeric = driver.counting.numeric
    wanted = [read for read in reads if can_match(read, numeric=numeric)]
    return [read for read in driver.split(wanted) if can_match(read, numeric=numeric)]


def can_match(read: RangeRead, *, numeric: bool) -> bool:
    """Return whether the filter of a range can be true for any event in it.

    Args:
        read: the range; without a filter every event matches.
        numeric: whether its offsets are numbers, written as decimal digits of a fixed width, so that the order of
            offsets is the order of their numbers.
    """
    return read.filter is None or True in _outcomes(read.filter, read, numeric)


def _outcomes(expression: Expression, read: RangeRead, numeric: bool) -> _Outcomes:
    if isinstance(expression, Predicate):
        return _of_predicate(expression, read, numeric)
    if isinstance(expression, Not):
        return frozenset(None if was is None else not was for was in _outcomes(expression.operand, read, numeric))
    assert isinstance(expression, (And, Or))
    parts = (_outcomes(part, read, numeric) for part in expression.parts)
    return _joined(_and if isinstance(expression, And) else _or, parts)


_RANKS: Final = {False: 0, None: 1, True: 2}
"""The order of truth values: an AND is the least of its parts, an OR the greatest."""
_and: Final = partial(min, key=_RANKS.__getitem__)
_or: Final = partial(max, key=_RANKS.__getitem__)


def _joined(join: Callable[[bool | None, bool | None], bool | None], parts: Iterable[_Outcomes]) -> _Outcomes:
    return reduce(lambda left, right: frozenset(join(a, b) for a in left for b in right), parts)


def _of_predicate(predicate: Predicate, read: RangeRead, numeric: bool) -> _Outcomes:
    if predicate.reference == PARTITION:
        return frozenset({evaluate(predicate, lambda _: read.partition)})
    if predicate.reference != OFFSET or not (predicate.type is ValueType.STRING or numeric):
        return _ANY
    span = _Span(read, numbers=predicate.type is not ValueType.STRING)
    values = predicate.values
    match predicate.operator:
        case Operator.EQUALS | Operator.IN:
            return _joined(_or, (span.equal(value) for value in values))
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return _negated(_joined(_or, (span.equal(value) for value in values)))
        case Operator.GREATER_THAN:
            return span.above(values[0])
        case Operator.GREATER_THAN_EQUALS:
            return span.from_on(values[0])
        case Operator.LESS_THAN:
            return _negated(span.from_on(values[0]))
        case Operator.LESS_THAN_EQUALS:
            return _negated(span.above(values[0]))
        case Operator.BETWEEN:
            return _joined(_and, (span.from_on(values[0]), _negated(span.above(values[1]))))
        case _:
            return _ANY


def _negated(outcomes: _Outcomes) -> _Outcomes:
    return frozenset(not was for was in outcomes)


class _Span:
    """The offsets of a range, compared as strings or as numbers.

    Args:
        read: the range.
        numbers: whether offsets are compared as numbers.
    """

    def __init__(self, read: RangeRead, *, numbers: bool) -> None:
        self._numbers = numbers
        self._end = self._key(read.end)
        self._start = None if isinstance(read.start, Earliest) else self._key(read.start.offset)
        self._after = isinstance(read.start, After)

    def above(self, value: Value) -> _Outcomes:
        """Return the outcomes of ``offset > value``."""
        bound = self._key(value)
        if not self._end > bound:
            return frozenset({False})
        always = self._start is not None and (self._start >= bound if self._after else self._start > bound)
        return frozenset({True}) if always else frozenset({True, False})

    def from_on(self, value: Value) -> _Outcomes:
        """Return the outcomes of ``offset >= value``."""
        bound = self._key(value)
        if not self._end >= bound:
            return frozenset({False})
        return frozenset({True}) if self._start is not None and self._start >= bound else frozenset({True, False})

    def equal(self, value: Value) -> _Outcomes:
        """Return the outcomes of ``offset = value``."""
        there = True in self.from_on(value) and False in self.above(value)
        return frozenset({True, False}) if there else frozenset({False})

    def _key(self, value: Value) -> Any:
        if not self._numbers:
            return value
        return Decimal(repr(value)) if isinstance(value, float) else int(value)
