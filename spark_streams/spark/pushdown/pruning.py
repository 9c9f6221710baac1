"""Pruning of ranges that no event can match: ranges for which a filter can never be true need no task.

Only the partition of a range and its bounds are known, nothing else about its events. So each predicate has a set of
possible answers, and a task reads the range if the whole filter can be true. The sets are never too small: events of a
pruned range cannot match, so no matching event is lost.
"""

from __future__ import annotations

from typing import Any, Final

from spark_streams.client.log_client import RangeRead
from spark_streams.filters.decimals import floor_of
from spark_streams.filters.evaluate_one import evaluate, predicate_test
from spark_streams.filters.tree import (
    COMPARISONS,
    OFFSET,
    PARTITION,
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
from spark_streams.spark.source.offset_counting import Arithmetic

_BY_ORDER: Final = {*COMPARISONS, Operator.IN, Operator.NOT_IN, Operator.BETWEEN}
"""Operators whose answer changes only at one of their values, in the order of what they compare."""


def matching_ranges(reads: list[RangeRead], driver: Driver) -> list[RangeRead]:
    """Return the ranges that can have a matching event, split as option ``minPartitions`` requires.

    Args:
        reads: one range of each partition, all with the same filter.
        driver: of the query.
    """
    if not reads or reads[0].filter is None:
        return driver.split(reads)
    numeric = isinstance(driver.counting, Arithmetic)
    wanted = [read for read in reads if can_match(read, numeric=numeric)]
    return [read for read in driver.split(wanted) if can_match(read, numeric=numeric)]


def can_match(read: RangeRead, *, numeric: bool) -> bool:
    """Return whether the filter of a range can be true for any event in it.

    Args:
        read: the range; without a filter every event matches.
        numeric: whether its offsets are numbers, written as decimal digits of a fixed width, so that the order of
            offsets is the order of their numbers.
    """
    return read.filter is None or _can_be(True, read.filter, read, numeric)


def _can_be(answer: bool, expression: Expression, read: RangeRead, numeric: bool) -> bool:
    if isinstance(expression, Predicate):
        return answer in _answers(expression, read, numeric)
    if isinstance(expression, Not):
        return _can_be(not answer, expression.operand, read, numeric)
    # One part that is true makes an OR true, and one that is false makes an AND false.
    decides = any if isinstance(expression, Or) is answer else all
    return decides(_can_be(answer, part, read, numeric) for part in expression.parts)


def _answers(predicate: Predicate, read: RangeRead, numeric: bool) -> frozenset[bool | None]:
    """Return the answers that events of a range may have: true, false or unknown."""
    if predicate.reference == PARTITION:
        return frozenset({evaluate(predicate, lambda _: read.partition)})
    texts = predicate.type is ValueType.STRING
    if predicate.reference != OFFSET or predicate.operator not in _BY_ORDER or not (texts or numeric):
        return frozenset({True, False, None})
    return frozenset(map(predicate_test(predicate), _samples(read, predicate.values, numbers=not texts)))


def _samples(read: RangeRead, values: tuple[Value, ...], *, numbers: bool) -> list[str]:
    """Return offsets of a range: its first and last one, and those of ``values`` and right after them.

    Between two of them a predicate with these values keeps its answer.

    Args:
        read: the range.
        values: the values of a predicate.
        numbers: whether offsets are compared as numbers; else they are compared as strings.
    """

    def point(value: Value) -> Any:
        if not numbers:
            return value
        return int(value) if isinstance(value, str) else floor_of(value)[0]

    step: Any = 1 if numbers else "\0"  # from an offset to the least one after it
    first, last = 0 if numbers else "", point(read.end)
    if not isinstance(read.start, Earliest):
        first = point(read.start.offset)
        if isinstance(read.start, After):
            first += step
    near = [point(value) for value in values]
    points = {first, last, *near, *(each + step for each in near)}
    return [str(each) for each in points if first <= each <= last]
