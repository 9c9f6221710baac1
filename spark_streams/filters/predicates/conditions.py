"""Conditions on an event's place in its log and on its content: their tree, and its evaluation in columns.

::

    Condition = Always(bool) | AnnotationTest(field, op, operand) | MessageTest | AllOf(parts) | AnyOf(parts)
    Operand   = Field(name) | str | int | Latest() | EndOfLog(next_offset)

``conjunction`` and ``disjunction`` keep a tree flat: a tree that this package's filters build is no deeper than the
parentheses of its text, which are bounded, so walking it never exhausts the stack.

Logic is SQL's, three-valued: a comparison with a missing value, or here of a text with a number, is unknown. There is
no NOT, so the parts that are true determine whether a predicate *is true*. Unknown and false need no distinction, and a
mask holds True exactly where the predicate is true. The parser moves a NOT of the text to the leaves: comparisons take
the opposite sign, and ``MessageTest.wanted`` is False.

Offsets are opaque texts. An ``OffsetOrder`` turns a text into the event number at its place in the order, so blocks
of events compare as integers.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.1, §5.2; decided ambiguities A-8, A-16, A-24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_streams.filters.evaluate_one import COMPARISONS
from spark_streams.filters.predicates.typed_values import MessageTest, truth
from spark_streams.filters.tree import MIRRORED, Operator, flattened
from spark_streams.wire.amqp.columns.typed import FieldOfMessage, TypedColumn
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP, OFFSET_KEY, SOURCE_PARTITION_KEY, TIMESTAMP_KEY

NEVER: Final = 2**63 - 1
"""The result of ``seek`` when no event can match; no event has this number."""

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


class OffsetOrder(Protocol):
    """The places of texts among the offsets of a log, in lexicographic order."""

    def lower(self, text: str) -> int:
        """Return the smallest event number whose offset is >= ``text``."""

    def upper(self, text: str) -> int:
        """Return the smallest event number whose offset is > ``text``."""


_REFLEXIVE: Final = frozenset({Operator.EQUALS, Operator.GREATER_THAN_EQUALS, Operator.LESS_THAN_EQUALS})
_FROM_EQUAL: Final = (Operator.EQUALS, Operator.GREATER_THAN_EQUALS)
_TO_EQUAL: Final = (Operator.EQUALS, Operator.LESS_THAN_EQUALS)


@dataclass(frozen=True)
class Field:
    """A delivery annotation by its full name. Comparisons with it are unknown for an event that lacks it."""

    name: str


@dataclass(frozen=True)
class Latest:
    """``@latest`` compared with the offset; ``freeze`` makes it ``EndOfLog`` when the link is attached."""


@dataclass(frozen=True)
class EndOfLog:
    """``@latest`` at one moment: above every event before ``next_offset``, below that event and all later ones."""

    next_offset: int


OFFSET_FIELD: Final = Field(OFFSET_KEY)
TIMESTAMP_FIELD: Final = Field(TIMESTAMP_KEY)
SOURCE_PARTITION_FIELD: Final = Field(SOURCE_PARTITION_KEY)
_FIELDS: Final = frozenset({OFFSET_FIELD, TIMESTAMP_FIELD, SOURCE_PARTITION_FIELD})
_EARLIEST: Final = "@earliest"
_LATEST: Final = "@latest"

Operand: TypeAlias = Field | str | int | Latest | EndOfLog
"""A text compares by code points with both symbols and strings (A-16); a whole number, possibly negative (A-13),
compares with timestamps as milliseconds since the epoch (A-4)."""


@dataclass(frozen=True)
class Always:
    """A constant: true for every event, or for none."""

    value: bool


@dataclass(frozen=True)
class AnnotationTest:
    """A comparison of a field with an operand; ``compare`` builds it only if the result depends on the event."""

    field: Field
    op: Operator
    operand: Operand


@dataclass(frozen=True)
class AllOf:
    """A conjunction: true where all parts are true; ``conjunction`` builds it."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """A disjunction: true where at least one part is true; ``disjunction`` builds it."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Always | AnnotationTest | MessageTest | AllOf | AnyOf


def compare(left: Operand, op: Operator, right: Operand) -> Condition:
    """Return the predicate ``left op right``; a constant if it is the same for all events."""
    if not isinstance(left, Field):
        if not isinstance(right, Field):
            comparable = type(left) is type(right) and isinstance(left, (str, int))
            return Always(comparable and bool(COMPARISONS[op](left, right)))
        left, op, right = right, MIRRORED.get(op, op), left
    if left not in _FIELDS or (isinstance(right, Field) and right not in _FIELDS):
        return Always(False)  # no event carries it: unknown
    if left == TIMESTAMP_FIELD:
        if left == right:  # true for every event that has the field
            return AnnotationTest(left, Operator.GREATER_THAN, NO_TIMESTAMP) if op in _REFLEXIVE else Always(False)
        return AnnotationTest(left, op, right) if isinstance(right, int) else Always(False)
    if isinstance(right, int) or right == TIMESTAMP_FIELD:
        return Always(False)  # a text and a number: unknown
    if left == OFFSET_FIELD:
        if right == OFFSET_FIELD:
            return Always(op in _REFLEXIVE)
        if right == _EARLIEST:
            return Always(op in (Operator.GREATER_THAN, Operator.GREATER_THAN_EQUALS, Operator.NOT_EQUALS))
        if right == _LATEST:
            return AnnotationTest(left, op, Latest())
    return AnnotationTest(left, op, right)


def conjunction(parts: Iterable[Condition]) -> Condition:
    """Return the conjunction; of no parts it is true."""
    return _joined(AllOf, parts, neutral=True)


def disjunction(parts: Iterable[Condition]) -> Condition:
    """Return the disjunction; of no parts it is false."""
    return _joined(AnyOf, parts, neutral=False)


def _joined(kind: type[AllOf] | type[AnyOf], parts: Iterable[Condition], *, neutral: bool) -> Condition:
    """Return the join of the distinct parts; ``neutral`` is the value of a part that does not change the result."""
    kept: dict[Condition, None] = {}
    for part in parts:
        if part == Always(not neutral):
            return part
        kept.update(dict.fromkeys(flattened(kind, (part,))))
    kept.pop(Always(neutral), None)
    if len(kept) == 1:
        return next(iter(kept))
    return kind(tuple(kept)) if kept else Always(neutral)


def freeze(predicate: Condition, *, next_offset: int, partition: str | None = None) -> Condition:
    """Return a predicate as it applies to one partition at the moment a link is attached to it.

    Args:
        predicate: the predicate of the link's filters.
        next_offset: the number of the partition's next event; ``@latest`` stays there from now on (A-8).
        partition: the source partition that deliveries carry, or None if they carry none.

    Returns:
        A predicate over offset, timestamp and the message's content, fit for ``mask`` and ``seek``.
    """
    if isinstance(predicate, AllOf):
        return conjunction(freeze(part, next_offset=next_offset, partition=partition) for part in predicate.parts)
    if isinstance(predicate, AnyOf):
        return disjunction(freeze(part, next_offset=next_offset, partition=partition) for part in predicate.parts)
    if not isinstance(predicate, AnnotationTest):
        return predicate
    field, op, operand = predicate.field, predicate.op, predicate.operand
    if isinstance(operand, Latest):
        return AnnotationTest(field, op, EndOfLog(next_offset))
    if SOURCE_PARTITION_FIELD not in (field, operand):
        return predicate
    if partition is None:
        return Always(False)
    # A partition whose name is "@latest" is not the reserved word, so its comparison bypasses ``compare``.
    if field == OFFSET_FIELD:
        return AnnotationTest(OFFSET_FIELD, op, partition)
    if operand == OFFSET_FIELD:
        return AnnotationTest(OFFSET_FIELD, MIRRORED.get(op, op), partition)
    return compare(partition, op, partition if operand == SOURCE_PARTITION_FIELD else operand)


Columns: TypeAlias = Mapping[FieldOfMessage, TypedColumn]
_NO_COLUMNS: Final[Columns] = {}


def mask(
    predicate: Condition, offsets: Longs, timestamps: Longs, order: OffsetOrder, columns: Columns = _NO_COLUMNS
) -> Mask:
    """Return which events of a block match.

    Args:
        predicate: the result of ``freeze``.
        offsets: event numbers.
        timestamps: milliseconds since the epoch, one for each event; ``NO_TIMESTAMP`` for none.
        order: the places of offset texts among the event numbers.
        columns: the values of ``fields_of(predicate)``, one for each event.

    Returns:
        True where the predicate is true; False where it is false or unknown.

    Raises:
        ValueError: the predicate still holds ``@latest`` or the source partition.
    """
    if isinstance(predicate, Always):
        return np.full(len(offsets), predicate.value)
    if isinstance(predicate, AnnotationTest):
        return _mask_of_comparison(predicate, offsets, timestamps, order)
    if isinstance(predicate, MessageTest):
        return truth(predicate, columns[predicate.field])
    conjunction = isinstance(predicate, AllOf)
    matches = np.full(len(offsets), conjunction)
    for part in predicate.parts:
        # Hostile filters have thousands of parts: stop when no further part can change the answer.
        if conjunction:
            if not matches.any():
                break
            matches &= mask(part, offsets, timestamps, order, columns)
        else:
            if matches.all():
                break
            matches |= mask(part, offsets, timestamps, order, columns)
    return matches


def fields_of(predicate: Condition) -> frozenset[FieldOfMessage]:
    """Return the fields of a message that the predicate tests."""
    if isinstance(predicate, (AllOf, AnyOf)):
        return frozenset().union(*(fields_of(part) for part in predicate.parts))
    return frozenset({predicate.field}) if isinstance(predicate, MessageTest) else frozenset()


def by_cost(predicate: Condition) -> tuple[Condition, Condition]:
    """Return two predicates whose conjunction is the predicate: one over offset and timestamp only, and the rest."""
    parts = predicate.parts if isinstance(predicate, AllOf) else (predicate,)
    return conjunction(p for p in parts if not fields_of(p)), conjunction(p for p in parts if fields_of(p))


def seek(predicate: Condition, order: OffsetOrder, at_time: Callable[[int], int] | None = None) -> int:
    """Return an event number below which no event can match; reading may start there.

    Lower bounds on the offset raise it (A-9), and so do those on the timestamp if there is an ``at_time``.

    Args:
        predicate: the result of ``freeze``.
        order: the places of offset texts among the event numbers.
        at_time: returns an event number; every event below it is earlier than the given instant, or has no timestamp.

    Returns:
        0 if nothing is known, ``NEVER`` if no event can match; the number may be past the end of the log.
    """
    if isinstance(predicate, Always):
        return 0 if predicate.value else NEVER
    if isinstance(predicate, AllOf):
        return max(seek(part, order, at_time) for part in predicate.parts)
    if isinstance(predicate, AnyOf):
        return min(seek(part, order, at_time) for part in predicate.parts)
    if isinstance(predicate, MessageTest) or isinstance(predicate.operand, (Field, Latest)):
        return 0
    if not isinstance(predicate.operand, int):
        return _numbers(predicate.op, predicate.operand, order)[0]
    op = predicate.op
    if at_time is None or op not in (Operator.GREATER_THAN_EQUALS, Operator.GREATER_THAN, Operator.EQUALS):
        return 0
    earliest = predicate.operand + (op is Operator.GREATER_THAN)
    return at_time(earliest) if earliest <= NEVER else NEVER


def end_of_matches(predicate: Condition, order: OffsetOrder) -> int:
    """Return an event number from which on no event can match, however long the log grows; ``NEVER`` if unknown.

    Args:
        predicate: the result of ``freeze``.
        order: the places of offset texts among the event numbers.
    """
    if isinstance(predicate, Always):
        return NEVER if predicate.value else 0
    if isinstance(predicate, AllOf):
        return min(end_of_matches(part, order) for part in predicate.parts)
    if isinstance(predicate, AnyOf):
        return max(end_of_matches(part, order) for part in predicate.parts)
    if isinstance(predicate, MessageTest) or isinstance(predicate.operand, (Field, Latest, int)):
        return NEVER
    return _numbers(predicate.op, predicate.operand, order)[1]


def _mask_of_comparison(comparison: AnnotationTest, offsets: Longs, timestamps: Longs, order: OffsetOrder) -> Mask:
    op, operand = comparison.op, comparison.operand
    answer: Mask
    if comparison.field == TIMESTAMP_FIELD and isinstance(operand, int):
        answer = COMPARISONS[op](timestamps, operand) & (timestamps != NO_TIMESTAMP)
        return answer
    if comparison.field != OFFSET_FIELD or isinstance(operand, (Field, Latest, int)):
        raise ValueError(f"{comparison} depends on the partition and on when the link is attached: freeze it first")
    negated = op is Operator.NOT_EQUALS
    first, end = _numbers(Operator.EQUALS if negated else op, operand, order)
    answer = offsets >= first if first else offsets < end
    if first and end < NEVER:
        answer &= offsets < end
    return ~answer if negated else answer


def _numbers(op: Operator, operand: str | EndOfLog, order: OffsetOrder) -> tuple[int, int]:
    """Return the first event number for which a comparison with the offset may be true, and the one after the last."""
    if isinstance(operand, EndOfLog):
        first = end = operand.next_offset
    else:
        first, end = order.lower(operand), order.upper(operand)
    # The offset equals the operand for first <= number < end: for one number, or none.
    low = end if op is Operator.GREATER_THAN else first if op in _FROM_EQUAL else 0
    high = first if op is Operator.LESS_THAN else end if op in _TO_EQUAL else NEVER
    return min(low, NEVER), min(high, NEVER)
