"""The limits of a filter: which predicates make sense, and how large a tree may be.

Every way to read or build a filter ends with this check, so code that gets a tree may walk it by recursion, and finds
values of the types that the predicates declare.

Spec: docs/specifications.md, E-1, E-8, E-10 to E-13 and E-17.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.errors import FilterError
from spark_streams.filters.decimals import MAX_INT64, MIN_INT64
from spark_streams.filters.describe import shorten, to_text
from spark_streams.filters.tree import (
    LISTS,
    And,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    ReferenceKind,
    Value,
    ValueType,
    section_and_name,
)
from spark_streams.wire.amqp.columns import single_message

MAX_DEPTH: Final = 64
"""The most nodes from the root to a predicate, both counted (E-17). Recursion is safe within this depth."""
MAX_NODES: Final = 1000
"""The most predicates, ANDs, ORs and NOTs in one filter (E-17)."""
MAX_VALUES: Final = 1000
"""The most values of all predicates of one filter together (E-17)."""
MAX_CHARACTERS: Final = 131_072
"""The most characters of all property names and string values of one filter together."""

AT_REFERENCE: Final = -2
"""The ``Fault.part`` of a fault in the reference."""
AT_OPERATOR: Final = -1
"""The ``Fault.part`` of a fault in the operator, or in its number of values."""

PROPERTY_FIELDS: Final = tuple(name for name, kind in single_message.PROPERTY_FIELDS if kind != "binary")
"""The names after ``properties.``: the fields of AMQP's properties section but ``user_id``, which is bytes."""

_NO_VALUE: Final = frozenset({Operator.IS_NULL, Operator.IS_NOT_NULL})
_PATTERNS: Final = frozenset({Operator.LIKE, Operator.NOT_LIKE})
_NUMBERS: Final = {
    ReferenceKind.EVENT_TIME: "event_time is a number of milliseconds since 1970",
    ReferenceKind.PUBLISH_TIME: "publish_time is a number of milliseconds since 1970",
    ReferenceKind.BODY_SIZE: "body_size is a number of bytes",
}
_TYPES: Final = {ValueType.STRING: str, ValueType.LONG: int, ValueType.DOUBLE: float}


@dataclass(frozen=True)
class Fault:
    """A fault in a tree.

    Args:
        reason: the fault, and what was expected.
        part: the part of the predicate: ``AT_REFERENCE``, ``AT_OPERATOR``, or the number of a value from 0.
        node: the node at fault; where a limit is exceeded, the first node beyond it.
    """

    reason: str
    part: int
    node: Expression


def check(expression: Expression) -> None:
    """Refuse a tree that the language does not allow, in time proportional to the tree and without recursion.

    Raises:
        FilterError: a predicate makes no sense, or the tree is too large; ``text`` is the part at fault.
    """
    fault = find_fault(expression)
    if fault is not None:
        raise FilterError(shorten(to_text(fault.node)), None, fault.reason)


def find_fault(expression: Expression) -> Fault | None:
    """Return the first fault of a tree, in reading order; None for a sound tree."""
    nodes = values = characters = 0
    waiting: list[tuple[Any, int]] = [(expression, 1)]
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            return Fault(f"more than {MAX_DEPTH} levels deep: at most {MAX_DEPTH} are taken", AT_REFERENCE, node)
        if nodes > MAX_NODES:
            reason = f"more than {MAX_NODES} predicates, ANDs, ORs and NOTs: at most {MAX_NODES} are taken"
            return Fault(reason, AT_REFERENCE, node)
        if isinstance(node, Predicate):
            fault = predicate_fault(node)
            if fault is not None:
                return fault
            values += len(node.values)
            if values > MAX_VALUES:
                return Fault(f"more than {MAX_VALUES} values: at most {MAX_VALUES} are taken", AT_OPERATOR, node)
            characters += len(node.reference.name or "")
            characters += sum(len(value) for value in node.values if isinstance(value, str))
            if characters > MAX_CHARACTERS:
                reason = f"names and values of more than {MAX_CHARACTERS} characters together: that many are taken"
                return Fault(reason, AT_REFERENCE, node)
        elif isinstance(node, Not):
            waiting.append((node.operand, depth + 1))
        elif isinstance(node, (And, Or)):
            if len(node.parts) < 2:
                return Fault("an AND or OR needs two or more parts: build it with all_of or any_of", AT_REFERENCE, node)
            if any(isinstance(part, type(node)) for part in node.parts):
                reason = "an AND within an AND, or an OR within an OR: build it with all_of or any_of"
                return Fault(reason, AT_REFERENCE, node)
            waiting.extend((part, depth + 1) for part in reversed(node.parts))
        else:
            reason = f"expected an expression, not {type(node).__name__}: a builder's chain ends with build()"
            return Fault(reason, AT_REFERENCE, node)
    return None


def predicate_fault(predicate: Predicate) -> Fault | None:
    """Return the fault of one predicate; None for a sound one."""
    for reason, part in _reasons(predicate):
        if reason is not None:
            return Fault(reason, part, predicate)
    return None


def _reasons(predicate: Predicate) -> Iterator[tuple[str | None, int]]:
    """Yield what each check finds, and the part that it is about; each relies on those before it."""
    yield reference_reason(predicate.reference), AT_REFERENCE
    yield _arity_reason(predicate), AT_OPERATOR
    for number, value in enumerate(predicate.values):
        yield _value_reason(value, predicate.type), number
    number_of = _NUMBERS.get(predicate.reference.kind)
    if predicate.operator in _PATTERNS and predicate.type is not ValueType.STRING:
        yield "LIKE compares texts: expected a text in quotes, not a number", 0
    if number_of is not None and predicate.operator in _PATTERNS:
        yield f"LIKE compares texts, but {number_of}", AT_OPERATOR
    if number_of is not None and predicate.type is ValueType.STRING:
        yield f"{number_of}: expected a number, not a text", 0


def reference_reason(reference: Reference) -> str | None:
    """Return why no event has this part; None for a sound reference."""
    if reference.kind is not ReferenceKind.PROPERTY:
        return None if reference.name is None else f"{reference.kind.name.lower()} has no name: expected None"
    name = reference.name
    if not isinstance(name, str) or not name:
        return "a property needs a name"
    if not is_unicode(name):
        return "the name holds half of a surrogate pair, which is no character"
    if "." not in name:
        return None
    section, field = section_and_name(name)
    if not field:
        return f"expected a name after {name}"
    if section == "properties" and field not in PROPERTY_FIELDS:
        if field == "user_id":
            return "properties.user_id is bytes, which no value of a filter can equal"
        known = ", ".join(PROPERTY_FIELDS)
        return (
            f"a message's properties have no field '{field}': expected one of {known}; an application property of that "
            f"name is [application_properties.{name}]"
        )
    return None


def _arity_reason(predicate: Predicate) -> str | None:
    operator, count = predicate.operator, len(predicate.values)
    if operator in _NO_VALUE:
        return None if not count and predicate.type is None else "IS NULL takes no value and has no type"
    if predicate.type is None:
        return f"{operator.name} needs values, and their type"
    if operator in LISTS:
        return None if count else f"{operator.name} needs at least one value"
    if operator is Operator.BETWEEN:
        return None if count == 2 else f"BETWEEN needs two values, not {count}"
    return None if count == 1 else f"{operator.name} needs one value, not {count}"


def _value_reason(value: Value, of: ValueType | None) -> str | None:
    if of is None or type(value) is not _TYPES[of]:
        expected = "no value" if of is None else f"{_TYPES[of].__name__}, as the type {of.name} says"
        return f"expected {expected}, not {type(value).__name__}: the values of one test are of one type"
    if isinstance(value, str):
        return None if is_unicode(value) else "the text holds half of a surrogate pair, which is no character"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"expected a finite number, not {value}"
    return None if MIN_INT64 <= value <= MAX_INT64 else "the integer does not fit into 64 bits"


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, which is no character."""
    return text.isascii() or text.encode("utf-8", "replace").decode() == text
