"""Splits one stored event for the page that shows it in full: the sections of its message, and its body.

Short values are decoded; a long one is shown as its first bytes. So an event of any size, and one whose bytes are no
message, makes a small page.

Spec: AMQP 1.0 part 3 §3.2 (message format).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.rabbitmq.stored_form import ESCAPE
from spark_streams.server.web.formats import size as size_text
from spark_streams.server.web.formats import time as time_text
from spark_streams.server.web.shown_text import json_layout, one_visible_line, text_of, visible
from spark_streams.wire.amqp.canonical_text import canonical_text
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS
from spark_streams.wire.amqp.message import (
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    PROPERTIES,
    SECTION_NAMES,
    Section,
    decode_section,
    split_sections,
)
from spark_streams.wire.amqp.values import Array, Described, Pairs, Timestamp

_HEADER_FIELDS: Final = ("durable", "priority", "ttl", "first-acquirer", "delivery-count")
_PROPERTY_FIELDS: Final = tuple(name.replace("_", "-") for name, _ in PROPERTY_FIELDS)
_MOST_TEXT: Final = 2_000
"""The most characters of one value in a table."""
_MOST_FIELDS: Final = 500
_MOST_DECODED: Final = 64 << 10
"""The most bytes of a section that is decoded."""
_MOST_SECTIONS: Final = 32
"""The most sections of a body that are listed."""
_MOST_SPLIT: Final = 1_000
"""The most sections of a message that are shown separately: ten megabytes can hold two million empty ones."""
_TYPES: Final = {
    bool: "boolean", int: "long", float: "double", str: "string", bytes: "binary", uuid.UUID: "uuid", list: "list",
    dict: "map", Pairs: "map", type(None): "null",
}  # fmt: skip
"""Python's own types that stand for AMQP's; the others have AMQP's names."""


@dataclass(frozen=True)
class Field:
    """A property, an annotation, or an entry of another map or list.

    Args:
        name: its name.
        type: the AMQP type of its value.
        text: its value, fit to be shown.
    """

    name: str
    type: str
    text: str


@dataclass(frozen=True)
class Part:
    """A section of the message other than its body.

    Args:
        name: the section's name in AMQP.
        size: its bytes.
        fields: what it holds.
        fault: why its fields are not shown, or not all; empty when all are.
    """

    name: str
    size: int
    fields: tuple[Field, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class Body:
    """The body of an event.

    Args:
        kind: the number of sections and their name, as text.
        type: the AMQP type of an amqp-value; empty for another body.
        content: its first bytes.
        size: the number of all its bytes.
        json: its beginning as JSON, laid out; None when it is no JSON.
        text: its beginning as text; None when it is no text.
        fault: why it is shown as bytes only; empty when there is no reason.
    """

    kind: str
    type: str = ""
    content: bytes = b""
    size: int = 0
    json: str | None = None
    text: str | None = None
    fault: str = ""

    @property
    def cut(self) -> bool:
        """Whether it is longer than what is shown."""
        return self.size > len(self.content)


@dataclass(frozen=True)
class Message:
    """A message in its parts.

    Args:
        parts: its sections other than the body, in their order.
        body: its body; None without one.
        fault: what is wrong with the stored bytes; empty when they are a message.
    """

    parts: tuple[Part, ...] = ()
    body: Body | None = None
    fault: str = ""


def message_of(raw: bytes, most: int) -> Message:
    """Return the parts of a stored message.

    Args:
        raw: the stored bytes.
        most: the bytes of the body that are shown.
    """
    try:
        sections = split_sections(raw, most=_MOST_SPLIT)
    except RemoteProtocolError as fault:
        body = shown_body("not an AMQP message", raw[:most], len(raw))
        return Message(body=body, fault=f"The stored bytes cannot be read as a message: {fault}")
    parts = tuple(_part(raw, each) for each in sections if not DATA <= each.code <= AMQP_VALUE)
    bodies = [each for each in sections if DATA <= each.code <= AMQP_VALUE]
    if sections and sections[-1].end < len(raw):
        start = bodies[0].start
        kind = f"more than {len(bodies)} {SECTION_NAMES[bodies[0].code]} sections"
        reason = "It has very many sections: it is shown as it is stored, with all that follows it."
        return Message(parts, Body(kind, "", raw[start : start + most], len(raw) - start, fault=reason))
    return Message(parts, _body(raw, bodies, most) if bodies else None)


def head_size(raw: bytes) -> int:
    """Return how many bytes of a stored message come before its body; all of them where they are no message."""
    try:
        sections = split_sections(raw, APPLICATION_PROPERTIES)
    except RemoteProtocolError:
        return len(raw)
    return sections[-1].end if sections else 0


def body_bytes(raw: bytes) -> bytes:
    """Return the whole body of a stored message, to be saved: its data, its text, or its encoded value.

    Bytes that are no message are the body themselves. A body of very many sections is given as it is stored, with all
    that follows it.
    """
    try:
        sections = split_sections(raw, most=_MOST_SPLIT)
    except RemoteProtocolError:
        return raw
    bodies = [each for each in sections if DATA <= each.code <= AMQP_VALUE]
    if sections and sections[-1].end < len(raw):
        return raw[bodies[0].start :]
    return b"".join(_content(raw, bodies))


def _content(raw: bytes, bodies: Iterable[Section]) -> Iterable[bytes]:
    """Yield the bytes of a body's sections: the content of binary values and texts, the encoding of other values."""
    for each in bodies:
        code = raw[each.value]
        if code in (0xA0, 0xA1, 0xA3):
            yield raw[each.value + 2 : each.end]
        elif code in (0xB0, 0xB1, 0xB3):
            yield raw[each.value + 5 : each.end]
        elif each.code != DATA:  # a data section that holds null has nothing
            yield raw[each.value : each.end]


def _part(raw: bytes, section: Section) -> Part:
    name, size = SECTION_NAMES[section.code], section.end - section.start
    if size > _MOST_DECODED:
        return Part(name, size, fault=f"It has {size_text(size)}, and is not shown.")
    try:
        value = decode_section(raw, section)
    except RemoteProtocolError as fault:
        return Part(name, size, fault=f"It cannot be decoded: {fault}")
    if section.code in (HEADER, PROPERTIES):
        names = _HEADER_FIELDS if section.code == HEADER else _PROPERTY_FIELDS
        named = [(names[at] if at < len(names) else f"field {at}", each) for at, each in enumerate(value)]
        pairs = [(field, each) for field, each in named if each is not None]
    else:
        pairs = [(canonical_text(key), each) for key, each in _pairs(value)]
    fields = tuple(Field(one_visible_line(key, 200), type_of(each), _text(each)) for key, each in pairs[:_MOST_FIELDS])
    more = len(pairs) - len(fields)
    return Part(name, size, fields, f"{more} more are not shown." if more else "")


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(value) if isinstance(value, Pairs) else list(value.items())


def type_of(value: object) -> str:
    """Return the name of a value's AMQP type."""
    if isinstance(value, Array):
        return "array"
    if isinstance(value, Described):
        return f"described {type_of(value.value)}"
    return _TYPES.get(type(value), type(value).__name__.lower())


def _text(value: object) -> str:
    if isinstance(value, bytes) and type(value) is bytes:
        shown = value[: _MOST_TEXT // 3].hex(" ")
        return shown + (" …" if len(value) > _MOST_TEXT // 3 else "")
    text = one_visible_line(canonical_text(value), _MOST_TEXT)
    return f"{text} ({time_text(value)})" if isinstance(value, Timestamp) else text


def _body(raw: bytes, bodies: list[Section], most: int) -> Body:
    name = SECTION_NAMES[bodies[0].code]
    kind = name if len(bodies) == 1 else f"{len(bodies)} {name} sections"
    size = sum(each.end - each.value for each in bodies)
    if bodies[0].code == DATA:
        if raw.startswith(ESCAPE) and bodies[0].start == 0:
            kind = "bytes that a RabbitMQ client published, no AMQP message"
        first, length = bytearray(), 0
        for piece in _content(raw, bodies):
            length += len(piece)
            first += piece[: most - len(first)]
        return shown_body(kind, bytes(first), length)
    if bodies[0].code == AMQP_VALUE and raw[bodies[0].value] in (0xA0, 0xB0, 0xA1, 0xB1, 0xA3, 0xB3):
        content = next(iter(_content(raw, bodies)))
        types = {0xA0: "binary", 0xA1: "string", 0xA3: "symbol"}
        return shown_body(kind, content[:most], len(content), types[raw[bodies[0].value] & ~0x10])
    if size > min(_MOST_DECODED, most):
        encoded = b"".join(raw[each.value : each.end][:most] for each in bodies[:_MOST_SECTIONS])[:most]
        return Body(kind, "", encoded, size, fault=f"It has {size_text(size)}: it is shown encoded, not as values.")
    try:
        values = [decode_section(raw, each) for each in bodies]
    except RemoteProtocolError as fault:
        encoded = b"".join(_content(raw, bodies))
        return Body(kind, "", encoded, len(encoded), fault=f"It cannot be decoded: {fault}")
    encoded = b"".join(_content(raw, bodies))
    is_value = bodies[0].code == AMQP_VALUE
    text = canonical_text(values[0] if is_value else [item for sequence in values for item in sequence])
    of = type_of(values[0]) if is_value else ""
    laid_out = json_layout(text)
    return Body(kind, of, encoded, len(encoded), None if laid_out is None else visible(laid_out), visible(text))


def shown_body(kind: str, content: bytes, size: int, of: str = "") -> Body:
    """Return a body of bytes, also as JSON and as text where it is JSON or text.

    Args:
        kind: its kind, as text.
        content: its first bytes.
        size: the number of all its bytes.
        of: the AMQP type of its value, where it is an amqp-value.
    """
    cut = size > len(content)
    text = text_of(content, cut=cut)
    if text is None:
        return Body(kind, of, content, size)
    laid_out = json_layout(text.removeprefix("\ufeff"), cut=cut)
    return Body(kind, of, content, size, None if laid_out is None else visible(laid_out), visible(text))
