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

import codecs
import struct
import uuid
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

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
"""About how many bytes are checked in a step, which takes a millisecond or two."""
LONG_BYTES: Final = 1 << 20
"""A text of more bytes is checked in steps, and a message of more is read by itself."""

T = TypeVar("T")
Raw = bytes | memoryview
"""Encoded bytes; of a ``memoryview``, only the bytes that a value keeps are copied."""


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
    raw = bytes(buffer) if isinstance(buffer, bytearray) else buffer
    if position < 0:
        raise LocalProtocolError(f"position {position} is before the buffer")
    width, convert = _FIXED.get(raw[position] if position < len(raw) else 0, (len(raw), bytes))
    if position + width < len(raw):  # most values are so short
        return convert(raw[position + 1 : position + 1 + width]), position + 1 + width
    (value,), end = finished(value_steps(raw, position, len(raw)))
    return value, end


def finished(steps: Generator[object, None, T]) -> T:
    """Run a generator to its end, and return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            returned: T = end.value
            return returned


def value_steps(
    raw: Raw, position: int, end: int, count: int = 1, *, depth: int = 0, of: int = 0, keep: bool = True
) -> Generator[None, None, tuple[list[Any], int]]:
    """Decode consecutive values.

    Args:
        raw: encoded bytes.
        position: the first value's constructor, inclusive.
        end: where they end at the latest, exclusive.
        count: how many they are.
        depth: how deep they nest.
        of: the format code of all, as in an array; 0: each has its own.
        keep: whether they are wanted: if not they are only checked, and take no memory.

    Returns:
        The values, none if they are not wanted, and the position after the last one.

    Yields:
        None, after each few thousand bytes.

    Raises:
        RemoteProtocolError: one of them cannot be decoded.
    """
    items, mark = [], position
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
        value = None
        if code in _FIXED:
            width, convert = _FIXED[code]
            stop = position + width
            if stop > end:
                raise _short(position)
            if keep or code in _CHECKED:
                value = convert(raw[position:stop])
        elif code in _VARIABLE:
            start, stop = _content(raw, position, end, code)
            if stop - start > LONG_BYTES and not keep:
                yield from _long_steps(raw, start, stop, code)
            else:
                value = _VARIABLE[code](raw[start:stop])
        elif code and code not in _COMPOUND:
            raise RemoteProtocolError(f"AMQP value at byte {position - 1}: 0x{code:02x} is no format code")
        elif depth >= MAX_DEPTH:
            raise RemoteProtocolError(f"AMQP value at byte {position - 1}: nests deeper than {MAX_DEPTH}")
        elif code:
            start, stop = _content(raw, position, end, code)
            value = yield from _compound_steps(raw, start, stop, code, depth + 1, keep)
        else:
            pair, stop = yield from value_steps(raw, position, end, 2, depth=depth + 1, keep=keep)
            value = Described(*pair) if keep else None
        if keep:
            items.append(value)
        position = stop
    return items, position


def _long_steps(raw: Raw, start: int, stop: int, code: int) -> Generator[None, None, None]:
    """Check the content of a long binary, string or symbol."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(start, stop, LONG_BYTES) if _VARIABLE[code] is not bytes else ():
        yield
        try:
            decoder.decode(raw[at : min(stop, at + LONG_BYTES)], at + LONG_BYTES >= stop)
        except UnicodeDecodeError:
            _string(raw[start:stop])  # which says where


def _content(raw: Raw, position: int, end: int, code: int) -> tuple[int, int]:
    """Return where the content of a value that has a size begins and ends."""
    start = position + (4 if code & 0x10 else 1)
    stop = start + int.from_bytes(raw[position:start], "big")
    if start > end or stop > end:
        raise _short(position)
    return start, stop


def _compound_steps(raw: Raw, start: int, stop: int, code: int, depth: int, keep: bool) -> Generator[None, None, Any]:
    """Decode the content of a list, map or array."""
    position = start + (4 if code & 0x10 else 1)
    if position > stop:
        raise RemoteProtocolError(f"AMQP value at byte {start}: size {stop - start} leaves no room for its count")
    count = int.from_bytes(raw[start:position], "big")
    descriptor, each = list[Any](), 0
    if code in _MAPS and count % 2:
        raise RemoteProtocolError(f"AMQP map at byte {position}: {count} keys and values, expected an even number")
    if code in _ARRAYS:
        if position < stop and raw[position] == 0:
            descriptor, position = yield from value_steps(raw, position + 1, stop, depth=depth, keep=keep)
        if position >= stop:
            raise _short(position)
        each = raw[position]
        if each >> 4 == 4 and count > MAX_EMPTY_ITEMS:
            raise RemoteProtocolError(f"AMQP array at byte {position}: claims {count} items without data")
        if each not in FORMAT_CODES:
            raise RemoteProtocolError(f"AMQP array at byte {position}: 0x{each:02x} is no format code")
        position += 1
    items, end = yield from value_steps(raw, position, stop, count, depth=depth, of=each, keep=keep)
    if end != stop:
        raise RemoteProtocolError(f"AMQP list, map or array at byte {end}: {stop - end} bytes after its last item")
    if each:
        return Array(each, tuple(items), descriptor[0] if descriptor else None)
    return Pairs.collect(list(zip(items[::2], items[1::2], strict=True))) if code in _MAPS else items


def _short(position: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"AMQP value at byte {position}: the bytes end before the value does")


def _boolean(raw: Raw) -> bool:
    if raw[0] > 1:
        raise RemoteProtocolError(f"AMQP boolean: 0x{raw[0]:02x}, expected 0x00 or 0x01")
    return raw[0] == 1


def _char(raw: Raw) -> Char:
    code_point = int.from_bytes(raw, "big")
    if code_point > 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise RemoteProtocolError(f"AMQP char: 0x{code_point:08x} is no Unicode scalar value")
    return Char(chr(code_point))


def _string(raw: Raw) -> str:
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError as fault:
        raise RemoteProtocolError(f"AMQP string or symbol: not UTF-8 at its byte {fault.start}") from fault


def _symbol(raw: Raw) -> Symbol:
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


def _number(layout: str, kind: type) -> Callable[[Raw], Any]:
    return lambda raw: kind(*struct.unpack(layout, raw))


_FIXED: Final[dict[int, tuple[int, Callable[[Raw], Any]]]] = {
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
    0x98: (16, lambda raw: uuid.UUID(bytes=bytes(raw))),
    **{code: (struct.calcsize(layout), _number(layout, kind)) for code, (layout, kind) in NUMBERS.items()},
}
_VARIABLE: Final[dict[int, Callable[[Raw], Any]]] = {
    0xA0: bytes,
    0xB0: bytes,
    0xA1: _string,
    0xB1: _string,
    0xA3: _symbol,
    0xB3: _symbol,
}
_MAPS: Final = frozenset({0xC1, 0xD1})
_ARRAYS: Final = frozenset({0xE0, 0xF0})
_COMPOUND: Final = _MAPS | _ARRAYS | {0xC0, 0xD0}

FORMAT_CODES: Final = frozenset(_FIXED) | frozenset(_VARIABLE) | _COMPOUND
"""Every format code of AMQP 1.0."""
_CHECKED: Final = frozenset({0x56, 0x73})
"""The format codes of fixed width for which some bytes are no value."""
