from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Predicate(_message.Message):
    __slots__ = ("ref", "name", "op", "values", "ty")
    class MessageRef(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PROPERTY: _ClassVar[Predicate.MessageRef]
        EVENT_TIME: _ClassVar[Predicate.MessageRef]
        PUBLISH_TIME: _ClassVar[Predicate.MessageRef]
        KEY: _ClassVar[Predicate.MessageRef]
        PARTITION: _ClassVar[Predicate.MessageRef]
        OFFSET: _ClassVar[Predicate.MessageRef]
        BODY_SIZE: _ClassVar[Predicate.MessageRef]
    PROPERTY: Predicate.MessageRef
    EVENT_TIME: Predicate.MessageRef
    PUBLISH_TIME: Predicate.MessageRef
    KEY: Predicate.MessageRef
    PARTITION: Predicate.MessageRef
    OFFSET: Predicate.MessageRef
    BODY_SIZE: Predicate.MessageRef
    class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EQUALS: _ClassVar[Predicate.Operator]
        NOT_EQUALS: _ClassVar[Predicate.Operator]
        IN: _ClassVar[Predicate.Operator]
        NOT_IN: _ClassVar[Predicate.Operator]
        GREATER_THAN: _ClassVar[Predicate.Operator]
        GREATER_THAN_EQUALS: _ClassVar[Predicate.Operator]
        LESS_THAN: _ClassVar[Predicate.Operator]
        LESS_THAN_EQUALS: _ClassVar[Predicate.Operator]
        LIKE: _ClassVar[Predicate.Operator]
        NOT_LIKE: _ClassVar[Predicate.Operator]
        CONTAINS_ALL: _ClassVar[Predicate.Operator]
        CONTAINS_ANY: _ClassVar[Predicate.Operator]
        CONTAINS_NONE: _ClassVar[Predicate.Operator]
        BETWEEN: _ClassVar[Predicate.Operator]
    EQUALS: Predicate.Operator
    NOT_EQUALS: Predicate.Operator
    IN: Predicate.Operator
    NOT_IN: Predicate.Operator
    GREATER_THAN: Predicate.Operator
    GREATER_THAN_EQUALS: Predicate.Operator
    LESS_THAN: Predicate.Operator
    LESS_THAN_EQUALS: Predicate.Operator
    LIKE: Predicate.Operator
    NOT_LIKE: Predicate.Operator
    CONTAINS_ALL: Predicate.Operator
    CONTAINS_ANY: Predicate.Operator
    CONTAINS_NONE: Predicate.Operator
    BETWEEN: Predicate.Operator
    class ValueType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STRING: _ClassVar[Predicate.ValueType]
        LONG: _ClassVar[Predicate.ValueType]
        DOUBLE: _ClassVar[Predicate.ValueType]
    STRING: Predicate.ValueType
    LONG: Predicate.ValueType
    DOUBLE: Predicate.ValueType
    REF_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TY_FIELD_NUMBER: _ClassVar[int]
    ref: Predicate.MessageRef
    name: str
    op: Predicate.Operator
    values: _containers.RepeatedScalarFieldContainer[str]
    ty: Predicate.ValueType
    def __init__(self, ref: _Optional[_Union[Predicate.MessageRef, str]] = ..., name: _Optional[str] = ..., op: _Optional[_Union[Predicate.Operator, str]] = ..., values: _Optional[_Iterable[str]] = ..., ty: _Optional[_Union[Predicate.ValueType, str]] = ...) -> None: ...

class Expr(_message.Message):
    __slots__ = ("ty", "predicate", "lhs", "rhs")
    class ExprType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PREDICATE: _ClassVar[Expr.ExprType]
        AND: _ClassVar[Expr.ExprType]
        OR: _ClassVar[Expr.ExprType]
        NOT: _ClassVar[Expr.ExprType]
    PREDICATE: Expr.ExprType
    AND: Expr.ExprType
    OR: Expr.ExprType
    NOT: Expr.ExprType
    TY_FIELD_NUMBER: _ClassVar[int]
    PREDICATE_FIELD_NUMBER: _ClassVar[int]
    LHS_FIELD_NUMBER: _ClassVar[int]
    RHS_FIELD_NUMBER: _ClassVar[int]
    ty: Expr.ExprType
    predicate: Predicate
    lhs: Expr
    rhs: Expr
    def __init__(self, ty: _Optional[_Union[Expr.ExprType, str]] = ..., predicate: _Optional[_Union[Predicate, _Mapping]] = ..., lhs: _Optional[_Union[Expr, _Mapping]] = ..., rhs: _Optional[_Union[Expr, _Mapping]] = ...) -> None: ...
