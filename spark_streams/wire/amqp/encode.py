"""Encode Python values as AMQP values, each in its most compact form; ``decode.py`` has the format and the reverse.

Spec: AMQP 1.0 part 1 §1.6.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.decode import NUMBERS
from spark_streams.wire.amqp.values import (
    Array,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Int,
    Long,
    Pairs,
    Symbol,
    UInt,
    ULong,
)

_TEXT_OR_BINARY: Final = frozenset({0xA0, 0xB0, 0xA1, 0xB1, 0xA3, 0xB3})
_WITHOUT_DATA: Final = frozenset(range(0x40, 0x46))
_WIDE: Final = 0x10
"""The bit of a compound's format code that marks 4-byte size and count."""


def encode_value(value: object) -> bytes:
    """Encode a value in its most compact form.

    Raises:
        LocalProtocolError: the value has no AMQP type, or does not fit its type.
    """
    if value is None:
        return b"\x40"
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            try:
                return encode(value)
            except (ValueError, struct.error, OverflowError) as fault:
                raise LocalProtocolError(f"{value!r:.200} cannot be encoded as AMQP: {fault}") from fault
    raise LocalProtocolError(f"{type(value).__name__} has no AMQP type")


def _sized(code8: int, code32: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((code8, len(raw))) + raw
    return struct.pack(">BI", code32, len(raw)) + raw


def _counted(code8: int, count: int, raw: bytes) -> bytes:
    if len(raw) < 255 and count < 256:
        return bytes((code8, len(raw) + 1, count)) + raw
    return struct.pack(">BII", code8 | _WIDE, len(raw) + 4, count) + raw


def _list_items(items: list[Any]) -> tuple[int, bytes]:
    return len(items), b"".join(map(encode_value, items))


def _map_items(value: dict[Any, Any] | Pairs) -> tuple[int, bytes]:
    pairs = value if isinstance(value, Pairs) else list(value.items())
    return 2 * len(pairs), b"".join(encode_value(k) + encode_value(v) for k, v in pairs)


def _array_items(value: Array) -> tuple[int, bytes]:
    head = b"" if value.descriptor is None else b"\x00" + encode_value(value.descriptor)
    return len(value.items), head + bytes((value.code,)) + b"".join(
        _encode_as(value.code, item) for item in value.items
    )


_COMPOUND: Final[dict[int, Callable[[Any], tuple[int, bytes]]]] = {
    0xC0: _list_items,
    0xC1: _map_items,
    0xE0: _array_items,
}
"""Each compound's format code with 1-byte size and count to the count and the bytes of its items."""


def _encode_as(code: int, item: Any) -> bytes:
    """Return an array element's bytes in the form of the array's format code ``code``."""
    if code in _TEXT_OR_BINARY:
        raw = item.encode("utf-8") if isinstance(item, str) else bytes(item)
        return struct.pack(">B" if code < 0xB0 else ">I", len(raw)) + raw
    if code & ~_WIDE in _COMPOUND:
        count, raw = _COMPOUND[code & ~_WIDE](item)
        if code & _WIDE:
            return struct.pack(">II", len(raw) + 4, count) + raw
        return bytes((len(raw) + 1, count)) + raw
    if code in _WITHOUT_DATA:
        return b""
    pack = _PACKERS.get(code)
    if pack is None:
        raise ValueError(f"0x{code:02x} is no format code")
    return pack(item)


def _packer(layout: str) -> Callable[[Any], bytes]:
    return lambda item: struct.pack(layout, item)


_PACKERS: Final[dict[int, Callable[[Any], bytes]]] = {
    0x56: lambda item: b"\x01" if item else b"\x00",
    0x73: lambda item: struct.pack(">I", ord(item)),
    0x98: lambda item: bytes(item.bytes),
    **{code: bytes for code in (0x74, 0x84, 0x94)},
    **{code: _packer(layout) for code, (layout, _) in NUMBERS.items()},
}


def _encode_small(zero: bytes, small: int, large: int, low: int, high: int) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if value == 0 and zero:
            return zero
        code = small if low <= value <= high else large
        return bytes((code,)) + _PACKERS[code](value)

    return encode


def _encode_fixed(code: int) -> Callable[[Any], bytes]:
    return lambda value: bytes((code,)) + _PACKERS[code](value)


_FIXED: Final = {
    **{kind: code for code, (_, kind) in NUMBERS.items() if kind not in (Int, Long, UInt, ULong)},
    Decimal32: 0x74,
    Decimal64: 0x84,
    Decimal128: 0x94,
    uuid.UUID: 0x98,
}
"""Each type whose values all have the same format code, to that code."""

# The order matters: a subclass comes before its base class.
_ENCODERS: Final[tuple[tuple[Any, Callable[[Any], bytes]], ...]] = (
    (Symbol, lambda value: _sized(0xA3, 0xB3, value.encode("ascii"))),
    (Char, _encode_fixed(0x73)),
    (str, lambda value: _sized(0xA1, 0xB1, value.encode("utf-8"))),
    (bool, lambda value: b"\x41" if value else b"\x42"),
    (UInt, _encode_small(b"\x43", 0x52, 0x70, 0, 255)),
    (ULong, _encode_small(b"\x44", 0x53, 0x80, 0, 255)),
    (Int, _encode_small(b"", 0x54, 0x71, -128, 127)),
    *((kind, _encode_fixed(code)) for kind, code in _FIXED.items()),
    (int, _encode_small(b"", 0x55, 0x81, -128, 127)),
    ((bytes, bytearray, memoryview), lambda value: _sized(0xA0, 0xB0, bytes(value))),
    (Described, lambda value: b"\x00" + encode_value(value.descriptor) + encode_value(value.value)),
    (Array, lambda value: _counted(0xE0, *_array_items(value))),
    ((dict, Pairs), lambda value: _counted(0xC1, *_map_items(value))),
    ((list, tuple), lambda value: _counted(0xC0, *_list_items(value)) if value else b"\x45"),
)
