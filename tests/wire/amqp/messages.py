"""One AMQP message as an object: what tests send, store and compare; and its encoded form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import proton

from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SECTION_NAMES,
    decode_sections,
)
from spark_streams.wire.amqp.values import Described, Pairs, ULong


@dataclass(frozen=True)
class Data:
    """A body of data sections."""

    sections: tuple[bytes, ...]


@dataclass(frozen=True)
class Sequence:
    """A body of amqp-sequence sections."""

    sections: tuple[list[Any], ...]


@dataclass(frozen=True)
class Amqp:
    """A body of one amqp-value section."""

    value: Any


@dataclass(frozen=True)
class Message:
    """A message; a missing section is None, and so is a missing body.

    ``header`` and ``properties`` are the sections' lists, fields in the order of the specification; trailing fields
    are left out, as on the wire.
    """

    header: list[Any] | None = None
    delivery_annotations: dict[Any, Any] | Pairs | None = None
    message_annotations: dict[Any, Any] | Pairs | None = None
    properties: list[Any] | None = None
    application_properties: dict[Any, Any] | Pairs | None = None
    body: Data | Sequence | Amqp | None = None
    footer: dict[Any, Any] | Pairs | None = None


def encode_message(message: Message) -> bytes:
    """Encode a message, each value in its most compact form."""
    parts: list[tuple[int, Any]] = [
        (HEADER, message.header),
        (DELIVERY_ANNOTATIONS, message.delivery_annotations),
        (MESSAGE_ANNOTATIONS, message.message_annotations),
        (PROPERTIES, message.properties),
        (APPLICATION_PROPERTIES, message.application_properties),
    ]
    encoded = [_encode_section(code, value) for code, value in parts if value is not None]
    if isinstance(message.body, Amqp):
        encoded.append(_encode_section(AMQP_VALUE, message.body.value))
    elif message.body is not None:
        code = DATA if isinstance(message.body, Data) else AMQP_SEQUENCE
        encoded.extend(_encode_section(code, section) for section in message.body.sections)
    if message.footer is not None:
        encoded.append(_encode_section(FOOTER, message.footer))
    return b"".join(encoded)


def _encode_section(code: int, value: Any) -> bytes:
    return encode_value(Described(ULong(code), value))


def decode_message(raw: bytes | bytearray | memoryview) -> Message:
    """Decode exactly one encoded message."""
    fields: dict[str, Any] = {}
    body: list[tuple[int, Any]] = []
    for code, value in decode_sections(bytes(raw)):
        if DATA <= code <= AMQP_VALUE:
            body.append((code, value))
        else:
            fields[SECTION_NAMES[code].replace("-", "_")] = value
    if body:
        kind = body[0][0]
        values = tuple(value for _, value in body)
        fields["body"] = Amqp(values[0]) if kind == AMQP_VALUE else (Data if kind == DATA else Sequence)(values)
    return Message(**fields)


def by_proton(message: proton.Message) -> bytes:
    """Return a message as proton encodes it, without the header that it puts in front."""
    raw = bytes(message.encode())
    head, size = {0x45: (1, 0), 0xC0: (2, raw[4]), 0xD0: (5, int.from_bytes(raw[4:8], "big"))}[raw[3]]
    return raw[3 + head + size :]
