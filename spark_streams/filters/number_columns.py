"""Compare a column of numbers exactly, as ``decimals.py`` defines it, without a Python object for each row.

Whole numbers become int64, and a comparison an interval of them: the whole numbers below 2.5 are those up to 2.

Other numbers become float64, which decides only what it cannot get wrong. Rounding keeps the order, so a number whose
float is below the literal's float is below the literal. Where the two floats are equal, Python compares the texts, once
for each distinct text; it also compares texts that are too long or too large for a float, or are no number.

Spec: docs/specifications.md, E-7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.filters.decimals import MAX_INT64, MIN_INT64, floor_of
from spark_streams.filters.evaluate_one import predicate_test
from spark_streams.filters.intervals import intervals_of, within
from spark_streams.filters.tree import COMPARISONS, Operator, Predicate
from spark_streams.wire.columnar.arrays import layout

_NUMBER: Final = r"\A[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\z"
"""The form of a number; most columns of other texts fail this test."""
_FLOAT: Final = r"\A-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?\z"
"""The form of a number that Arrow reads as a float, and that is not too large for one."""
_LONGEST: Final = 300
"""The most bytes of a text without exponent whose number is surely not too large for a float."""
_FEW: Final = 4
"""Up to this many values, single comparisons are faster than a hash table."""
_SAMPLE: Final = 64
"""Number of texts to try before the whole column, because Arrow needs long to refuse each text that does not fit."""


class Numbers:
    """A column as numbers.

    Args:
        column: string or int64.
    """

    def __init__(self, column: pa.Array) -> None:
        self._column = column
        self._floats: pa.DoubleArray | None = None
        if pa.types.is_integer(column.type):
            return
        kinds = _number_types(column)
        for kind in kinds:
            try:
                column.slice(0, _SAMPLE).cast(kind)
                numbers = column.cast(kind)
            except pa.ArrowInvalid:
                continue
            if kind == pa.int64():
                self._column = numbers
            else:
                self._floats = numbers
            return
        self._column = column if kinds else _matching(column, _NUMBER)
        self._floats = _matching(self._column, _FLOAT).cast(pa.float64())

    def answer(self, predicate: Predicate) -> pa.BooleanArray:
        """Return the answers of a comparison of type LONG or DOUBLE; null where the answer is unknown."""
        if self._floats is None:
            return _of_whole_numbers(predicate, self._column)
        literals = pa.array([float(value) for value in predicate.values], pa.float64())
        answer = _of_floats(predicate.operator, literals, self._floats)
        # Null stands for a text that became no float, and for a missing text; neither is among the literals.
        unsure = pc.or_(pc.is_null(self._floats), pc.is_in(self._floats, _with_both_zeros(literals)))
        if not unsure.true_count:
            return answer
        texts = pc.if_else(unsure, self._column, pa.scalar(None, pa.string()))
        return pc.if_else(unsure, answer_by_text(texts, predicate_test(predicate)), answer)


def _with_both_zeros(literals: pa.DoubleArray) -> pa.DoubleArray:
    """Return the literals, with both 0.0 and -0.0 if either is there: Arrow's hash tables tell them apart."""
    return pa.concat_arrays([literals, pa.array([0.0, -0.0])]) if 0.0 in literals.to_pylist() else literals


def answer_by_text(column: pa.StringArray, test: Callable[[str], bool | None]) -> pa.BooleanArray:
    """Return a test's answer for every text, and call the test once for each distinct text; null for null."""
    texts = column.dictionary_encode()
    answers = pa.array([test(text) for text in texts.dictionary.to_pylist()], pa.bool_())
    return answers.take(texts.indices)


def among(column: pa.Array, values: Sequence[str | int]) -> pa.BooleanArray:
    """Return whether each value of a column is one of the values; null for null."""
    if 0 < len(values) <= _FEW:
        return reduce(pc.or_, (pc.equal(column, pa.scalar(value, column.type)) for value in values))
    return _with_nulls_of(pc.is_in(column, pa.array(values, column.type)), column)


def _with_nulls_of(answer: pa.BooleanArray, column: pa.Array) -> pa.BooleanArray:
    """Return the answers, with unknown where the column is null."""
    return pc.if_else(pc.is_valid(column), answer, pa.scalar(None, pa.bool_())) if column.null_count else answer


def _of_whole_numbers(predicate: Predicate, column: pa.Int64Array) -> pa.BooleanArray:
    if predicate.operator in (Operator.EQUALS, Operator.NOT_EQUALS, Operator.IN):
        floors = map(floor_of, predicate.values)
        answer = among(column, [floor for floor, exact in floors if exact and MIN_INT64 <= floor <= MAX_INT64])
        return pc.invert(answer) if predicate.operator is Operator.NOT_EQUALS else answer
    intervals = within(intervals_of(predicate), MIN_INT64, MAX_INT64)
    low, high = intervals[0] if intervals else (None, None)
    edges = ((pc.greater_equal, low), (pc.less_equal, high))
    answers = [compare(column, pa.scalar(edge, pa.int64())) for compare, edge in edges if edge is not None]
    if answers:
        return reduce(pc.and_, answers)
    return _with_nulls_of(pa.repeat(pa.scalar(bool(intervals)), len(column)), column)


def _matching(column: pa.StringArray, regex: str) -> pa.StringArray:
    """Return the texts that match a regular expression; null for the others."""
    return pc.if_else(pc.match_substring_regex(column, regex), column, pa.scalar(None, pa.string()))


def _number_types(column: pa.StringArray) -> tuple[pa.DataType, ...]:
    """Return the types of numbers that Arrow may read all texts as, just as E-7 does; none for other texts.

    The bytes decide, because Arrow reads ``0x1F``, ``.5``, ``5.`` and ``inf``, too. Texts of digits and a minus may be
    whole numbers; with points, as ``1.5`` and perhaps ``1.5.2``, they may be floats.
    """
    ends, raw = layout(column)
    sizes = np.diff(ends)
    if not raw.size or sizes.max() > _LONGEST or np.count_nonzero(sizes == 0) > column.null_count:
        return ()
    digit = np.append(raw - np.uint8(ord("0")) < 10, False)
    point, minus = raw == ord("."), raw == ord("-")
    if np.count_nonzero(digit) + np.count_nonzero(point) + np.count_nonzero(minus) < len(raw):
        return ()
    points, minuses = np.flatnonzero(point), np.flatnonzero(minus)
    edge = np.zeros(len(digit), np.bool_)
    edge[ends] = True
    # A digit comes before and after every point, in the same text, and after every minus, which begins a text.
    before, behind = points - 1, np.concatenate([points, minuses]) + 1
    right = (
        digit[before].all()
        and not edge[points].any()
        and digit[behind].all()
        and not edge[behind].any()
        and edge[minuses].all()
    )
    if not right:
        return ()
    return (pa.float64(),) if len(points) else (pa.int64(), pa.float64())


def _of_floats(op: Operator, literals: pa.DoubleArray, floats: pa.DoubleArray) -> pa.BooleanArray:
    """Return answers that are right where a number's float equals no literal's; elsewhere they mean nothing."""
    if op is Operator.BETWEEN:
        return pc.and_(pc.greater(floats, literals[0]), pc.less(floats, literals[1]))
    if op in (Operator.EQUALS, Operator.NOT_EQUALS, Operator.IN):
        return pa.repeat(pa.scalar(op is Operator.NOT_EQUALS), len(floats))
    return COMPARISONS[op].arrow(floats, literals[0])
