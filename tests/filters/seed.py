"""The messages of the Pulsar proposal, word for word, and a reader of such definitions.

Independent of ``expression.proto`` and of what was generated from it: the tests hold both against this.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from spark_streams.filters import And, Expression, Not, Operator, Predicate

SEED = """
message Predicate {
enum MessageRef {
PROPERTY = 0;
EVENT_TIME = 1;
PUBLISH_TIME = 2;
}
enum Operator {
EQUALS = 0;
NOT_EQUALS = 1;
IN = 2;
NOT_IN = 3;
GREATER_THAN = 4;
GREATER_THAN_EQUALS = 5;
LESS_THAN = 6;
LESS_THAN_EQUALS = 7;
LIKE = 8;
NOT_LIKE = 9;
CONTAINS_ALL = 10;
CONTAINS_ANY = 11;
CONTAINS_NONE = 12;
BETWEEN = 13;
}
enum ValueType {
STRING = 0;
LONG = 1;
DOUBLE = 2;
}
required MessageRef ref = 1;
optional string name = 2;
required Operator op = 3;
repeated string values = 4;
optional ValueType ty = 5;
}
message Expr {
enum ExprType {
PREDICATE = 0;
AND = 1;
OR = 2;
NOT = 3;
}
required ExprType ty = 1;
optional Predicate predicate = 2;
optional Expr lhs = 3;
optional Expr rhs = 4;
}
"""
PACKAGE = "seed"
_FIELD = re.compile(r"(required|optional|repeated) (\w+) (\w+) = (\d+);")
_NUMBER = re.compile(r"(\w+) = (\d+);")


def described(definitions: str, package: str) -> descriptor_pb2.FileDescriptorProto:
    """Read messages of enumerations and fields, one a line."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    message: Any = None
    enumeration: Any = None
    for line in (line.strip() for line in definitions.splitlines()):
        if line.startswith("message "):
            message = file.message_type.add(name=line.split()[1])
        elif line.startswith("enum "):
            enumeration = message.enum_type.add(name=line.split()[1])
        elif line == "}":
            message, enumeration = (message if enumeration is not None else None), None
        elif field := _FIELD.fullmatch(line):
            label, of, name, number = field.groups()
            added = message.field.add(name=name, number=int(number))
            added.label = descriptor_pb2.FieldDescriptorProto.Label.Value(f"LABEL_{label.upper()}")
            if of == "string":
                added.type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
            elif any(of == known.name for known in message.enum_type):
                added.type = descriptor_pb2.FieldDescriptorProto.TYPE_ENUM
                added.type_name = f".{package}.{message.name}.{of}"
            else:
                added.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".{package}.{of}"
        elif number := _NUMBER.fullmatch(line):
            enumeration.value.add(name=number[1], number=int(number[2]))
        else:
            assert not line or line.startswith(("//", "syntax", "package")), line
    return file


def classes() -> tuple[Any, Any]:
    """Return the classes Expr and Predicate that the library makes of the proposal."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(described(SEED, PACKAGE).SerializeToString())
    return tuple(
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in ("Expr", "Predicate")
    )


Expr, SeedPredicate = classes()


def message_of(expression: Expression) -> Any:
    """Return an expression as the proposal's messages, whose ANDs and ORs lean to the left."""
    if isinstance(expression, Predicate):
        operator = {Operator.IS_NULL: Operator.EQUALS, Operator.IS_NOT_NULL: Operator.NOT_EQUALS}.get(
            expression.operator, expression.operator
        )
        predicate = SeedPredicate(
            ref=expression.reference.kind.name,
            name=expression.reference.name,
            op=operator.name,
            values=[value if isinstance(value, str) else repr(value) for value in expression.values],
            ty=None if expression.type is None else expression.type.name,
        )
        return Expr(ty="PREDICATE", predicate=predicate)
    if isinstance(expression, Not):
        return Expr(ty="NOT", lhs=message_of(expression.operand))
    left = message_of(expression.parts[0])
    for part in expression.parts[1:]:
        left = Expr(ty="AND" if isinstance(expression, And) else "OR", lhs=left, rhs=message_of(part))
    return left
