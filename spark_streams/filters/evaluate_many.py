"""Evaluate an expression on many events at once: Arrow columns in, a column of answers out, null for unknown.

The answers equal those of ``evaluate_one.py``, which defines the operators. Arrow compares texts, ``number_columns.py``
compares numbers; Python evaluates what neither can, once for each distinct text.

Spec: docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache, reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.filters.evaluate_one import predicate_test
from spark_streams.filters.limits import is_unicode
from spark_streams.filters.number_columns import Numbers, among, answer_by_text
from spark_streams.filters.text_matching import WILDCARDS, LikePattern, like_pattern
from spark_streams.filters.tree import (
    COMPARISONS,
    NEGATIVE,
    OPPOSITES,
    And,
    Expression,
    Not,
    Operator,
    Predicate,
    Reference,
    ValueType,
)

ColumnLookup: TypeAlias = Callable[[Reference], pa.Array]
"""Return a part of all events as a column: string or int64, null for NULL."""

_CONTAINS: Final = frozenset({Operator.CONTAINS_ALL, Operator.CONTAINS_ANY})
_ARRAY: Final = r"\A[ \t\r\n]*\["
_PLAIN: Final = r'"[^"\\\x00-\x1f]*"'
_PLAIN_ARRAY: Final = rf"\A[ \t\r\n]*\[[ \t\r\n]*({_PLAIN}[ \t\r\n]*(,[ \t\r\n]*{_PLAIN}[ \t\r\n]*)*)?\][ \t\r\n]*\z"
"""A JSON array of strings without escapes: the characters between two quotes are the member."""
_MOST_CHARACTERS: Final = 500
_MOST_WILDCARDS: Final = 32
"""The most characters and wildcards of a pattern that becomes one regular expression; with many more, RE2 drops its
table of states and becomes slow."""


def evaluate_columns(expression: Expression, lookup: ColumnLookup, rows: int) -> pa.BooleanArray:
    """Return which events pass.

    Args:
        expression: the filter.
        lookup: returns the events' columns; called once for each reference.
        rows: number of events.

    Returns:
        One answer for each event; null for unknown, which does not pass.
    """
    return _Evaluation(lookup, rows).of(expression)


def mask(expression: Expression, lookup: ColumnLookup, rows: int) -> pa.BooleanArray:
    """Return which events pass, as ``evaluate_columns`` does, with false for unknown."""
    return pc.fill_null(evaluate_columns(expression, lookup, rows), False)


class _Evaluation:
    """The evaluation of one expression on one batch; it builds each column, and the column's numbers, once."""

    def __init__(self, lookup: ColumnLookup, rows: int) -> None:
        self._rows = rows
        self._column = column = cache(lambda reference: _comparable(lookup(reference)))
        self._texts = cache(lambda reference: column(reference).cast(pa.string()))
        self._numbers = cache(lambda reference: Numbers(column(reference)))

    def of(self, expression: Expression) -> pa.BooleanArray:
        if isinstance(expression, Predicate):
            return self._of_predicate(expression)
        if isinstance(expression, Not):
            return pc.invert(self.of(expression.operand))
        conjunction = isinstance(expression, And)
        join = pc.and_kleene if conjunction else pc.or_kleene
        answer = self.of(expression.parts[0])
        for part in expression.parts[1:]:
            # No further part can change the answer once it is decided for all events.
            if answer.null_count == 0 and answer.true_count == (0 if conjunction else self._rows):
                break
            answer = join(answer, self.of(part))
        return answer

    def _of_predicate(self, predicate: Predicate) -> pa.BooleanArray:
        reference, op = predicate.reference, predicate.operator
        column = self._column(reference)
        if op in (Operator.IS_NULL, Operator.IS_NOT_NULL):
            return pc.is_null(column) if op is Operator.IS_NULL else pc.is_valid(column)
        if column.null_count == self._rows:
            return pa.nulls(self._rows, pa.bool_())
        if op in NEGATIVE:
            return pc.invert(self._of_predicate(Predicate(reference, OPPOSITES[op], predicate.values, predicate.type)))
        if predicate.type is ValueType.STRING:
            return _of_texts(predicate, self._texts(reference))
        if op in _CONTAINS:
            return answer_by_text(self._texts(reference), predicate_test(predicate))
        return self._numbers(reference).answer(predicate)


def _comparable(column: pa.Array) -> pa.Array:
    return column if pa.types.is_int64(column.type) or pa.types.is_string(column.type) else column.cast(pa.string())


def _of_texts(predicate: Predicate, column: pa.StringArray) -> pa.BooleanArray:
    op = predicate.operator
    values = [str(value) for value in predicate.values]
    if not all(map(is_unicode, values)):  # no column holds half of a surrogate pair, and Arrow refuses it
        return answer_by_text(column, predicate_test(predicate))
    if op in _CONTAINS:
        return _contains(predicate, column, values)
    if op is Operator.IN:
        return among(column, values)
    if op is Operator.LIKE:
        pattern = _arrow_pattern(values[0])
        if pattern is None:
            return answer_by_text(column, predicate_test(predicate))
        return pattern.test(column, pattern.text)
    if op is Operator.BETWEEN:
        return pc.and_(pc.greater_equal(column, _text(values[0])), pc.less_equal(column, _text(values[1])))
    return COMPARISONS[op].arrow(column, _text(values[0]))


def _text(value: str) -> Any:
    return pa.scalar(value, pa.string())


@lru_cache(maxsize=1024)
def _arrow_pattern(pattern: str) -> LikePattern | None:
    """Return a pattern of LIKE for Arrow; None for one with too many wildcards."""
    found = like_pattern(WILDCARDS.get(character, character) for character in re.sub("%+", "%", pattern))
    wildcards = pattern.count("%") + pattern.count("_")
    many = len(pattern) > _MOST_CHARACTERS or wildcards > _MOST_WILDCARDS
    return None if many and found.test is pc.match_substring_regex else found


def _contains(predicate: Predicate, column: pa.StringArray, values: list[str]) -> pa.BooleanArray:
    """Return the answers of CONTAINS; values that are no array, and arrays of simple strings, are not parsed."""
    test = predicate_test(predicate)
    arrays = pc.match_substring_regex(column, _ARRAY)
    if not pc.any(arrays).as_py():
        plain = arrays
    elif any(value.strip(", \t\r\n") == "" for value in values):  # `","` also separates two members
        return answer_by_text(column, test)
    else:
        plain = pc.match_substring_regex(column, _PLAIN_ARRAY)
    answers = [
        pc.if_else(
            arrays,
            pc.match_substring(column, f'"{value}"') if _simple(value) else False,
            pc.equal(column, _text(value)),
        )
        for value in values
    ]
    join = pc.and_ if predicate.operator is Operator.CONTAINS_ALL else pc.or_
    answer = reduce(join, answers)
    hard = pc.and_not(arrays, plain)
    if not pc.any(hard).as_py():
        return answer
    rest = answer_by_text(pc.if_else(hard, column, pa.scalar(None, pa.string())), test)
    return pc.if_else(hard, rest, answer)


def _simple(value: str) -> bool:
    """Return whether JSON can hold a text between quotes without an escape."""
    return '"' not in value and "\\" not in value and all(character >= " " for character in value)
