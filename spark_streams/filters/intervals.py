"""Turn predicates on whole numbers into intervals of a time, a sequence number or a numbered offset.

A decimal literal is between two whole numbers: ``x < 2.5`` is ``x <= 2``, and ``x = 2.5`` is never true.

Spec: docs/specifications.md, E-7, E-10, E-14.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from spark_streams.filters.decimals import floor_of
from spark_streams.filters.split import Inexpressible
from spark_streams.filters.tree import Operator, Predicate, Value, ValueType

Interval: TypeAlias = tuple["int | None", "int | None"]
"""The lowest and the highest number, both included; None for no bound."""
Intervals: TypeAlias = tuple[Interval, ...]
"""Disjoint intervals in rising order, no two adjacent; empty for no number at all."""

_CANONICAL: Final = re.compile("0|-?[1-9][0-9]{0,19}")
EVERYTHING: Final[Intervals] = ((None, None),)


def intervals_of(predicate: Predicate) -> Intervals:
    """Return the whole numbers for which a predicate is true.

    Args:
        predicate: any. One of type STRING compares with the digits, so of those only ``=``, ``<>``, IN and NOT IN have
            an equivalent in numbers.

    Raises:
        Inexpressible: the predicate depends on more than the number's value.
    """
    op, values, is_text = predicate.operator, predicate.values, predicate.type is ValueType.STRING
    if op in (Operator.EQUALS, Operator.NOT_EQUALS, Operator.IN, Operator.NOT_IN):
        points = _points(_number(value) if is_text else _whole(value) for value in values)
        return _complement(points) if op in (Operator.NOT_EQUALS, Operator.NOT_IN) else points
    if is_text or not values:
        raise Inexpressible
    floor, exact = floor_of(values[0])
    ceiling = floor if exact else floor + 1
    if op is Operator.BETWEEN:
        high, _ = floor_of(values[1])
        return ((ceiling, high),) if ceiling <= high else ()
    interval: dict[Operator, Interval] = {
        Operator.GREATER_THAN: (floor + 1, None),
        Operator.GREATER_THAN_EQUALS: (ceiling, None),
        Operator.LESS_THAN: (None, ceiling - 1),
        Operator.LESS_THAN_EQUALS: (None, floor),
    }
    if op not in interval:
        raise Inexpressible
    return (interval[op],)


def within(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the intervals for numbers that all lie from ``low`` to ``high``; a bound that excludes none is None."""
    found: list[Interval] = []
    for first, last in intervals:
        if (first is None or first <= high) and (last is None or last >= low):
            found.append(
                (None if first is None or first <= low else first, None if last is None or last >= high else last)
            )
    return tuple(found)


def without(intervals: Intervals, number: int) -> Intervals:
    """Return the intervals without one number."""
    found: list[Interval] = []
    for first, last in intervals:
        if (first is not None and first > number) or (last is not None and last < number):
            found.append((first, last))
            continue
        if first != number:
            found.append((first, number - 1))
        if last != number:
            found.append((number + 1, last))
    return tuple(found)


def _number(value: Value) -> int | None:
    """Return the number whose canonical digits are the text; None if there is none."""
    text = str(value)
    return int(text) if _CANONICAL.fullmatch(text) else None


def _whole(value: Value) -> int | None:
    floor, exact = floor_of(value)
    return floor if exact else None


def _points(numbers: Iterable[int | None]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for number in sorted({number for number in numbers if number is not None}):
        if merged and merged[-1][1] == number - 1:
            merged[-1] = (merged[-1][0], number)
        else:
            merged.append((number, number))
    return tuple(merged)


def _complement(intervals: Sequence[Interval]) -> Intervals:
    found: list[Interval] = []
    low: int | None = None
    for first, last in intervals:
        assert first is not None and last is not None
        found.append((low, first - 1))
        low = last + 1
    return (*found, (low, None))
