"""The shape of a message: its bytes without the contents of its values, so that many messages are compared at once.

The messages of one producer differ in the contents of their values and in the sizes that count these, and hardly in
anything else. A shape is read from one message, in Python, and is a list of fixed parts::

    00 53 72 c1 .. 02 a3 17 event-streams-group-key a1 ..  | key
    00 53 75 a0 ..                                         | body

A fixed part lies between two values of variable length. Its bytes are the same in all messages of the shape, except
for sizes, lengths and numbers (``..``); it ends with the length of the value that follows it. Where sizes and lengths
agree with each other and with the message's end, a message has the shape, and each of its values lies at a known place.

Only a message that is intact has a shape: one whose keys are texts, each once in its map, and whose values every reader
can decode, provided that texts are UTF-8. Any other one has none: the lockstep walk reads it, or
``message.py``, which also says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np

from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.columns.canonical import BINARY_CODES, BODY_CODES, KIND_CODES, TEXT_CODES
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.event_streams import ASSIGNED_KEYS
from spark_streams.wire.columnar.byte_view import WORD, Octets

NULL: Final = 0x40
TRUE, FALSE = 0x41, 0x42
INTEGERS: Final = {
    0x43: "", 0x44: "", 0x50: "u1", 0x51: "i1", 0x52: "u1", 0x53: "u1", 0x54: "i1", 0x55: "i1", 0x60: ">u2",
    0x61: ">i2", 0x70: ">u4", 0x71: ">i4", 0x80: ">u8", 0x81: ">i8", 0x83: ">i8",
}  # fmt: skip
"""The format codes of integers and timestamps, and NumPy's name of their contents; those without content are 0."""
_BOOLEAN: Final = 0x56
_WIDTHS: Final = {NULL: 0, TRUE: 0, FALSE: 0, 0x72: 4, 0x82: 8, 0x98: 16} | {
    code: np.dtype(kind).itemsize if kind else 0 for code, kind in INTEGERS.items()
}
"""The format codes of the values of fixed width that a shape may have, whose every content is valid; their widths."""
_EMPTY_LIST: Final = 0x45
_MAPS: Final = (0xC1, 0xD1)
_VARIABLE: Final = frozenset((*TEXT_CODES, *BINARY_CODES))
_WIDE: Final = 0x10
"""The bit of a format code whose size has four bytes, not one."""
_SMALL_SIZE, _WIDE_SIZE = "u1", ">u4"

_MOST_BYTES: Final = 2_048
"""The most bytes of the fixed parts of a shape: for more, the lockstep walk takes about as long."""
_MOST_ITEMS: Final = 128


class Slot(NamedTuple):
    """A value of a shape.

    Args:
        code: its format code.
        part: the number of the fixed part that it is in, or of the one before it if it is of variable length.
        at: where it begins in that part's bytes, after the format code.
    """

    code: int
    part: int
    at: int


Entries = tuple[tuple[bytes, Slot], ...]
"""The entries of a map, or the items of a list, whose keys are empty."""


class Size(NamedTuple):
    """The size of a list or map that does not end in the fixed part where it begins.

    Args:
        part: the number of the fixed part that has the size.
        at: where, in that part's bytes.
        kind: NumPy's name of the number.
        end: where the list or map ends, in the bytes of the fixed part that has this ``Size``.
    """

    part: int
    at: int
    kind: str
    end: int


class FixedPart(NamedTuple):
    """The bytes between two values of variable length.

    Args:
        width: their number.
        text: the bytes as words of the processor, the last one filled up; zeros where messages may differ.
        fixed: ones in the bits that are the same in all messages.
        length: NumPy's name of the number at the end, which is the next value's length; empty in the last part.
        sizes: those of the lists and maps that end in this part.
        same: ``text`` and ``fixed`` as two numbers, the first byte lowest.
    """

    width: int
    text: Octets
    fixed: Octets
    length: str
    sizes: tuple[Size, ...]
    same: tuple[int, int]

    @property
    def length_at(self) -> int:
        """Where the length is in the bytes."""
        return self.width - (np.dtype(self.length).itemsize if self.length else 0)


class Shape(NamedTuple):
    """The shape of a message.

    Args:
        fixed_parts: its bytes.
        delivery: the delivery annotations; empty without the section.
        annotations, properties, application: the entries of these sections; None without the section.
        body: the body's section code and its value; None without a body.
        bare: the part, and the place in its bytes, where the header and the delivery annotations end.
        last: the code of the section with which the shape ends, whatever follows; that of the footer for all.
        places: the annotations whose types were checked.
    """

    fixed_parts: tuple[FixedPart, ...]
    delivery: Entries
    annotations: Entries | None
    properties: Entries | None
    application: Entries | None
    body: tuple[int, Slot] | None
    bare: tuple[int, int]
    last: int
    places: Places

    @property
    def whole(self) -> bool:
        """Whether the shape is that of whole messages."""
        return self.last == m.FOOTER

    def fits(self, raw: memoryview) -> bool:
        """Return whether a message has this shape, without a look at the sizes of its lists and maps."""
        at = 0
        for width, _, _, length, _, (text, fixed) in self.fixed_parts:
            stop = at + width
            if (int.from_bytes(raw[at:stop], "little") ^ text) & fixed or stop > len(raw):
                return False
            at = stop
            if length:
                at += int.from_bytes(raw[stop - 4 : stop], "big") if length == _WIDE_SIZE else raw[stop - 1]
        return at == len(raw) or not self.whole


def shape_of(raw: memoryview, last: int = m.FOOTER, places: Places = EVENT_STREAMS.places) -> Shape | None:
    """Return the shape of a message, None if it has none.

    Args:
        raw: exactly one message, or its sections up to ``last`` and any bytes after them.
        last: the code of the last section to look at, which the message must have; that of the footer for all.
        places: the annotations that become columns.
    """
    try:
        return _Reader(raw).shape(last, places)
    except _NoShape:
        return None


class _NoShape(Exception):
    """The message has no shape."""


class _Reader:
    """Reads one message, and collects its fixed parts."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._at = 0
        self._left = _MOST_BYTES
        self._parts: list[FixedPart] = []
        self._text, self._fixed = bytearray(), bytearray()
        self._sizes: list[Size] = []

    def shape(self, last: int, places: Places) -> Shape:
        sections: dict[int, Entries] = {}
        body: tuple[int, Slot] | None = None
        bare: tuple[int, int] | None = None
        before = m.HEADER - 1
        while self._at < len(self._raw) and before != last:
            here = len(self._parts), len(self._text)
            head = self._take(3)
            code = head[2]
            if head[:2] != b"\x00\x53" or not before < code <= m.AMQP_VALUE or body is not None:
                raise _NoShape
            if code > m.DELIVERY_ANNOTATIONS:
                bare = bare or here
            if code < m.DATA:
                sections[code] = self._items(m.VALUE_CODES[code])
            else:
                body = code, self._value()
                if code not in BODY_CODES or not BODY_CODES[code][body[1].code]:
                    raise _NoShape
            before = code
        if last != m.FOOTER and before != last:
            raise _NoShape
        bare = bare or (len(self._parts), len(self._text))
        self._close("")
        _check_types(sections, places)
        return Shape(
            tuple(self._parts),
            sections.get(m.DELIVERY_ANNOTATIONS, ()),
            sections.get(m.MESSAGE_ANNOTATIONS),
            sections.get(m.PROPERTIES),
            sections.get(m.APPLICATION_PROPERTIES),
            body,
            bare,
            last,
            places,
        )

    def _take(self, count: int, *, same: bool = True) -> bytes:
        """Take bytes into the part; ``same`` says whether all messages have them."""
        content = bytes(self._raw[self._at : self._at + count])
        self._left -= count
        if len(content) < count or self._left < 0:
            raise _NoShape
        self._at += count
        self._text += content if same else bytes(count)
        self._fixed += (b"\xff" if same else b"\0") * count
        return content

    def _value(self) -> Slot:
        code = self._take(1)[0]
        slot = Slot(code, len(self._parts), len(self._text))
        if code in _VARIABLE:
            kind, width = (_WIDE_SIZE, 4) if code & _WIDE else (_SMALL_SIZE, 1)
            length = int.from_bytes(self._take(width, same=False), "big")
            self._at += length
            self._close(kind)
        elif code == _BOOLEAN:
            content = self._take(1)[0]
            if content > 1:
                raise _NoShape
            return slot._replace(code=TRUE if content else FALSE)
        elif code in _WIDTHS:
            self._take(_WIDTHS[code], same=False)
        else:
            raise _NoShape
        return slot

    def _key(self) -> bytes:
        code = self._take(1)[0]
        if code not in TEXT_CODES:
            raise _NoShape
        key = self._take(int.from_bytes(self._take(4 if code & _WIDE else 1), "big"))
        try:
            key.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise _NoShape from fault
        return key

    def _items(self, codes: Collection[int]) -> Entries:
        """Take a list or map, whose format code is one of ``codes``."""
        code = self._take(1)[0]
        if code not in codes:
            raise _NoShape
        if code == _EMPTY_LIST:
            return ()
        kind, width = (_WIDE_SIZE, 4) if code & _WIDE else (_SMALL_SIZE, 1)
        part, place = len(self._parts), len(self._text)
        size = self._take(width, same=False)
        stop = self._at + int.from_bytes(size, "big")
        count = int.from_bytes(self._take(width), "big")
        keyed = code in _MAPS
        if count > _MOST_ITEMS or (keyed and count % 2):
            raise _NoShape
        found = tuple((self._key() if keyed else b"", self._value()) for _ in range(count // 2 if keyed else count))
        if self._at != stop or (keyed and len({key for key, _ in found}) < len(found)):
            raise _NoShape
        if part == len(self._parts):  # with values of fixed width only, the size is the same in all messages
            self._text[place : place + width] = size
            self._fixed[place : place + width] = b"\xff" * width
        else:
            self._sizes.append(Size(part, place, kind, len(self._text)))
        return found

    def _close(self, length: str) -> None:
        """End the part; ``length`` as in ``FixedPart``."""
        whole = -(-len(self._text) // WORD) * WORD
        text, fixed = (bytes(each.ljust(whole, b"\0")) for each in (self._text, self._fixed))
        self._parts.append(
            FixedPart(
                len(self._text),
                np.frombuffer(text, np.uint64),
                np.frombuffer(fixed, np.uint64),
                length,
                tuple(self._sizes),
                (int.from_bytes(text, "little"), int.from_bytes(fixed, "little")),
            )
        )
        self._text, self._fixed, self._sizes = bytearray(), bytearray(), []


def _check_types(sections: Mapping[int, Entries], places: Places) -> None:
    """Check the values whose types columns depend on.

    Raises:
        _NoShape: one has another type.
    """
    fields = sections.get(m.PROPERTIES, ())
    if len(fields) > len(PROPERTY_FIELDS):
        raise _NoShape
    for (_, kind), (_, slot) in zip(PROPERTY_FIELDS, fields, strict=False):
        if kind in KIND_CODES and not KIND_CODES[kind][slot.code]:
            raise _NoShape
    if {key.decode() for key, _ in sections.get(m.DELIVERY_ANNOTATIONS, ())} & set(ASSIGNED_KEYS):
        raise _NoShape
    for column, place in places.by_column.items():
        annotation = dict(sections.get(place.section, ())).get(place.key.encode())
        if annotation is not None and column != "group_key" and not KIND_CODES[place.kind][annotation.code]:
            raise _NoShape
