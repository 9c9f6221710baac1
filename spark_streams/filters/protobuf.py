"""The filter language as protobuf messages of the Pulsar proposal, with its field numbers; and filters of options.

An option holds a filter as text or as this form in base64; ``read_filter`` reads either. ``expression.proto`` has the
messages. This file decides what the proposal leaves open:

- IS NULL is EQUALS without values and without a type, IS NOT NULL is NOT_EQUALS without both (E-1).
- Values are texts: a LONG in decimal digits, a DOUBLE as its shortest decimal. Without ``ty`` they are STRING (E-2).
- NOT has its operand in ``lhs``; nothing else may be there (E-3).
- AND and OR have two operands in a message, and any number in the tree. The writer writes many operands as a balanced
  tree; the reader joins them again, and it joins every AND within an AND.
- The writer writes enumerations even where they are 0. The reader refuses an unknown field or number and never skips
  one: nobody can apply a filter that they do not understand (E-16).
- Messages nest 100 deep at most, as in every implementation of protobuf.

The library reports that bytes are no protobuf ``Expr``, but not where; ``find_wire_fault`` finds the byte::

    message = field*
    field   = key payload                                    key = number << 3 | wire type, a varint
    payload = varint                                         wire type 0
            | 8 bytes | 4 bytes                              wire types 1 and 5
            | length bytes                                   wire type 2; of fields 2 to 4 of Expr: a message

Our messages have no groups (wire types 3 and 4).

Spec: Pulsar proposal, "The wire protocol"; docs/specifications.md, E-1 to E-20.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_streams.errors import FilterError
from spark_streams.filters import expression_pb2, limits
from spark_streams.filters.decimals import read_double, read_long
from spark_streams.filters.describe import shorten
from spark_streams.filters.text import parse
from spark_streams.filters.tree import (
    And,
    Expression,
    Not,
    Operator,
    Predicate,
    Reference,
    ReferenceKind,
    Value,
    ValueType,
    all_of,
    any_of,
)

MAX_NESTING: Final = 100
"""The most nested messages of type Expr, the outermost counted; the limit of protobuf's own readers."""

_MESSAGES: Final = {2: False, 3: True, 4: True}
"""The fields of Expr that are messages, and whether each is an Expr again."""
_FIXED: Final = {1: 8, 5: 4}
_MAX_VARINT: Final = 10
_MAX_FIELD: Final = 2**29 - 1


def find_wire_fault(encoded: bytes) -> str | None:
    """Return the first wrong byte, counted from 1, and why; None where all bytes are fields that nest as allowed.

    It takes time in proportion to the bytes, and does not recurse.
    """
    at = 0
    opened = [(len(encoded), True)]  # the end of each open message, and whether it is an Expr
    while opened:
        end, is_expr = opened[-1]
        if at == end:
            opened.pop()
            continue
        start = at
        key, at = _varint(encoded, at, end)
        field, wire_type = key >> 3, key & 7
        if key < 0 or not 1 <= field <= _MAX_FIELD:
            return f"byte {start + 1}: no number of a field"
        if wire_type not in (0, 2) and wire_type not in _FIXED:
            return f"byte {start + 1}: field {field} has wire type {wire_type}, which no field of Expr has"
        length = _FIXED.get(wire_type, 0)
        if wire_type not in _FIXED:
            value, at = _varint(encoded, at, end)
            if value < 0:
                return f"byte {start + 1}: field {field} is cut short, or its number too long"
            length = value if wire_type == 2 else 0
        if length > end - at:
            return f"byte {start + 1}: field {field} takes {length} bytes, but its message has {end - at} more"
        if wire_type == 2 and is_expr and field in _MESSAGES:
            opened.append((at + length, _MESSAGES[field]))
            if _MESSAGES[field] and len(opened) > MAX_NESTING:
                return f"byte {start + 1}: messages nest more than {MAX_NESTING} deep"
        else:
            at += length
    return None


def _varint(encoded: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and the position after it; -1 where there is no number."""
    value = 0
    for position in range(at, min(end, at + _MAX_VARINT)):
        value |= (encoded[position] & 127) << 7 * (position - at)
        if encoded[position] < 128:
            return value, position + 1
    return -1, at


MAX_BYTES: Final = 1_048_576
"""The most bytes of a message: enough for any tree within the limits."""

_PREDICATE: Final = expression_pb2.Expr.PREDICATE
_AND: Final = expression_pb2.Expr.AND
_OR: Final = expression_pb2.Expr.OR
_NOT: Final = expression_pb2.Expr.NOT
_OPERANDS: Final = {_PREDICATE: ("predicate",), _AND: ("lhs", "rhs"), _OR: ("lhs", "rhs"), _NOT: ("lhs",)}
"""The fields that an Expr of each type holds besides its type."""
_NULL_TESTS: Final = {Operator.EQUALS: Operator.IS_NULL, Operator.NOT_EQUALS: Operator.IS_NOT_NULL}
_ON_THE_WIRE: Final = {test: operator for operator, test in _NULL_TESTS.items()}


def to_protobuf(expression: Expression) -> bytes:
    """Return the bytes of the message ``Expr`` for an expression.

    Raises:
        FilterError: the expression is not allowed, or nests deeper than messages may.
    """
    limits.check(expression)
    message = expression_pb2.Expr()
    if _write(expression, message) > MAX_NESTING:
        raise FilterError("", None, f"nested too deep for the protobuf form: its messages nest {MAX_NESTING} deep")
    encoded: bytes = message.SerializeToString()
    return encoded


def from_protobuf(encoded: bytes) -> Expression:
    """Read the message ``Expr``.

    Args:
        encoded: at most ``MAX_BYTES``; the bytes need not be trusted.

    Raises:
        FilterError: the bytes are no such message, or the language does not allow it; the reason names the byte, or the
            field of the message, such as ``lhs.rhs.predicate.op``. ``column`` is None.
    """
    if len(encoded) > MAX_BYTES:
        raise _fault("", f"longer than {MAX_BYTES} bytes, which no filter needs")
    fault = find_wire_fault(encoded)
    if fault is not None:
        raise _fault("", fault)
    try:
        message = expression_pb2.Expr.FromString(encoded)
    except UnicodeDecodeError:
        raise _fault("", "a name or value that is no UTF-8") from None
    except DecodeError as error:
        raise _fault("", f"no message of type Expr: {shorten(str(error))}") from None
    expression = _read(message, "")
    limits.check(expression)
    return expression


def _write(expression: Expression, message: expression_pb2.Expr) -> int:
    """Fill a message; return how deep messages of type Expr nest in it, itself counted."""
    if isinstance(expression, Predicate):
        message.ty = _PREDICATE
        message.predicate.CopyFrom(
            expression_pb2.Predicate(
                ref=expression.reference.kind.name,
                name=expression.reference.name,
                op=_ON_THE_WIRE.get(expression.operator, expression.operator).name,
                values=[value if isinstance(value, str) else repr(value) for value in expression.values],
                ty=None if expression.type is None else expression.type.name,
            )
        )
        return 1
    if isinstance(expression, Not):
        message.ty = _NOT
        return 1 + _write(expression.operand, message.lhs)
    return _write_join(expression.parts, _AND if isinstance(expression, And) else _OR, message)


def _write_join(parts: Sequence[Expression], of: expression_pb2.Expr.ExprType, message: expression_pb2.Expr) -> int:
    if len(parts) == 1:
        return _write(parts[0], message)
    message.ty = of
    half = len(parts) // 2
    return 1 + max(_write_join(parts[:half], of, message.lhs), _write_join(parts[half:], of, message.rhs))


def _read(message: expression_pb2.Expr, path: str) -> Expression:
    # Recursion is safe here: ``find_wire_fault`` checked that messages nest at most MAX_NESTING deep.
    _refuse_unknown(message, path, "ty")
    wanted = _OPERANDS[message.ty]
    for name in ("predicate", "lhs", "rhs"):
        if message.HasField(name) != (name in wanted):
            verb = "needs" if name in wanted else "has no"
            raise _fault(path, f"{expression_pb2.Expr.ExprType.Name(message.ty)} {verb} {name}")
    if message.ty == _PREDICATE:
        return _read_predicate(message.predicate, f"{path}predicate.")
    left = _read(message.lhs, f"{path}lhs.")
    if message.ty == _NOT:
        return Not(left)
    join = all_of if message.ty == _AND else any_of
    return join((left, _read(message.rhs, f"{path}rhs.")))


def _read_predicate(message: expression_pb2.Predicate, path: str) -> Predicate:
    _refuse_unknown(message, path, "ref", "op")
    kind, operator = ReferenceKind(message.ref), Operator(message.op)
    name = _text(message.name, f"{path}name")
    if kind is not ReferenceKind.PROPERTY and name:
        raise _fault(f"{path}name", f"{kind.name} has no name")
    values: tuple[Value, ...] = ()
    of: ValueType | None = None
    if message.values or message.HasField("ty") or operator not in _NULL_TESTS:
        of = ValueType(message.ty) if message.HasField("ty") else ValueType.STRING
        values = tuple(_value(value, of, f"{path}values[{number}]") for number, value in enumerate(message.values))
    else:
        operator = _NULL_TESTS[operator]
    predicate = Predicate(Reference(kind, name if kind is ReferenceKind.PROPERTY else None), operator, values, of)
    fault = limits.predicate_fault(predicate)
    if fault is not None:
        part = {limits.AT_REFERENCE: "name", limits.AT_OPERATOR: "op"}.get(fault.part, f"values[{fault.part}]")
        raise _fault(f"{path}{part}", fault.reason)
    return predicate


def _value(value: str, of: ValueType, path: str) -> Value:
    text = _text(value, path)
    if of is ValueType.STRING:
        return text
    number = read_long(text) if of is ValueType.LONG else read_double(text)
    if number is None:
        expected = "an integer within 64 bits" if of is ValueType.LONG else "a finite decimal number"
        raise _fault(path, f"expected {expected}, not {shorten(text)!r}")
    return number


def _text(value: str | bytes, path: str) -> str:
    # Most implementations of the library return a text that is not UTF-8 as bytes.
    if isinstance(value, bytes):
        raise _fault(path, "no UTF-8")
    return value


def _refuse_unknown(message: Message, path: str, *required: str) -> None:
    """Refuse what the library skips: unknown fields, and unknown numbers of enumerations."""
    fields = UnknownFieldSet(message)
    for unknown in (fields[number] for number in range(len(fields))):
        known = message.DESCRIPTOR.fields_by_number.get(unknown.field_number)
        if known is None:
            raise _fault(path, f"no field of {message.DESCRIPTOR.name} has the number {unknown.field_number}")
        raise _fault(f"{path}{known.name}", f"not known: {unknown.data!r:.40}")
    for name in required:
        if not message.HasField(name):
            raise _fault(path, f"{message.DESCRIPTOR.name} needs {name}")


def _fault(path: str, reason: str) -> FilterError:
    where = path.rstrip(".")
    return FilterError("", None, f"protobuf form: {f'{where}: ' if where else ''}{reason}")


_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
"""Either alphabet of base64. No filter's text has these characters alone: each has a blank, a sign or a quote too."""
_BEGINNING: Final = "CA"
"""The beginning of every message in base64, as all libraries write it: the type of the expression."""
_MAX_BASE64: Final = 1_400_000
"""The most characters of a protobuf form within its own limit."""


def read_filter(text: str) -> Expression:
    """Read a filter in either form.

    Args:
        text: in the filter language, or the bytes of the protobuf form in base64, of either alphabet, padded or not;
            blanks around it do not count.

    Raises:
        FilterError: it is neither; ``column`` is the place of the fault in a text, and 1 for a protobuf form.
    """
    word = text.strip()
    if len(word) > _MAX_BASE64 or not _BASE64.fullmatch(word):
        return parse(text)
    digits = word.rstrip("=").replace("-", "+").replace("_", "/")
    if len(digits) % 4 == 1:
        raise _neither(text, f"base64 of {len(digits)} characters: the last is missing, or one too many")
    try:
        return from_protobuf(base64.b64decode(digits + "=" * (-len(digits) % 4)))
    except FilterError as error:
        raise _neither(text, error.reason) from None


def _neither(text: str, as_protobuf: str) -> FilterError:
    """Return the error for a word that may be base64, and may be the beginning of a text."""
    word = text.strip()
    reason = f"in base64: {as_protobuf}"
    if not word.isidentifier():
        return FilterError(text, 1, reason)
    try:
        parse(text)
    except FilterError as as_text:
        if not word.startswith(_BEGINNING):
            both = f"{as_text.reason} (nor is it the protobuf form {reason})"
            return FilterError(text, as_text.column, both)
        reason = f"{reason} (nor is it a filter as text, column {as_text.column}: {as_text.reason})"
    return FilterError(text, 1, reason)
