"""Decode AMQP 1.0 values to Python values, one at a time; ``encode.py`` is the reverse.

::

    value       = constructor data
    constructor = code | 0x00 descriptor constructor       (descriptor is itself a value)
    code        = 0x4_ no data   0x5_ 1 byte   0x6_ 2   0x7_ 4   0x8_ 8   0x9_ 16
                  0xa_ size(1) bytes           0xb_ size(4) bytes
                  0xc_ size(1) count(1) items  0xd_ size(4) count(4) items
                  0xe_ size(1) count(1) constructor items   0xf_ size(4) count(4) constructor items

``size`` counts the bytes after it, ``count`` included. For any bytes, ``decode_value`` raises only
``RemoteProtocolError``, and it reads nothing outside them.

Spec: AMQP 1.0 part 1 §1.2 to §1.6.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Generator
from typing import Any, Final

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Pairs,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

MAX_DEPTH: Final = 32
"""The deepest nesting of values; real messages stay below 10, and values must never reach Python's recursion limit."""
MAX_EMPTY_ITEMS: Final = 255
"""The most items without data (nulls, true, zeros) of one array, because they cost the sender no byte."""
STEP_BYTES: Final = 4_096
"""About as many bytes are checked in a step, which takes a millisecond or two."""


def decode_value(buffer: bytes | bytearray | memoryview, position: int = 0) -> tuple[Any, int]:
    """Decode the value that starts at ``position``.

    Args:
        buffer: encoded bytes; more bytes may follow the value.
        position: first byte of the value's constructor, inclusive.

    Returns:
        The value and the position after it.

    Raises:
        RemoteProtocolError: the bytes end early, are no AMQP value, or nest deeper than ``MAX_DEPTH``.
    """
    raw = buffer if isinstance(buffer, bytes) else bytes(buffer)
    if position < 0:
        raise LocalProtocolError(f"position {position} is before the buffer")
    return _decode(raw, position, len(raw), 0)


def _decode(raw: bytes, position: int, end: int, depth: int) -> tuple[Any, int]:
    if position >= end:
        raise _short(position)
    code = raw[position]
    if code:
        return _decode_coded(raw, position + 1, end, depth, code)
    if depth >= MAX_DEPTH:
        raise RemoteProtocolError(f"AMQP value at byte {position}: nests deeper than {MAX_DEPTH}")
    descriptor, position = _decode(raw, position + 1, end, depth + 1)
    value, position = _decode(raw, position, end, depth + 1)
    return Described(descriptor, value), position


def _decode_coded(raw: bytes, position: int, end: int, depth: int, code: int) -> tuple[Any, int]:
    fixed = _FIXED.get(code)
    if fixed is not None:
        width, convert = fixed
        if position + width > end:
            raise _short(position)
        return convert(raw[position : position + width]), position + width
    start, stop, count = _extent(raw, position, end, depth, code)
    if code in _VARIABLE:
        return _VARIABLE[code](raw[start:stop]), stop
    return _COMPOUND[code](raw, start, stop, count, depth + 1), stop


def _extent(raw: bytes, position: int, end: int, depth: int, code: int) -> tuple[int, int, int]:
    """Return where the content of a value that has a size begins and ends, and how many items it claims."""
    kind = code >> 4
    width = 1 if kind in (0xA, 0xC, 0xE) else 4
    if code not in _VARIABLE and code not in _COMPOUND:
        raise RemoteProtocolError(f"AMQP value at byte {position - 1}: 0x{code:02x} is no format code")
    if position + width > end:
        raise _short(position)
    size = int.from_bytes(raw[position : position + width], "big")
    start, stop = position + width, position + width + size
    if stop > end:
        raise _short(start)
    if code in _VARIABLE:
        return start, stop, 0
    if depth >= MAX_DEPTH:
        raise RemoteProtocolError(f"AMQP value at byte {position - 1}: nests deeper than {MAX_DEPTH}")
    if size < width:
        raise RemoteProtocolError(f"AMQP value at byte {position - 1}: size {size} leaves no room for its count")
    count = int.from_bytes(raw[start : start + width], "big")
    if kind in (0xC, 0xD) and code & 1 and count % 2:
        raise RemoteProtocolError(f"AMQP map at byte {start + width}: {count} keys and values, expected an even number")
    return start + width, stop, count


def check_values(
    raw: bytes, position: int, end: int, count: int = 1, depth: int = 0, of: int = 0
) -> Generator[None, None, int]:
    """Check that ``decode_value`` can decode consecutive values, of which nothing is built; return where they end.

    Args:
        raw: encoded bytes.
        position: the first value's constructor, inclusive.
        end: where they end at the latest, exclusive.
        count: how many they are.
        depth: how deep they nest.
        of: the format code of all, as in an array; 0: each has its own.

    Yields:
        None, after each few thousand bytes.

    Raises:
        RemoteProtocolError: one of them cannot be decoded.
    """
    mark = position
    for _ in range(count):
        if position - mark > STEP_BYTES:
            mark = position
            yield
        code = of
        if not of:
            if position >= end:
                raise _short(position)
            code = raw[position]
            position += 1
        if code in _FIXED:
            stop = position + _FIXED[code][0]
            if stop > end:
                raise _short(position)
            if code in _CHECKED:
                _FIXED[code][1](raw[position:stop])
            position = stop
            continue
        if not code:
            if depth >= MAX_DEPTH:
                raise RemoteProtocolError(f"AMQP value at byte {position - 1}: nests deeper than {MAX_DEPTH}")
            position = yield from check_values(raw, position, end, 2, depth + 1)
            continue
        position, stop, items = _extent(raw, position, end, depth, code)
        if code in _VARIABLE:
            _VARIABLE[code](raw[position:stop])
            position = stop
            continue
        each = 0
        if code >> 4 >= 0xE:
            if position < stop and not raw[position]:
                position = yield from check_values(raw, position + 1, stop, 1, depth + 1)
            each, position = _array_code(raw, position, stop, items), position + 1
        position = yield from check_values(raw, position, stop, items, depth + 1, each)
        _check_end(position, stop)
    return position


def _check_end(position: int, stop: int) -> None:
    if position != stop:
        raise RemoteProtocolError(
            f"AMQP list, map or array at byte {position}: {stop - position} bytes after its last item"
        )


def _decode_items(raw: bytes, position: int, stop: int, count: int, depth: int) -> list[Any]:
    items = []
    for _ in range(count):
        item, position = _decode(raw, position, stop, depth)
        items.append(item)
    _check_end(position, stop)
    return items


def _decode_map(raw: bytes, position: int, stop: int, count: int, depth: int) -> Any:
    items = _decode_items(raw, position, stop, count, depth)
    return Pairs.collect(list(zip(items[::2], items[1::2], strict=True)))


def _decode_array(raw: bytes, position: int, stop: int, count: int, depth: int) -> Array:
    descriptor = None
    if position < stop and raw[position] == 0:
        descriptor, position = _decode(raw, position + 1, stop, depth)
    code = _array_code(raw, position, stop, count)
    position += 1
    items = []
    for _ in range(count):
        item, position = _decode_coded(raw, position, stop, depth, code)
        items.append(item)
    _check_end(position, stop)
    return Array(code, tuple(items), descriptor)


def _array_code(raw: bytes, position: int, stop: int, count: int) -> int:
    """Return the format code of an array's items."""
    if position >= stop:
        raise _short(position)
    code = raw[position]
    if code == 0:
        raise RemoteProtocolError(f"AMQP array at byte {position}: described twice")
    if code >> 4 == 4 and count > MAX_EMPTY_ITEMS:
        raise RemoteProtocolError(f"AMQP array at byte {position}: claims {count} items without data")
    if code not in FORMAT_CODES:
        raise RemoteProtocolError(f"AMQP array at byte {position}: 0x{code:02x} is no format code")
    return code


def _short(position: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"AMQP value at byte {position}: the bytes end before the value does")


def _boolean(raw: bytes) -> bool:
    if raw[0] > 1:
        raise RemoteProtocolError(f"AMQP boolean: 0x{raw[0]:02x}, expected 0x00 or 0x01")
    return raw[0] == 1


def _char(raw: bytes) -> Char:
    code_point = int.from_bytes(raw, "big")
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise RemoteProtocolError(f"AMQP char: 0x{code_point:08x} is no Unicode scalar value")
    return Char(chr(code_point))


def _string(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise RemoteProtocolError(f"AMQP string or symbol: not UTF-8 at its byte {fault.start}") from fault


def _symbol(raw: bytes) -> Symbol:
    # A symbol is ASCII (part 1 §1.6.21), but RabbitMQ stores what AMQP 0-9-1 takes as a text, UTF-8, in symbols.
    return Symbol(_string(raw))


NUMBERS: Final[dict[int, tuple[str, type]]] = {
    0x50: (">B", UByte),
    0x51: (">b", Byte),
    0x52: (">B", UInt),
    0x53: (">B", ULong),
    0x54: (">b", Int),
    0x55: (">b", Long),
    0x60: (">H", UShort),
    0x61: (">h", Short),
    0x70: (">I", UInt),
    0x71: (">i", Int),
    0x72: (">f", Float),
    0x80: (">Q", ULong),
    0x81: (">q", Long),
    0x82: (">d", float),
    0x83: (">q", Timestamp),
}
"""The format codes of numbers: the layout of their bytes, as ``struct`` has it, and their type."""


def _number(layout: str, kind: type) -> Callable[[bytes], Any]:
    return lambda raw: kind(*struct.unpack(layout, raw))


_FIXED: Final[dict[int, tuple[int, Callable[[bytes], Any]]]] = {
    0x40: (0, lambda raw: None),
    0x41: (0, lambda raw: True),
    0x42: (0, lambda raw: False),
    0x43: (0, lambda raw: UInt(0)),
    0x44: (0, lambda raw: ULong(0)),
    0x45: (0, lambda raw: []),
    0x56: (1, _boolean),
    0x73: (4, _char),
    0x74: (4, Decimal32),
    0x84: (8, Decimal64),
    0x94: (16, Decimal128),
    0x98: (16, lambda raw: uuid.UUID(bytes=raw)),
    **{code: (struct.calcsize(layout), _number(layout, kind)) for code, (layout, kind) in NUMBERS.items()},
}
_VARIABLE: Final[dict[int, Callable[[bytes], Any]]] = {
    0xA0: bytes,
    0xB0: bytes,
    0xA1: _string,
    0xB1: _string,
    0xA3: _symbol,
    0xB3: _symbol,
}
_COMPOUND: Final[dict[int, Callable[[bytes, int, int, int, int], Any]]] = {
    0xC0: _decode_items,
    0xD0: _decode_items,
    0xC1: _decode_map,
    0xD1: _decode_map,
    0xE0: _decode_array,
    0xF0: _decode_array,
}

FORMAT_CODES: Final = frozenset(_FIXED) | frozenset(_VARIABLE) | frozenset(_COMPOUND)
"""Every format code of AMQP 1.0."""
_CHECKED: Final = frozenset({0x56, 0x73})
"""Those of a fixed width that not all bytes are a value of."""
