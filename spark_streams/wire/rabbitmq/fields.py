"""Field types, and the layout of a command from the annotations of its dataclass, which describe each field once.

::

    uint8 … uint64, int64   big-endian
    string                  int16 length, -1 for null, then that many bytes of UTF-8
    bytes                   int32 length, -1 for null, then the bytes
    [T]                     int32 count, then as many T

Every length is checked against the bytes left before anything is allocated for it, so a peer's bytes cannot make a
reader allocate more than their own size.

Spec: Streams Protocol Reference, "Types".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Final, Protocol, TypeVar, get_type_hints

from spark_streams.errors import LocalProtocolError, RemoteProtocolError

MAX_TEXT_BYTES: Final = 2**15 - 1
MAX_BLOB_BYTES: Final = 2**31 - 1

T = TypeVar("T")


class Reader:
    """A bounds-checked reader of one frame's content.

    Args:
        buffer: holds the content.
        at: first byte to read, inclusive.
        end: end of the content, exclusive.
        what: the command's name, for errors.
    """

    __slots__ = ("at", "buffer", "end", "what")

    def __init__(self, buffer: bytes | bytearray | memoryview, at: int, end: int, what: str) -> None:
        self.buffer = buffer
        self.at = at
        self.end = end
        self.what = what

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return self.end - self.at

    def take(self, size: int, field: str) -> bytes:
        """Return the next ``size`` bytes.

        Raises:
            RemoteProtocolError: fewer bytes are left.
        """
        if size > self.left:
            raise RemoteProtocolError(f"{self.what}: {field} needs {size} bytes, the frame has {self.left} left")
        start = self.at
        self.at += size
        return bytes(self.buffer[start : self.at])


class FieldType(Protocol):
    """The encoding of one kind of field."""

    least: int
    """The fewest bytes of a value, which bound the count of an array."""

    def write(self, out: bytearray, value: Any, field: str) -> None:
        """Append the value."""

    def read(self, reader: Reader, field: str) -> Any:
        """Return the next value."""


class Number:
    """A number; ``code`` is its type as ``struct`` has it."""

    def __init__(self, code: str) -> None:
        self._struct = struct.Struct(">" + code)
        self.least = self._struct.size

    def write(self, out: bytearray, value: Any, field: str) -> None:
        """Append the value."""
        try:
            out += self._struct.pack(value)
        except struct.error as fault:
            raise LocalProtocolError(f"{field} is {value!r}: {fault}") from fault

    def read(self, reader: Reader, field: str) -> Any:
        """Return the next value."""
        at, end = reader.at, reader.at + self.least
        if end > reader.end:
            reader.take(self.least, field)
        reader.at = end
        return self._struct.unpack_from(reader.buffer, at)[0]


class _Blob:
    """Bytes after their length, which has the struct code ``length``; the length of null is -1."""

    def __init__(self, length: str, most: int, nullable: bool) -> None:
        self._length, self._most, self._nullable = struct.Struct(">" + length), most, nullable
        self.least = self._length.size

    def write(self, out: bytearray, value: Any, field: str) -> None:
        if value is None:
            out += self._length.pack(-1)
            return
        if len(value) > self._most:
            raise LocalProtocolError(f"{field} has {len(value)} bytes, expected at most {self._most}")
        out += self._length.pack(len(value)) + value

    def read(self, reader: Reader, field: str) -> Any:
        at, start = reader.at, reader.at + self.least
        if start <= reader.end:
            (size,) = self._length.unpack_from(reader.buffer, at)
            if 0 <= size <= reader.end - start:  # as nearly always
                reader.at = start + size
                return bytes(reader.buffer[start : reader.at])
        (size,) = self._length.unpack(reader.take(self.least, field))
        if size == -1 and self._nullable:
            return None
        if size < 0:
            raise RemoteProtocolError(f"{reader.what}: {field} has length {size}")
        return reader.take(size, field)


class _Text(_Blob):
    def __init__(self, nullable: bool) -> None:
        super().__init__("h", MAX_TEXT_BYTES, nullable)

    def write(self, out: bytearray, value: Any, field: str) -> None:
        if not isinstance(value, str) and not (value is None and self._nullable):
            raise LocalProtocolError(f"{field} is {value!r:.80}, expected a string")
        super().write(out, None if value is None else value.encode("utf-8", "surrogatepass"), field)

    def read(self, reader: Reader, field: str) -> Any:
        content = super().read(reader, field)
        try:
            return "" if content is None else content.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise RemoteProtocolError(f"{reader.what}: {field} is not UTF-8: {fault.reason}") from fault


class _Array:
    least = 4

    def __init__(self, item: FieldType) -> None:
        self._item = item

    def write(self, out: bytearray, value: Any, field: str) -> None:
        out += struct.pack(">i", len(value))
        for each in value:
            self._item.write(out, each, field)

    def read(self, reader: Reader, field: str) -> Any:
        return tuple(self.each(reader, field))

    def each(self, reader: Reader, field: str) -> Iterator[Any]:
        """Yield the items as they are read."""
        for _ in range(_count(reader, field, self._item.least)):
            yield self._item.read(reader, field)


def _count(reader: Reader, field: str, least: int) -> int:
    """Return how many items of at least so many bytes come."""
    (count,) = struct.unpack(">i", reader.take(4, field))
    if not 0 <= count * least <= reader.left:
        raise RemoteProtocolError(f"{reader.what}: {field} has {count} items, the frame has {reader.left} bytes")
    return int(count)


class _Struct:
    def __init__(self, kind: type) -> None:
        self._kind = kind
        self.least = sum(field_type.least for _, field_type in layout_of(kind))

    def write(self, out: bytearray, value: Any, field: str) -> None:
        write_fields(out, value)

    def read(self, reader: Reader, field: str) -> Any:
        return self._kind(**read_fields(reader, self._kind))


class _Map:
    """An array of (key, value), as a mapping, without an object for each: a plan reads thousands of counts."""

    def __init__(self, key: FieldType, value: FieldType, *, optional: bool = True, written_empty: bool = True) -> None:
        self._key, self._value = key, value
        self._optional, self._written_empty = optional, written_empty
        self.least = 0 if optional else 4

    def write(self, out: bytearray, value: Any, field: str) -> None:
        if not value and not self._written_empty:
            return
        out += struct.pack(">i", len(value))
        for key, each in value.items():
            self._key.write(out, key, field)
            self._value.write(out, each, field)

    def read(self, reader: Reader, field: str) -> Any:
        if self._optional and not reader.left:
            return {}
        count = _count(reader, field, self._key.least + self._value.least)
        return {self._key.read(reader, field): self._value.read(reader, field) for _ in range(count)}


U8 = Annotated[int, Number("B")]
"""uint8."""
U16 = Annotated[int, Number("H")]
"""uint16."""
U32 = Annotated[int, Number("I")]
"""uint32."""
U64 = Annotated[int, Number("Q")]
"""uint64."""
Text = Annotated[str, _Text(nullable=False)]
"""string that may not be null."""
Blob = Annotated[bytes | None, _Blob("i", MAX_BLOB_BYTES, nullable=True)]
"""bytes."""
_PROPERTY: Final = _Text(nullable=True)
Pairs = Annotated[Mapping[str, str], _Map(_PROPERTY, _PROPERTY)]
"""[Key Value]; an empty one is written too, as its count."""
SparsePairs = Annotated[Mapping[str, str], _Map(_PROPERTY, _PROPERTY, written_empty=False)]
"""[Key Value]; an empty one is left out."""
Counts = Annotated[Mapping[str, int], _Map(_Text(nullable=False), Number("q"), optional=False)]
"""[Key Value] with strings and int64s."""


def array_of(item: Any) -> _Array:
    """Return the type of an array whose ``item`` is one of the types above or a dataclass of such fields."""
    return _Array(_field_type(item))


def _field_type(annotation: Any) -> FieldType:
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _Struct(annotation)
    found: FieldType = annotation.__metadata__[0]
    return found


_LAYOUTS: Final[dict[type, tuple[tuple[str, FieldType], ...]]] = {}


def layout_of(kind: type) -> tuple[tuple[str, FieldType], ...]:
    """Return the fields of a dataclass, in the order of the wire, with their types."""
    layout = _LAYOUTS.get(kind)
    if layout is None:
        hints = get_type_hints(kind, include_extras=True)
        layout = _LAYOUTS[kind] = tuple((field.name, _field_type(hints[field.name])) for field in fields(kind))
    return layout


def write_fields(out: bytearray, value: object) -> None:
    """Append the fields of a dataclass instance.

    Raises:
        LocalProtocolError: a value does not fit its field.
    """
    for name, field_type in layout_of(type(value)):
        field_type.write(out, getattr(value, name), f"{type(value).__name__}.{name}")


def read_fields(reader: Reader, kind: type) -> dict[str, Any]:
    """Read the fields of a dataclass.

    Raises:
        RemoteProtocolError: the bytes do not fit.
    """
    return {name: field_type.read(reader, name) for name, field_type in layout_of(kind)}
