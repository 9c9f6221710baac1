"""A column as exact decimal numbers, compared with literals as ``numerals.py`` has it, without a Python object a row.

Whole numbers become int64; numbers of up to 20 digits and 18 more after the point become decimal128; what is left (an
exponent, a longer number, no number at all) is looked at once for each different text.

A literal need not fit the column's digits: of the whole numbers, those below 2.5 are those up to 2.

Spec: notes E-7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.filters.evaluate import predicate_test
from spark_streams.filters.nodes import Operator, Predicate, Value
from spark_streams.filters.numerals import as_fraction

__all__ = ["COMPARISONS", "Numbers", "answer_by_text", "with_nulls_of"]

_SCALE: Final = 18
_DECIMAL: Final = pa.decimal128(38, _SCALE)
_SHORT: Final = r"\A[+-]?[0-9]{1,20}(\.[0-9]{1,18})?\z"
"""What fits the decimal column."""
COMPARISONS: Final[dict[Operator, Callable[[Any, Any], Any]]] = {
    Operator.EQUALS: pc.equal,
    Operator.NOT_EQUALS: pc.not_equal,
    Operator.GREATER_THAN: pc.greater,
    Operator.GREATER_THAN_EQUALS: pc.greater_equal,
    Operator.LESS_THAN: pc.less,
    Operator.LESS_THAN_EQUALS: pc.less_equal,
}
_NEXT_TO_FLOOR: Final = {
    Operator.GREATER_THAN: Operator.GREATER_THAN,
    Operator.GREATER_THAN_EQUALS: Operator.GREATER_THAN,
    Operator.LESS_THAN: Operator.LESS_THAN_EQUALS,
    Operator.LESS_THAN_EQUALS: Operator.LESS_THAN_EQUALS,
}
"""The comparison with the number below a literal that says what another says with the literal."""
_EXACT: Final = Context(prec=80)
_MAX_INT64: Final = 2**63 - 1
_MAX_DECIMAL: Final = 10**38 - 1


class Numbers:
    """A column as numbers.

    Args:
        column: string or int64.
    """

    def __init__(self, column: pa.Array) -> None:
        self._rest: pa.Array | None = None
        if pa.types.is_integer(column.type):
            self._numbers, self._scale = column, 0
            return
        whole = _whole_numbers(column)
        if whole is not None:
            self._numbers, self._scale = whole, 0
            return
        short = pc.match_substring_regex(column, _SHORT)
        none = pa.scalar(None, column.type)
        self._numbers, self._scale = pc.if_else(short, column, none).cast(_DECIMAL), _SCALE
        rest = pc.if_else(short, none, column)
        self._rest = rest if rest.null_count < len(rest) else None

    def answer(self, predicate: Predicate) -> pa.BooleanArray:
        """Return what a predicate of type LONG or DOUBLE that compares says; null where the answer is unknown."""
        op, values = predicate.operator, predicate.values
        if op in (Operator.IN, Operator.NOT_IN):
            answer = self._among(values)
            answer = pc.invert(answer) if op is Operator.NOT_IN else answer
        elif op is Operator.BETWEEN:
            answer = pc.and_(
                self._compared(Operator.GREATER_THAN_EQUALS, values[0]),
                self._compared(Operator.LESS_THAN_EQUALS, values[1]),
            )
        else:
            answer = self._compared(op, values[0])
        if self._rest is None:
            return answer
        return pc.coalesce(answer, answer_by_text(self._rest, predicate_test(predicate)))

    def _among(self, values: tuple[Value, ...]) -> pa.BooleanArray:
        places = (self._place(value) for value in values)
        known = [floor for floor, exact in places if exact and abs(floor) <= self._most]
        found = pc.is_in(self._numbers, pa.array([self._unit(floor) for floor in known], self._numbers.type))
        return with_nulls_of(found, self._numbers)

    def _compared(self, op: Operator, value: Value) -> pa.BooleanArray:
        floor, exact = self._place(value)
        if abs(floor) > self._most or (not exact and op in (Operator.EQUALS, Operator.NOT_EQUALS)):
            answer = _outside(op, above=floor > 0)
            return with_nulls_of(pa.repeat(pa.scalar(answer), len(self._numbers)), self._numbers)
        return COMPARISONS[op if exact else _NEXT_TO_FLOOR[op]](
            self._numbers, pa.scalar(self._unit(floor), self._numbers.type)
        )

    def _place(self, value: Value) -> tuple[int, bool]:
        """Return the greatest number of the column's digits that is not above a literal; whether it is the literal."""
        assert not isinstance(value, str)
        place = as_fraction(value) * 10**self._scale
        floor = math.floor(place)
        return floor, floor == place

    @property
    def _most(self) -> int:
        return _MAX_DECIMAL if self._scale else _MAX_INT64

    def _unit(self, place: int) -> int | Decimal:
        return Decimal(place).scaleb(-self._scale, _EXACT) if self._scale else place


def _outside(op: Operator, *, above: bool) -> bool:
    """Return what a comparison says of every number when the literal is above, or below, or between all of them."""
    if op in (Operator.EQUALS, Operator.NOT_EQUALS):
        return op is Operator.NOT_EQUALS
    return above == (op in (Operator.LESS_THAN, Operator.LESS_THAN_EQUALS))


def _whole_numbers(column: pa.StringArray) -> pa.Int64Array | None:
    """Return a column of decimal digits as int64; None where a text is anything else, or does not fit."""
    content = column.buffers()[2]
    # Arrow reads hexadecimal too.
    if content is not None and ((np.frombuffer(content, np.uint8) | 0x20) == 0x78).any():
        return None
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def answer_by_text(column: pa.Array, test: Callable[[str], bool | None]) -> pa.BooleanArray:
    """Return what a test says of every text, asking it once for each that is different; null for null."""
    texts = column.dictionary_encode()
    answers = pa.array([test(text) for text in texts.dictionary.to_pylist()], pa.bool_())
    return answers.take(texts.indices)


def with_nulls_of(answer: pa.BooleanArray, column: pa.Array) -> pa.BooleanArray:
    """Return an answer that is unknown where the column is null."""
    return pc.if_else(pc.is_valid(column), answer, pa.scalar(None, pa.bool_())) if column.null_count else answer
