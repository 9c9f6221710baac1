"""The filter language's tree: predicates about one event, joined by AND, OR and NOT.

::

    Expression = Predicate(reference, operator, values, type) | And(parts) | Or(parts) | Not(operand)

Nodes are frozen and have no behaviour: visitors elsewhere process the tree. ``all_of``, ``any_of`` and ``negate``
build the joins; AND and OR are associative, so they hold any number of parts, and never a part of their own kind.

A predicate is true, false or unknown of an event, as in SQL; an event passes when the whole expression is true.

``without_not`` moves negations down to the predicates, which have opposites. De Morgan's laws and opposite operators
are exact in three-valued logic: the result is true, false and unknown of the same events. ``NOT (x BETWEEN a AND b)``
becomes ``x < a OR x > b``. Only CONTAINS ALL has no opposite: its NOT stays, so ``Not`` occurs nowhere else. A target
therefore does not depend on what its peer's NOT does with a missing value or with types that do not compare (Z-1).

Spec: Pulsar proposal "Support filtering messages with flexible expressions"; docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow.compute as pc


class ReferenceKind(enum.IntEnum):
    """The kinds of parts of an event; the first three have the proposal's numbers, the others are ours."""

    PROPERTY = 0
    EVENT_TIME = 1
    PUBLISH_TIME = 2
    KEY = 100
    PARTITION = 101
    OFFSET = 102
    BODY_SIZE = 103


@dataclass(frozen=True)
class Reference:
    """One part of an event.

    Args:
        kind: the kind of the part.
        name: the property's name; None for every other kind.
    """

    kind: ReferenceKind
    name: str | None = None


EVENT_TIME: Final = Reference(ReferenceKind.EVENT_TIME)
"""The time at which the event happened, in ms since the epoch, possibly negative: AMQP's creation-time; a feed's
``timestamp``."""
PUBLISH_TIME: Final = Reference(ReferenceKind.PUBLISH_TIME)
"""Column ``timestamp``: the time at which the event was added to the log, in ms since the epoch, possibly negative."""
KEY: Final = Reference(ReferenceKind.KEY)
"""Column ``key``, a string."""
PARTITION: Final = Reference(ReferenceKind.PARTITION)
"""Column ``partition``, a string."""
OFFSET: Final = Reference(ReferenceKind.OFFSET)
"""Column ``offset``, an opaque string; RabbitMQ's are 20 decimal digits, so numbers compare with them too."""
BODY_SIZE: Final = Reference(ReferenceKind.BODY_SIZE)
"""Length of column ``value`` in bytes."""


def property_of(name: str) -> Reference:
    """Return the reference to a property.

    Args:
        name: ``application_properties.<name>``, ``properties.<field>``, ``message_annotations.<name>`` have a section;
            any other name is an application property. In a feed it is a member of the event's JSON object, or,
            when it begins with ``/``, a JSON pointer into it.
    """
    return Reference(ReferenceKind.PROPERTY, name)


SECTIONS: Final = frozenset({"properties", "application_properties", "message_annotations"})
"""The sections of a message that the names of properties may begin with."""


def place_of(reference: Reference) -> tuple[str, str] | None:
    """Return the section and the name within it of a message's property; None for any other reference."""
    return section_and_name(reference.name or "") if reference.kind is ReferenceKind.PROPERTY else None


def section_and_name(name: str) -> tuple[str, str]:
    """Return the section that the name of a property means, and the name within it."""
    section, dot, rest = name.partition(".")
    return (section, rest) if dot and section in SECTIONS else ("application_properties", name)


class Operator(enum.IntEnum):
    """A predicate's operator, by its number on the wire; the last two have none of their own there (E-1)."""

    EQUALS = 0
    NOT_EQUALS = 1
    IN = 2
    NOT_IN = 3
    GREATER_THAN = 4
    GREATER_THAN_EQUALS = 5
    LESS_THAN = 6
    LESS_THAN_EQUALS = 7
    LIKE = 8
    NOT_LIKE = 9
    CONTAINS_ALL = 10
    CONTAINS_ANY = 11
    CONTAINS_NONE = 12
    BETWEEN = 13
    IS_NULL = -1
    IS_NOT_NULL = -2


LISTS: Final = frozenset(
    {Operator.IN, Operator.NOT_IN, Operator.CONTAINS_ALL, Operator.CONTAINS_ANY, Operator.CONTAINS_NONE}
)
"""The operators that take any number of values, at least one."""


class ValueType(enum.IntEnum):
    """The type of a predicate's values: they compare by code points, as whole numbers, or as decimal numbers."""

    STRING = 0
    LONG = 1
    DOUBLE = 2


Value: TypeAlias = str | int | float
"""A str for STRING, an int within 64 bits for LONG, a finite float for DOUBLE, compared as its shortest decimal."""


@dataclass(frozen=True)
class Predicate:
    """One test of one part of an event.

    Args:
        reference: the part.
        operator: the test.
        values: the values to test against: none for IS_NULL and IS_NOT_NULL, two for BETWEEN, one or more for IN,
            NOT_IN and CONTAINS_*, else one.
        type: the type of the values; None for IS_NULL and IS_NOT_NULL.
    """

    reference: Reference
    operator: Operator
    values: tuple[Value, ...] = ()
    type: ValueType | None = None


@dataclass(frozen=True)
class And:
    """A join of two or more parts, true when all of them are true, false when one is false; ``all_of`` builds it."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Or:
    """A join of two or more parts, true when one of them is true, false when all are false; ``any_of`` builds it."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Not:
    """A negation: true when the operand is false, false when it is true; ``negate`` builds it."""

    operand: Expression


Expression: TypeAlias = Predicate | And | Or | Not


def all_of(parts: Iterable[Expression]) -> Expression:
    """Return the conjunction of one or more parts; it joins the parts of ANDs among them.

    Raises:
        ValueError: ``parts`` is empty.
    """
    return _joined(And, parts)


def any_of(parts: Iterable[Expression]) -> Expression:
    """Return the disjunction of one or more parts; it joins the parts of ORs among them.

    Raises:
        ValueError: ``parts`` is empty.
    """
    return _joined(Or, parts)


def negate(operand: Expression) -> Expression:
    """Return the negation."""
    return Not(operand)


def predicates(expression: Expression) -> Iterator[Predicate]:
    """Yield the predicates of an expression, in its order."""
    if isinstance(expression, Predicate):
        yield expression
    elif isinstance(expression, Not):
        yield from predicates(expression.operand)
    else:
        for part in expression.parts:
            yield from predicates(part)


def references(expression: Expression) -> Iterator[Reference]:
    """Yield the references of an expression, in its order, with repetitions."""
    return (each.reference for each in predicates(expression))


def flattened(kind: type[Any], parts: Iterable[Any]) -> list[Any]:
    """Return the parts of a join, each part that is a join of the same kind replaced by its own parts.

    Args:
        kind: a class whose objects have ``parts``.
        parts: the parts of the join.
    """
    return [each for part in parts for each in (part.parts if isinstance(part, kind) else (part,))]


def _joined(kind: type[And] | type[Or], parts: Iterable[Expression]) -> Expression:
    flat = tuple(flattened(kind, parts))
    if not flat:
        raise ValueError("expected one or more expressions")
    return flat[0] if len(flat) == 1 else kind(flat)


_PAIRS: Final = (
    (Operator.EQUALS, Operator.NOT_EQUALS),
    (Operator.IN, Operator.NOT_IN),
    (Operator.GREATER_THAN, Operator.LESS_THAN_EQUALS),
    (Operator.GREATER_THAN_EQUALS, Operator.LESS_THAN),
    (Operator.LIKE, Operator.NOT_LIKE),
    (Operator.CONTAINS_ANY, Operator.CONTAINS_NONE),
    (Operator.IS_NULL, Operator.IS_NOT_NULL),
)
OPPOSITES: Final = {**dict(_PAIRS), **{right: left for left, right in _PAIRS}}
"""The operator that is true where the key is false, false where it is true, and unknown where it is unknown."""
NEGATIVE: Final = frozenset({Operator.NOT_IN, Operator.NOT_LIKE, Operator.CONTAINS_NONE})
"""The operators that are evaluated as NOT of their opposites."""


class Comparison(NamedTuple):
    """The forms of a comparison with one value.

    Args:
        sign: its sign in texts.
        mirrored: the operator that gives the same answer with the two sides exchanged.
        python: Python's function; of numpy's arrays, element by element.
        arrow: Arrow's function.
    """

    sign: str
    mirrored: Operator
    python: Callable[[Any, Any], Any]
    arrow: Callable[[Any, Any], Any]


COMPARISONS: Final = {
    Operator.EQUALS: Comparison("=", Operator.EQUALS, operator.eq, pc.equal),
    Operator.NOT_EQUALS: Comparison("<>", Operator.NOT_EQUALS, operator.ne, pc.not_equal),
    Operator.GREATER_THAN: Comparison(">", Operator.LESS_THAN, operator.gt, pc.greater),
    Operator.GREATER_THAN_EQUALS: Comparison(">=", Operator.LESS_THAN_EQUALS, operator.ge, pc.greater_equal),
    Operator.LESS_THAN: Comparison("<", Operator.GREATER_THAN, operator.lt, pc.less),
    Operator.LESS_THAN_EQUALS: Comparison("<=", Operator.GREATER_THAN_EQUALS, operator.le, pc.less_equal),
}
"""The operators that compare with one value."""


def without_not(expression: Expression) -> Expression:
    """Return an equivalent expression that has ``Not`` only around CONTAINS ALL.

    Args:
        expression: within the limits of the language, which bound its depth (E-17).
    """
    return _normal(expression, negated=False)


def _normal(expression: Expression, *, negated: bool) -> Expression:
    if isinstance(expression, Not):
        return _normal(expression.operand, negated=not negated)
    if isinstance(expression, Predicate):
        return _opposite(expression) if negated else expression
    parts = [_normal(part, negated=negated) for part in expression.parts]
    return all_of(parts) if isinstance(expression, And) != negated else any_of(parts)


def _opposite(predicate: Predicate) -> Expression:
    reference, values, of = predicate.reference, predicate.values, predicate.type
    if predicate.operator is Operator.BETWEEN:
        low, high = values
        below = Predicate(reference, Operator.LESS_THAN, (low,), of)
        above = Predicate(reference, Operator.GREATER_THAN, (high,), of)
        return Or((below, above))
    opposite = OPPOSITES.get(predicate.operator)
    return negate(predicate) if opposite is None else Predicate(reference, opposite, values, of)
