"""The Python classes of AMQP 1.0 values, where Python has no type of its own.

Python's ``None``, ``bool``, ``int`` (as ``long``), ``float`` (as ``double``), ``str``, ``bytes``, ``uuid.UUID``,
``list`` and ``dict`` stand for themselves. The classes here denote a narrower AMQP type; as subclasses they compare
equal to the plain value, so ``decode_value`` returns them and callers need not unwrap them.

Spec: AMQP 1.0 part 1 §1.6 (primitive type definitions).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID


class Symbol(str):
    """A symbol: ASCII text from a constrained domain, not the same type as string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class Char(str):
    """One Unicode scalar value."""

    __slots__ = ()


class _Bounded(int):
    """An integer with the range of its AMQP type, inclusive at both ends."""

    low: ClassVar[int]
    high: ClassVar[int]

    def __init_subclass__(cls, bits: int, *, signed: bool = False) -> None:
        cls.low = -(1 << bits - 1) if signed else 0
        cls.high = cls.low + (1 << bits) - 1

    def __new__(cls, value: int = 0) -> _Bounded:
        if not cls.low <= value <= cls.high:
            raise ValueError(f"{value} is outside {cls.__name__.lower()}: expected {cls.low} to {cls.high}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class UByte(_Bounded, bits=8):
    """An unsigned 8-bit integer."""


class UShort(_Bounded, bits=16):
    """An unsigned 16-bit integer."""


class UInt(_Bounded, bits=32):
    """An unsigned 32-bit integer."""


class ULong(_Bounded, bits=64):
    """An unsigned 64-bit integer."""


class Byte(_Bounded, bits=8, signed=True):
    """A signed 8-bit integer."""


class Short(_Bounded, bits=16, signed=True):
    """A signed 16-bit integer."""


class Int(_Bounded, bits=32, signed=True):
    """A signed 32-bit integer."""


class Long(_Bounded, bits=64, signed=True):
    """A signed 64-bit integer; a plain Python int is encoded as this."""


class Timestamp(_Bounded, bits=64, signed=True):
    """An instant in milliseconds since the epoch, signed."""


class Float(float):
    """A 32-bit float, held as the double it widens to."""

    __slots__ = ()


class EncodedDecimal(bytes):
    """An IEEE 754 decimal in its encoded bytes, big-endian, binary integer significand."""

    __slots__ = ()
    width: ClassVar[int]

    def __new__(cls, raw: bytes | memoryview) -> EncodedDecimal:
        """Check the width in bytes."""
        if len(raw) != cls.width:
            raise ValueError(f"{cls.__name__.lower()} takes {cls.width} bytes, not {len(raw)}")
        return super().__new__(cls, raw)


class Decimal32(EncodedDecimal):
    """A decimal of 4 bytes."""

    width = 4


class Decimal64(EncodedDecimal):
    """A decimal of 8 bytes."""

    width = 8


class Decimal128(EncodedDecimal):
    """A decimal of 16 bytes."""

    width = 16


@dataclass(frozen=True)
class Described:
    """A value with a descriptor, which gives its meaning."""

    descriptor: Any
    value: Any


@dataclass(frozen=True)
class Array:
    """Values of one type after one constructor.

    Args:
        code: the elements' format code, such as 0xA3 for sym8.
        items: the elements, without their descriptor.
        descriptor: the elements' common descriptor; None when they are not described.
    """

    code: int
    items: tuple[Any, ...]
    descriptor: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))


class Pairs(list[tuple[Any, Any]]):
    """A map that no dict can hold: compound keys, or distinct keys that Python considers equal (ubyte 1 and true).

    Uuids are not put into a dict either: a peer could choose many with one hash, and each would be compared with all.
    """

    @staticmethod
    def collect(pairs: list[tuple[Any, Any]]) -> dict[Any, Any] | Pairs:
        """Return a dict, or ``Pairs`` where a dict would lose an entry; of two equal keys the last stays."""
        if not all(isinstance(key, Hashable) and not isinstance(key, (Described, Array, UUID)) for key, _ in pairs):
            return Pairs(pairs)
        if len({(type(key), key) for key, _ in pairs}) != len({key for key, _ in pairs}):
            return Pairs(pairs)
        return dict(pairs)


def by_symbol(values: Mapping[str, Any] | None) -> dict[Symbol, Any] | None:
    """Return a map of AMQP's with symbols for keys; None for no entry."""
    return {Symbol(name): value for name, value in values.items()} if values else None


def coded(first: int, *names: str) -> dict[Any, int]:
    """Return the codes of types whose descriptors follow one another, by these and by their symbolic names."""
    return {key: code for code, name in enumerate(names, first) for key in (code, Symbol(f"amqp:{name}:list"))}
