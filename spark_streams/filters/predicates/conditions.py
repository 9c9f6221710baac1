"""Conditions on an event's place in its log and what is inside it: the tree, and how it is evaluated in columns.

::

    Condition = Always(bool) | AnnotationTest(field, op, operand) | MessageTest | AllOf(parts) | AnyOf(parts)
    Operand   = Field(name) | Text(str) | Integer(int) | Latest() | EndOfLog(next_offset)

``conjunction`` and ``disjunction`` keep a tree flat: of what the filters of this package build, none is deeper than the
parentheses of its text, which are bounded, so walking it never exhausts the stack.

Logic is SQL's, three-valued: a comparison with a missing value, or here of a text with a number, is unknown. There is
no NOT, so whether a predicate *is true* follows from which of its parts are true; unknown and false need not be told
apart, and a mask holds True exactly where the predicate is true. Where a filter's text says NOT, its parser moves it to
the leaves: comparisons take the opposite sign, and a ``MessageTest`` says which of both is asked for.

Offsets are opaque texts. An ``OffsetOrder`` turns a text into the event number where it would stand, so that a block of
events is compared as integers.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.1, §5.2; decided ambiguities A-8, A-16, A-24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_streams.filters.predicates.typed_values import Comparison, MessageTest, truth
from spark_streams.filters.tree import flattened
from spark_streams.wire.amqp.columns.typed import FieldOfMessage, TypedColumn
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP, OFFSET_KEY, SOURCE_PARTITION_KEY, TIMESTAMP_KEY

NEVER: Final = 2**63 - 1
"""What ``seek`` answers when no event at all can match; no event has this number."""

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


class OffsetOrder(Protocol):
    """Where texts stand among the offsets of a log, in lexicographic order."""

    def lower(self, text: str) -> int:
        """Return the smallest event number whose offset is >= ``text``."""

    def upper(self, text: str) -> int:
        """Return the smallest event number whose offset is > ``text``."""


_REFLEXIVE: Final = frozenset({Comparison.EQ, Comparison.GE, Comparison.LE})


@dataclass(frozen=True)
class Field:
    """A delivery annotation by its full name. An event that lacks it has an unknown value there."""

    name: str


@dataclass(frozen=True)
class Text:
    """A text; compared by code points with symbols and strings alike (A-16)."""

    value: str


@dataclass(frozen=True)
class Integer:
    """A whole number; compared with timestamps as milliseconds since the epoch (A-4), possibly negative (A-13)."""

    value: int


@dataclass(frozen=True)
class Latest:
    """``@latest`` beside the offset, before it is known when the link is attached; ``freeze`` makes it ``EndOfLog``."""


@dataclass(frozen=True)
class EndOfLog:
    """``@latest`` as it was at one moment: above every event before ``next_offset``, below that one and all later."""

    next_offset: int


OFFSET_FIELD: Final = Field(OFFSET_KEY)
TIMESTAMP_FIELD: Final = Field(TIMESTAMP_KEY)
SOURCE_PARTITION_FIELD: Final = Field(SOURCE_PARTITION_KEY)
_FIELDS: Final = frozenset({OFFSET_FIELD, TIMESTAMP_FIELD, SOURCE_PARTITION_FIELD})
_EARLIEST: Final = Text("@earliest")
_LATEST: Final = Text("@latest")

Operand: TypeAlias = Field | Text | Integer | Latest | EndOfLog


@dataclass(frozen=True)
class Always:
    """True for every event, or for none."""

    value: bool


@dataclass(frozen=True)
class AnnotationTest:
    """A field against an operand; built by ``compare``, which leaves only what depends on the event."""

    field: Field
    op: Comparison
    operand: Operand


@dataclass(frozen=True)
class AllOf:
    """True where all parts are; built by ``conjunction``."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """True where at least one part is; built by ``disjunction``."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Always | AnnotationTest | MessageTest | AllOf | AnyOf


def compare(left: Operand, op: Comparison, right: Operand) -> Condition:
    """Return the predicate ``left op right``, decided at once where no event can change it."""
    if not isinstance(left, Field):
        if not isinstance(right, Field):
            comparable = type(left) is type(right) and isinstance(left, (Text, Integer))
            return Always(comparable and bool(op.of(left.value, right.value)))  # type: ignore[union-attr]
        left, op, right = right, op.mirrored(), left
    if left not in _FIELDS or (isinstance(right, Field) and right not in _FIELDS):
        return Always(False)  # no event carries it: unknown
    if left == TIMESTAMP_FIELD:
        if left == right:  # true of every event that has one
            return AnnotationTest(left, Comparison.GT, Integer(NO_TIMESTAMP)) if op in _REFLEXIVE else Always(False)
        return AnnotationTest(left, op, right) if isinstance(right, Integer) else Always(False)
    if isinstance(right, Integer) or right == TIMESTAMP_FIELD:
        return Always(False)  # a text and a number: unknown
    if left == OFFSET_FIELD:
        if right == OFFSET_FIELD:
            return Always(op in _REFLEXIVE)
        if right == _EARLIEST:
            return Always(op in (Comparison.GT, Comparison.GE, Comparison.NE))
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
    """Return the join of parts, each of them once; ``neutral`` is the value of a part that changes nothing."""
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
    """Fix what a predicate says about one partition at the moment a link is attached to it.

    Args:
        predicate: what the filters say.
        next_offset: the number that the partition's next event will get; ``@latest`` stays there from now on (A-8).
        partition: the identifier that deliveries carry as source partition, or None where they carry none.

    Returns:
        A predicate over offset, timestamp and what is inside the message, fit for ``mask`` and ``seek``.
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
    here = Text(partition)
    # A partition that is called "@latest" is not the reserved word: it goes past ``compare``.
    if field == OFFSET_FIELD:
        return AnnotationTest(OFFSET_FIELD, op, here)
    if operand == OFFSET_FIELD:
        return AnnotationTest(OFFSET_FIELD, op.mirrored(), here)
    return compare(here, op, here if operand == SOURCE_PARTITION_FIELD else operand)


Columns: TypeAlias = Mapping[FieldOfMessage, TypedColumn]
_NO_COLUMNS: Final[Columns] = {}


def mask(
    predicate: Condition, offsets: Longs, timestamps: Longs, order: OffsetOrder, columns: Columns = _NO_COLUMNS
) -> Mask:
    """Say which events of a block match.

    Args:
        predicate: as ``freeze`` returned it.
        offsets: event numbers.
        timestamps: milliseconds since the epoch, one for each event; ``NO_TIMESTAMP`` for none.
        order: where offset texts stand among the event numbers.
        columns: the values of ``fields_of(predicate)``, one for each event.

    Returns:
        True where the predicate is true; False where it is false or unknown.

    Raises:
        ValueError: the predicate still holds ``@latest`` or the source partition; nothing was changed.
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
        # Hostile filters have thousands of parts: stop as soon as no further part can change the answer.
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
    """Return which fields of a message decide about it."""
    if isinstance(predicate, (AllOf, AnyOf)):
        return frozenset().union(*(fields_of(part) for part in predicate.parts))
    return frozenset({predicate.field}) if isinstance(predicate, MessageTest) else frozenset()


def by_cost(predicate: Condition) -> tuple[Condition, Condition]:
    """Return two predicates that say the same together: over offset and timestamp only, and with what is left."""
    parts = predicate.parts if isinstance(predicate, AllOf) else (predicate,)
    return conjunction(p for p in parts if not fields_of(p)), conjunction(p for p in parts if fields_of(p))


def seek(predicate: Condition, order: OffsetOrder, at_time: Callable[[int], int] | None = None) -> int:
    """Return an event number below which no event can match: where reading may start.

    Lower bounds on the offset move it (A-9), and those on the timestamp where ``at_time`` is there.

    Args:
        predicate: as ``freeze`` returned it.
        order: where offset texts stand among the event numbers.
        at_time: returns an event number below which every event is earlier than an instant, or has none.

    Returns:
        0 where nothing is known, ``NEVER`` where no event can match; may be past the end of the log.
    """
    if isinstance(predicate, Always):
        return 0 if predicate.value else NEVER
    if isinstance(predicate, AllOf):
        return max(seek(part, order, at_time) for part in predicate.parts)
    if isinstance(predicate, AnyOf):
        return min(seek(part, order, at_time) for part in predicate.parts)
    if isinstance(predicate, MessageTest) or isinstance(predicate.operand, (Field, Latest)):
        return 0
    op = predicate.op
    if isinstance(predicate.operand, Integer):
        if at_time is None or op not in (Comparison.GE, Comparison.GT, Comparison.EQ):
            return 0
        earliest = predicate.operand.value + (op is Comparison.GT)
        return at_time(earliest) if earliest <= NEVER else NEVER
    first, end = _place(predicate.operand, order)
    if op in (Comparison.GE, Comparison.EQ):
        return min(first, NEVER)
    return min(end, NEVER) if op is Comparison.GT else 0


def end_of_matches(predicate: Condition, order: OffsetOrder) -> int:
    """Return an event number from which on no event can match, however long the log grows; ``NEVER`` where unknown.

    Args:
        predicate: as ``freeze`` returned it.
        order: where offset texts stand among the event numbers.
    """
    if isinstance(predicate, Always):
        return NEVER if predicate.value else 0
    if isinstance(predicate, AllOf):
        return min(end_of_matches(part, order) for part in predicate.parts)
    if isinstance(predicate, AnyOf):
        return max(end_of_matches(part, order) for part in predicate.parts)
    if isinstance(predicate, MessageTest) or isinstance(predicate.operand, (Field, Latest, Integer)):
        return NEVER
    first, end = _place(predicate.operand, order)
    if predicate.op is Comparison.LT:
        return min(first, NEVER)
    return min(end, NEVER) if predicate.op in (Comparison.LE, Comparison.EQ) else NEVER


def _mask_of_comparison(comparison: AnnotationTest, offsets: Longs, timestamps: Longs, order: OffsetOrder) -> Mask:
    op, operand = comparison.op, comparison.operand
    answer: Mask
    if comparison.field == TIMESTAMP_FIELD and isinstance(operand, Integer):
        answer = op.of(timestamps, operand.value) & (timestamps != NO_TIMESTAMP)
        return answer
    if comparison.field != OFFSET_FIELD or isinstance(operand, (Field, Latest)):
        raise ValueError(f"{comparison} depends on the partition and on when the link is attached: freeze it first")
    # Offsets are compared as [first, end), the event numbers whose offset equals the operand: one, or none.
    first, end = (min(number, NEVER) for number in _place(operand, order))
    if op is Comparison.GE:
        answer = offsets >= first
    elif op is Comparison.GT:
        answer = offsets >= end
    elif op is Comparison.LT:
        answer = offsets < first
    elif op is Comparison.LE:
        answer = offsets < end
    elif op is Comparison.EQ:
        answer = (offsets >= first) & (offsets < end)
    else:
        answer = (offsets < first) | (offsets >= end)
    return answer


def _place(operand: Operand, order: OffsetOrder) -> tuple[int, int]:
    if isinstance(operand, EndOfLog):
        return operand.next_offset, operand.next_offset
    assert isinstance(operand, Text)  # ``compare`` lets nothing else stand beside the offset
    return order.lower(operand.value), order.upper(operand.value)
