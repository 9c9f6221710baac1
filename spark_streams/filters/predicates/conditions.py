"""Conditions on an event's place in its log and on its content: their tree, and its evaluation in columns.

::

    Condition = Always(bool) | OffsetRange(first, end) | AnnotationTest(field, op, operand) | MessageTest
              | AllOf(parts) | AnyOf(parts)
    Operand   = FieldOfMessage(DELIVERY_ANNOTATIONS, name) | str | int

``conjunction`` and ``disjunction`` keep a tree flat: a tree that this package's filters build is no deeper than the
parentheses of its text, which are bounded, so walking it never exhausts the stack.

Logic is SQL's, three-valued: a comparison with a missing value, or here of a text with a number, is unknown. There is
no NOT, so the parts that are true determine whether a predicate *is true*. Unknown and false need no distinction, and a
mask holds True exactly where the predicate is true. The parser moves a NOT of the text to the leaves: comparisons take
the opposite sign, and ``MessageTest.wanted`` is False.

Offsets are opaque texts. ``equal_range`` has the place of a text among them, so a comparison with an offset becomes an
``OffsetRange``, and blocks of events compare as integers.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.1, §5.2; decided ambiguities A-8, A-16, A-24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_streams.filters.intervals import numbers_where
from spark_streams.filters.predicates.typed_values import Mask, MessageTest, truth
from spark_streams.filters.tree import COMPARISONS, Operator, flattened
from spark_streams.offsets import equal_range
from spark_streams.wire.amqp.columns.typed import FieldOfMessage, TypedColumn
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP, OFFSET_KEY, SOURCE_PARTITION_KEY, TIMESTAMP_KEY
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS

NEVER: Final = 2**63 - 1
"""The bound of ``bounds`` that no event reaches; no event has this number."""

Longs = npt.NDArray[np.int64]


_REFLEXIVE: Final = frozenset({Operator.EQUALS, Operator.GREATER_THAN_EQUALS, Operator.LESS_THAN_EQUALS})


OFFSET_FIELD: Final = FieldOfMessage(DELIVERY_ANNOTATIONS, OFFSET_KEY)
TIMESTAMP_FIELD: Final = FieldOfMessage(DELIVERY_ANNOTATIONS, TIMESTAMP_KEY)
SOURCE_PARTITION_FIELD: Final = FieldOfMessage(DELIVERY_ANNOTATIONS, SOURCE_PARTITION_KEY)
FIELDS: Final = frozenset({OFFSET_FIELD, TIMESTAMP_FIELD, SOURCE_PARTITION_FIELD})
"""The delivery annotations that events have."""
_EARLIEST: Final = "@earliest"
_LATEST: Final = "@latest"

Operand: TypeAlias = FieldOfMessage | str | int
"""A field is a delivery annotation; comparisons with it are unknown for an event that lacks it. A text compares by code
points with both symbols and strings (A-16); a whole number, possibly negative (A-13), compares with timestamps as
milliseconds since the epoch (A-4)."""


@dataclass(frozen=True)
class Always:
    """A constant: true for every event, or for none."""

    value: bool


@dataclass(frozen=True)
class OffsetRange:
    """A test of the event's number: true from ``first`` on and below ``end``, which is ``NEVER`` for no end."""

    first: int
    end: int


@dataclass(frozen=True)
class AnnotationTest:
    """A comparison of the timestamp with an instant, or one that needs ``freeze``: with partition or ``@latest``."""

    field: FieldOfMessage
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


Condition: TypeAlias = Always | OffsetRange | AnnotationTest | MessageTest | AllOf | AnyOf


def compare(left: Operand, op: Operator, right: Operand) -> Condition:
    """Return the predicate ``left op right``; a constant if it is the same for all events."""
    if not isinstance(left, FieldOfMessage) or right == OFFSET_FIELD:
        if not isinstance(right, FieldOfMessage):
            comparable = type(left) is type(right) and isinstance(left, (str, int))
            return Always(comparable and bool(COMPARISONS[op].python(left, right)))
        left, op, right = right, COMPARISONS[op].mirrored, left
    if left not in FIELDS or (isinstance(right, FieldOfMessage) and right not in FIELDS):
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
        if isinstance(right, str) and right != _LATEST:
            return _offset_test(op, *equal_range(right))
    return AnnotationTest(left, op, right)


def _offset_test(op: Operator, first: int, end: int) -> Condition:
    """Return the comparison of the offset with an operand that has its place before event ``end``.

    Args:
        op: the comparison.
        first: the first event whose offset is not less than the operand.
        end: the first event whose offset is greater than the operand.
    """
    ranges = numbers_where(op, [(min(first, NEVER), min(end, NEVER))])
    return disjunction(OffsetRange(low or 0, NEVER if high is None else high + 1) for low, high in ranges)


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
        A predicate over offset, timestamp and the message's content, fit for ``mask`` and ``bounds``.
    """
    if isinstance(predicate, AllOf):
        return conjunction(freeze(part, next_offset=next_offset, partition=partition) for part in predicate.parts)
    if isinstance(predicate, AnyOf):
        return disjunction(freeze(part, next_offset=next_offset, partition=partition) for part in predicate.parts)
    if not isinstance(predicate, AnnotationTest):
        return predicate
    field, op, operand = predicate.field, predicate.op, predicate.operand
    if (field, operand) == (OFFSET_FIELD, _LATEST):
        return _offset_test(op, next_offset, next_offset)  # above all events so far, below all later ones
    if SOURCE_PARTITION_FIELD not in (field, operand):
        return predicate
    if partition is None:
        return Always(False)
    # A partition whose name is "@latest" is not the reserved word, so its comparison bypasses ``compare``.
    if field == OFFSET_FIELD:
        return _offset_test(op, *equal_range(partition))
    return compare(partition, op, partition if operand == SOURCE_PARTITION_FIELD else operand)


Columns: TypeAlias = Mapping[FieldOfMessage, TypedColumn]
_NO_COLUMNS: Final[Columns] = {}


def mask(predicate: Condition, offsets: Longs, timestamps: Longs, columns: Columns = _NO_COLUMNS) -> Mask:
    """Return which events of a block match.

    Args:
        predicate: the result of ``freeze``.
        offsets: event numbers.
        timestamps: milliseconds since the epoch, one for each event; ``NO_TIMESTAMP`` for none.
        columns: the values of ``fields_of(predicate)``, one for each event.

    Returns:
        True where the predicate is true; False where it is false or unknown.

    Raises:
        ValueError: the predicate still holds ``@latest`` or the source partition.
    """
    if isinstance(predicate, Always):
        return np.full(len(offsets), predicate.value)
    answer: Mask
    if isinstance(predicate, OffsetRange):
        answer = offsets >= predicate.first
        if predicate.end < NEVER:
            answer &= offsets < predicate.end
        return answer
    if isinstance(predicate, AnnotationTest):
        if not isinstance(predicate.operand, int):
            raise ValueError(f"{predicate} depends on the partition and on when the link is attached: freeze it first")
        answer = COMPARISONS[predicate.op].python(timestamps, predicate.operand) & (timestamps != NO_TIMESTAMP)
        return answer
    if isinstance(predicate, MessageTest):
        return truth(predicate, columns[predicate.field])
    conjunction = isinstance(predicate, AllOf)
    join = np.logical_and if conjunction else np.logical_or
    answer = mask(predicate.parts[0], offsets, timestamps, columns)
    for part in predicate.parts[1:]:
        # Hostile filters have thousands of parts: stop when no further part can change the answer.
        undecided = answer.any() if conjunction else not answer.all()
        if not undecided:
            break
        answer = join(answer, mask(part, offsets, timestamps, columns))
    return answer


def fields_of(predicate: Condition) -> frozenset[FieldOfMessage]:
    """Return the fields of a message that the predicate tests."""
    if isinstance(predicate, (AllOf, AnyOf)):
        return frozenset().union(*(fields_of(part) for part in predicate.parts))
    return frozenset({predicate.field}) if isinstance(predicate, MessageTest) else frozenset()


def by_cost(predicate: Condition) -> tuple[Condition, Condition]:
    """Return two predicates whose conjunction is the predicate: one over offset and timestamp only, and the rest."""
    parts = predicate.parts if isinstance(predicate, AllOf) else (predicate,)
    return conjunction(p for p in parts if not fields_of(p)), conjunction(p for p in parts if fields_of(p))


def bounds(predicate: Condition, at_time: Callable[[int], int] | None = None) -> tuple[int, int]:
    """Return two event numbers: no event below the first, and none from the second on, can match.

    Reading may start at the first: lower bounds on the offset raise it (A-9), and so do those on the timestamp if there
    is an ``at_time``. It may stop at the second, however long the log grows.

    Args:
        predicate: the result of ``freeze``.
        at_time: returns an event number; every event below it is earlier than the given instant, or has no timestamp.

    Returns:
        The first is 0 if nothing is known, ``NEVER`` if no event can match, and may be past the end of the log; the
        second is ``NEVER`` if nothing is known.
    """
    if isinstance(predicate, (AllOf, AnyOf)):
        firsts, ends = zip(*(bounds(part, at_time) for part in predicate.parts), strict=True)
        return (max(firsts), min(ends)) if isinstance(predicate, AllOf) else (min(firsts), max(ends))
    if isinstance(predicate, Always):
        return (0, NEVER) if predicate.value else (NEVER, 0)
    if isinstance(predicate, OffsetRange):
        return predicate.first, predicate.end
    if at_time is None or isinstance(predicate, MessageTest) or not isinstance(predicate.operand, int):
        return 0, NEVER
    if predicate.op not in (Operator.GREATER_THAN_EQUALS, Operator.GREATER_THAN, Operator.EQUALS):
        return 0, NEVER
    earliest = predicate.operand + (predicate.op is Operator.GREATER_THAN)
    return at_time(earliest) if earliest <= NEVER else NEVER, NEVER
