"""Turn predicates on whole numbers into intervals of a time, a sequence number or a numbered offset.

A decimal literal is between two whole numbers: ``x < 2.5`` is ``x <= 2``, and ``x = 2.5`` is never true.

Spec: docs/specifications.md, E-7, E-10, E-14.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from spark_streams.filters.decimals import floor_of
from spark_streams.filters.split import Inexpressible
from spark_streams.filters.tree import COMPARISONS, Operator, Predicate, Value, ValueType
from spark_streams.offsets import equal_range

Interval: TypeAlias = tuple["int | None", "int | None"]
"""The lowest and the highest number, both included; None for no bound."""
Intervals: TypeAlias = tuple[Interval, ...]
"""Disjoint intervals in rising order, no two adjacent; empty for no number at all."""

_CANONICAL: Final = re.compile("0|-?[1-9][0-9]{0,19}")
EVERYTHING: Final[Intervals] = ((None, None),)
_EQUATIONS: Final = (Operator.EQUALS, Operator.NOT_EQUALS, Operator.IN, Operator.NOT_IN)


def intervals_of(predicate: Predicate) -> Intervals:
    """Return the whole numbers for which a predicate is true.

    Args:
        predicate: any. One of type STRING compares with the digits, so of those only ``=``, ``<>``, IN and NOT IN have
            an equivalent in numbers.

    Raises:
        Inexpressible: the predicate depends on more than the number's value.
    """
    if predicate.type is not ValueType.STRING:
        return numbers_where(predicate.operator, [_place_of_number(value) for value in predicate.values])
    if predicate.operator not in _EQUATIONS:
        raise Inexpressible
    return numbers_where(predicate.operator, [_place_of_digits(value) for value in predicate.values])


def offsets_of(predicate: Predicate) -> Intervals:
    """Return the event numbers for which a predicate on the offset is true, where offsets are numbers of 20 digits.

    Raises:
        Inexpressible: the predicate depends on more than the place of its values among the offsets.
    """
    if predicate.type is not ValueType.STRING:
        return intervals_of(predicate)
    return numbers_where(predicate.operator, [equal_range(str(value)) for value in predicate.values])


def numbers_where(op: Operator, places: Sequence[tuple[int, int]]) -> Intervals:
    """Return the numbers for which a test is true.

    Args:
        op: the test.
        places: for each value, the least number that is not less than it, and the least that is greater.

    Raises:
        Inexpressible: the operator compares otherwise.
    """
    if op in _EQUATIONS:
        points = _points(first for first, end in places if first < end)
        return _complement(points) if op in (Operator.NOT_EQUALS, Operator.NOT_IN) else points
    if op is Operator.BETWEEN:
        low, high = places[0][0], places[1][1] - 1
        return ((low, high),) if low <= high else ()
    if op not in COMPARISONS or not places:
        raise Inexpressible
    first, end = places[0]
    intervals: dict[Operator, Intervals] = {
        Operator.GREATER_THAN: ((end, None),),
        Operator.GREATER_THAN_EQUALS: ((first, None),),
        Operator.LESS_THAN: ((None, first - 1),),
        Operator.LESS_THAN_EQUALS: ((None, end - 1),),
    }
    return intervals[op]


def within(intervals: Intervals, low: int, high: int) -> Intervals:
    """Return the intervals for numbers that all lie from ``low`` to ``high``; a bound that excludes none is None."""
    return tuple(
        (None if first == low else first, None if last == high else last)
        for first, last in _between(intervals, low, high)
    )


def without(intervals: Intervals, number: int) -> Intervals:
    """Return the intervals without one number."""
    return (*_between(intervals, None, number - 1), *_between(intervals, number + 1, None))


def _between(intervals: Intervals, low: int | None, high: int | None) -> Intervals:
    """Return the numbers of the intervals from ``low`` to ``high``; None for no bound."""
    found = ((_bound(max, first, low), _bound(min, last, high)) for first, last in intervals)
    return tuple((first, last) for first, last in found if first is None or last is None or first <= last)


def _bound(narrower: Callable[..., int | None], *bounds: int | None) -> int | None:
    return narrower((bound for bound in bounds if bound is not None), default=None)


def _place_of_digits(value: Value) -> tuple[int, int]:
    """Return the place of the number whose canonical digits are the text; an empty one if there is none."""
    text = str(value)
    return (int(text), int(text) + 1) if _CANONICAL.fullmatch(text) else (0, 0)


def _place_of_number(value: Value) -> tuple[int, int]:
    floor, exact = floor_of(value)
    return (floor if exact else floor + 1), floor + 1


def _points(numbers: Iterable[int]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
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
