"""Tests of typed values in messages: the leaves that full SQL filters add to ``conditions.py``.

A test is true, false or unknown for an event. The parser moves NOT inwards, so a leaf returns either the rows where
it is true or the rows where it is false, and everything above it has two values only.

=======================  =====================================================================================
value is null            IS NULL is true; every other test is unknown
another type             ``=`` and IN false, ``<>`` true, ``< <= > >=`` false, LIKE unknown: as RabbitMQ has it
texts                    compare by code points; binary and uuid values count as texts, by their bytes
numbers                  compare exactly, whatever their types; a decimal in a filter is a double
booleans                 compare only by ``=`` and ``<>``
=======================  =====================================================================================

``x = c`` is ``x IN (c)``, and ``x <> c`` its negation.

Spec: AMQP Filter Expressions 1.0 §6; docs/specifications.md, X-1 to X-3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.filters.decimals import MAX_INT64, MIN_INT64
from spark_streams.filters.text_matching import LikePattern
from spark_streams.filters.tree import COMPARISONS, Operator
from spark_streams.wire.amqp.columns.typed import BOOLEAN, BROKEN, FLOAT, INTEGER, NULL, FieldOfMessage, TypedColumn

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Constant:
    """A constant of a filter; ``kind`` distinguishes 1 and TRUE, which are equal in Python.

    Args:
        kind: ``text``, ``number`` or ``boolean``.
        value: a str, or the bytes of a binary constant; an int or a finite float; a bool.
    """

    kind: str
    value: str | bytes | int | float | bool

    @property
    def content(self) -> bytes:
        """The bytes of a text."""
        return self.value if isinstance(self.value, bytes) else str(self.value).encode()


@dataclass(frozen=True)
class MessageTest:
    """A leaf: true for the events for which the test is true (``wanted``), or is false (not ``wanted``).

    Args:
        field: the field to test.
        op: IS_NULL, LIKE, IN, or the comparison by ``<``, ``<=``, ``>`` or ``>=``.
        operand: the pattern of LIKE; the constants, one for a comparison and none for IS_NULL.
        wanted: the answer that counts.
    """

    field: FieldOfMessage
    op: Operator
    operand: tuple[Constant, ...] | LikePattern
    wanted: bool


def truth(leaf: MessageTest, column: TypedColumn) -> Mask:
    """Return the rows for which a leaf is true.

    Args:
        leaf: the leaf.
        column: the values of ``leaf.field``.
    """
    op, operand = leaf.op, leaf.operand
    absent: Mask = column.kind == NULL
    known: Mask = ~absent & (column.kind != BROKEN)
    if isinstance(operand, LikePattern):
        return _like(column, operand, leaf.wanted)
    if op is Operator.IS_NULL:
        return absent if leaf.wanted else known
    true = _is_in(column, operand) if op is Operator.IN else _compares(column, op, operand[0])
    return true if leaf.wanted else known & ~true


def _compares(column: TypedColumn, op: Operator, constant: Constant) -> Mask:
    value = constant.value
    if constant.kind == "text":  # the order of UTF-8 bytes is that of code points
        return _mask(COMPARISONS[op].arrow(column.raw, pa.scalar(constant.content, pa.binary())))
    if constant.kind == "boolean":
        return np.zeros(column.kind.size, np.bool_)
    assert isinstance(value, (int, float))
    answer: Mask = (column.kind == INTEGER) & _integers(column.integers, op, value)
    floats = column.kind == FLOAT
    if floats.any():
        answer |= floats & _floats(column.floats, op, value)
    for row, number in column.numbers.items():
        answer[row] = COMPARISONS[op].python(number, value)  # Python compares numbers of all kinds exactly
    return answer


_BELOW: Final = (Operator.LESS_THAN, Operator.LESS_THAN_EQUALS)


def _integers(numbers: NDArray[np.int64], op: Operator, value: int | float) -> Mask:
    """Compare whole numbers with any number, exactly."""
    bound = math.ceil(value) if op in (Operator.LESS_THAN, Operator.GREATER_THAN_EQUALS) else math.floor(value)
    if bound > MAX_INT64 or bound < MIN_INT64:
        return np.full(numbers.size, (bound > 0) == (op in _BELOW))
    answer: Mask = COMPARISONS[op].python(numbers, bound)
    return answer


def _floats(numbers: NDArray[np.float64], op: Operator, value: int | float) -> Mask:
    """Compare doubles with any number, exactly: a whole number may lie between two doubles."""
    nearest = float(value)
    beyond = Fraction(nearest) - Fraction(value)
    if beyond == 0:
        answer: Mask = COMPARISONS[op].python(numbers, nearest)
        return answer
    below = op in _BELOW
    if beyond > 0:
        return numbers < nearest if below else numbers >= nearest
    return numbers <= nearest if below else numbers > nearest


def _is_in(column: TypedColumn, constants: Sequence[Constant]) -> Mask:
    answer = np.zeros(column.kind.size, np.bool_)
    texts = [each.content for each in constants if each.kind == "text"]
    if len(texts) > _FEW_TEXTS:
        raw = pa.array(texts, pa.binary())
        answer |= _mask(pc.is_in(column.raw, value_set=raw)) & column.is_text
    else:
        for text in texts:
            answer |= column.equals(text)
    numbers = [each.value for each in constants if isinstance(each.value, (int, float)) and each.kind == "number"]
    if numbers:
        whole = [int(n) for n in numbers if n == int(n) and MIN_INT64 <= int(n) <= MAX_INT64]
        answer |= (column.kind == INTEGER) & _among(column.integers, whole)
        floats = column.kind == FLOAT
        if floats.any():
            exact = [float(n) for n in numbers if Fraction(float(n)) == Fraction(n)]
            answer |= floats & _among(column.floats, exact)
        among = set(numbers)
        for row, number in column.numbers.items():
            answer[row] = number in among
    for each in constants:
        if each.kind == "boolean":
            answer |= (column.kind == BOOLEAN) & (column.integers == each.value)
    return answer


def _among(column: NDArray[Any], numbers: Sequence[int | float]) -> Mask:
    answer: Mask = column == numbers[0] if len(numbers) == 1 else np.isin(column, np.array(numbers, column.dtype))
    return answer


_FEW_TEXTS: Final = 8
"""Up to this many texts compare one by one, without a copy of their bytes."""


def _like(column: TypedColumn, pattern: LikePattern, wanted: bool) -> Mask:
    if pattern.test is pc.equal:
        like = column.equals(pattern.text.encode())
    elif pattern.test is pc.match_substring_regex:
        # For bytes that are no UTF-8 both LIKE and NOT LIKE are unknown.
        return _mask(pc.equal(pc.match_substring_regex(column.texts, pattern.text), wanted))
    else:
        like = _mask(pattern.test(column.raw, pattern.text))
    return like if wanted else column.is_text & ~like


def _mask(answer: pa.BooleanArray) -> Mask:
    return np.asarray(pc.fill_null(answer, False)).astype(np.bool_)
