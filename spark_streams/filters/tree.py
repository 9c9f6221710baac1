"""The filter language's tree: predicates about one event, joined by AND, OR and NOT.

::

    Expression = Predicate(reference, operator, values, type) | And(parts) | Or(parts) | Not(operand)

Nodes are frozen and do nothing: what is done with a tree is a visitor elsewhere. ``all_of``, ``any_of`` and ``negate``
build the joins; AND and OR are associative, so they hold any number of parts, and never one of their own kind.

A predicate is true, false or unknown of an event, as in SQL; an event passes when the whole is true.

``without_not`` moves negations down to the predicates, which have opposites. De Morgan's laws and opposite operators
are exact in three-valued logic: the result is true, false and unknown of the same events. ``NOT (x BETWEEN a AND b)``
becomes ``x < a OR x > b``. CONTAINS ALL alone has no opposite: its NOT stays, so ``Not`` stands nowhere but around it.
A target needs no care for what its NOT makes of a missing value, or of two types that do not compare (Z-1).

Spec: Pulsar proposal "Support filtering messages with flexible expressions"; docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias


class ReferenceKind(enum.IntEnum):
    """What of an event is looked at; the first three have the proposal's numbers, the others are ours."""

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
        kind: which.
        name: of a property; None for every other kind.
    """

    kind: ReferenceKind
    name: str | None = None


EVENT_TIME: Final = Reference(ReferenceKind.EVENT_TIME)
"""When the event happened, in ms since the epoch, possibly negative: AMQP's creation-time; a feed's ``timestamp``."""
PUBLISH_TIME: Final = Reference(ReferenceKind.PUBLISH_TIME)
"""Column ``timestamp`` in ms since the epoch, possibly negative: when the event was added to the log."""
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
        name: ``application_properties.<name>``, ``properties.<field>`` and ``message_annotations.<name>`` say where it
            is; any other name is an application property. In a feed it is a member of the event's JSON object, or,
            when it begins with ``/``, a JSON pointer into it.
    """
    return Reference(ReferenceKind.PROPERTY, name)


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


class ValueType(enum.IntEnum):
    """How a predicate's values are compared: by code points, as whole numbers, or as decimal numbers."""

    STRING = 0
    LONG = 1
    DOUBLE = 2


Value: TypeAlias = str | int | float
"""A str for STRING, an int within 64 bits for LONG, a finite float for DOUBLE: compared as its shortest decimal."""


@dataclass(frozen=True)
class Predicate:
    """One test of one part of an event.

    Args:
        reference: the part.
        operator: the test.
        values: what it is tested against: none for IS_NULL and IS_NOT_NULL, two for BETWEEN, one or more for IN,
            NOT_IN and CONTAINS_*, else one.
        type: of the values; None for IS_NULL and IS_NOT_NULL.
    """

    reference: Reference
    operator: Operator
    values: tuple[Value, ...] = ()
    type: ValueType | None = None


@dataclass(frozen=True)
class And:
    """True when all of two or more parts are; false when one is; built by ``all_of``."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Or:
    """True when one of two or more parts is; false when all are; built by ``any_of``."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Not:
    """True when the operand is false, false when it is true; built by ``negate``."""

    operand: Expression


Expression: TypeAlias = Predicate | And | Or | Not


def all_of(parts: Iterable[Expression]) -> Expression:
    """Return the conjunction of one or more parts; ANDs among them are joined with it.

    Raises:
        ValueError: no part.
    """
    return _joined(And, parts)


def any_of(parts: Iterable[Expression]) -> Expression:
    """Return the disjunction of one or more parts; ORs among them are joined with it.

    Raises:
        ValueError: no part.
    """
    return _joined(Or, parts)


def negate(operand: Expression) -> Expression:
    """Return the negation."""
    return Not(operand)


def references(expression: Expression) -> Iterator[Reference]:
    """Yield what an expression looks at, in its order, repeated ones too."""
    if isinstance(expression, Predicate):
        yield expression.reference
    elif isinstance(expression, Not):
        yield from references(expression.operand)
    else:
        for part in expression.parts:
            yield from references(part)


def flattened(kind: type[Any], parts: Iterable[Any]) -> list[Any]:
    """Return the parts of a join, with those of parts that are joins of the same kind in their place.

    Args:
        kind: a class whose objects have ``parts``.
        parts: of the join.
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
_OPPOSITES: Final = {**dict(_PAIRS), **{right: left for left, right in _PAIRS}}


def without_not(expression: Expression) -> Expression:
    """Return an expression that says the same, with ``Not`` only around CONTAINS ALL.

    Args:
        expression: within the limits of the language, which bound its depth (E-17).
    """
    return _normal(expression, negated=False)


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions all of which are true when this one is: the parts of an AND, or the expression itself."""
    return expression.parts if isinstance(expression, And) else (expression,)


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
        return Or(
            (
                Predicate(reference, Operator.LESS_THAN, (low,), of),
                Predicate(reference, Operator.GREATER_THAN, (high,), of),
            )
        )
    opposite = _OPPOSITES.get(predicate.operator)
    return negate(predicate) if opposite is None else Predicate(reference, opposite, values, of)
