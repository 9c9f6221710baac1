"""Evaluate an expression on one event: true, false or unknown, as in SQL; ``evaluate_many.py`` evaluates many.

This file defines the operators for both:

- NULL is unknown to every test but IS NULL and IS NOT NULL.
- STRING values compare by code points; a whole number (a time, a size) compares as its digits.
- LONG and DOUBLE values compare as exact decimal numbers; with a text that is no number the answer is unknown.
- BETWEEN is ``>=`` and ``<=``. IN is ``=`` with any of the values. CONTAINS ANY is IN for any member of the value,
  CONTAINS ALL requires each of the values, CONTAINS NONE is NOT CONTAINS ANY.

Spec: docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from spark_streams.filters.decimals import numeral, numeral_of_text
from spark_streams.filters.text_matching import like, members
from spark_streams.filters.tree import (
    COMPARISONS,
    NEGATIVE,
    OPPOSITES,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    ValueType,
)

Lookup: TypeAlias = Callable[[Reference], "str | int | None"]
"""Return a part of the event; None for NULL."""


def evaluate(expression: Expression, lookup: Lookup) -> bool | None:
    """Return whether an event passes.

    Args:
        expression: the filter.
        lookup: returns the parts of the event.

    Returns:
        None for unknown, which does not pass.
    """
    if isinstance(expression, Predicate):
        return _of_predicate(expression, lookup(expression.reference))
    if isinstance(expression, Not):
        return _not(evaluate(expression.operand, lookup))
    answers = (evaluate(part, lookup) for part in expression.parts)
    return _joined(answers, decisive=isinstance(expression, Or))


def _joined(answers: Iterable[bool | None], *, decisive: bool) -> bool | None:
    """Return the join of answers: by OR, which one True decides (``decisive``), or by AND, which one False decides."""
    found: bool | None = not decisive
    for answer in answers:
        if answer is decisive:
            return decisive
        found = None if answer is None else found
    return found


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _of_predicate(predicate: Predicate, value: str | int | None) -> bool | None:
    if predicate.operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return (value is None) is (predicate.operator is Operator.IS_NULL)
    if value is None:
        return None
    return predicate_test(predicate)(value if isinstance(value, str) else repr(int(value)))


@lru_cache(maxsize=1024)
def predicate_test(predicate: Predicate) -> Callable[[str], bool | None]:
    """Return a predicate's test of a value as text.

    Args:
        predicate: any but IS NULL and IS NOT NULL, which test values that are missing.
    """
    op, numeric = predicate.operator, predicate.type in (ValueType.LONG, ValueType.DOUBLE)
    if op in NEGATIVE:
        opposite = predicate_test(replace(predicate, operator=OPPOSITES[op]))
        return lambda text: _not(opposite(text))
    values = [numeral(value) if numeric and not isinstance(value, str) else str(value) for value in predicate.values]
    read: Callable[[str], Any] = numeral_of_text if numeric else str
    if op is Operator.LIKE:
        return like(str(predicate.values[0]))
    if op in (Operator.CONTAINS_ALL, Operator.CONTAINS_ANY):
        return _contains(op, values, read)
    test = _comparison(op, values)

    def compare(text: str) -> bool | None:
        found = read(text)
        return None if found is None else test(found)

    return compare


def _comparison(op: Operator, values: list[Any]) -> Callable[[Any], bool]:
    if op is Operator.IN:
        return frozenset(values).__contains__
    if op is Operator.BETWEEN:
        low, high = values
        return lambda found: bool(low <= found <= high)
    compare, value = COMPARISONS[op].python, values[0]
    return lambda found: compare(found, value)


def _contains(op: Operator, values: list[Any], read: Callable[[str], Any]) -> Callable[[str], bool | None]:
    """Return the test of CONTAINS; its answer is unknown where a member that decides is NULL or no number."""

    def test(text: str) -> bool | None:
        found = {None if member is None else read(member) for member in members(text)}
        missing = None if None in found else False
        among = (True if value in found else missing for value in values)
        return _joined(among, decisive=op is Operator.CONTAINS_ANY)

    return test
