"""One AMQP message, encoded: what tests send and store."""

from __future__ import annotations

from typing import Any

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
    Amqp,
    Data,
    Message,
)
from spark_streams.wire.amqp.values import Described, ULong


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
