"""Requests about streams and their replies: to ``$management`` of Event Hubs and our AMQP door, and to RabbitMQ.

::

    request   properties              message-id, reply-to
              application properties  operation, type, name and others, strings
              amqp-value              null, or a map
    reply     properties              correlation-id: the request's message-id
              application properties  status-code as in HTTP, status-description, error-condition
              amqp-value              null, or a map

Event Hubs describes its hubs; our door creates, deletes and describes streams, as an extension. The form is that
of the draft "AMQP Management Version 1.0". Replies from ``$cbs`` have it too.

RabbitMQ has requests of HTTP at ``/management``::

    request   properties              message-id, to: the path, subject: the method, reply-to ``$me``
              amqp-value              null
    reply     properties              correlation-id: the request's message-id, subject: the status
              amqp-value              a map, or a text that says what was wrong

A stream's description has the same shape at both: ``{"name": "orders", "type": "stream", "arguments": {…}, …}``.

Spec: docs/specifications.md, H-3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import AMQP_VALUE, APPLICATION_PROPERTIES, PROPERTIES, decode_sections
from spark_streams.wire.amqp.values import Described, Int, Symbol, ULong

MANAGEMENT: Final = "$management"
"""The address."""
QUEUES: Final = "/management"
"""RabbitMQ's address."""
PAIR: Final = "$me"
"""The address for replies that come on the other link of a pair."""
CREATE: Final = "CREATE"
DELETE: Final = "DELETE"
READ: Final = "READ"
"""Operations."""
STREAM_TYPE: Final = "spark-streams:stream"
"""The type of the entities that our door creates and deletes."""
PARTITIONS: Final = "partitions"
"""The number of partitions in the body of a request to create a stream."""
ARGUMENTS: Final = "arguments"
"""The settings of a stream in its description; our door and RabbitMQ have names of their own for them."""
_CORRELATION_ID: Final = 5
_SUBJECT: Final = 3


class Received(NamedTuple):
    """A reply as a client gets it.

    Args:
        request: the message-id of the request; empty for none.
        said: its application properties.
        body: its amqp-value.
        subject: of RabbitMQ, its status; else empty.
    """

    request: str
    said: Mapping[str, Any]
    body: Any
    subject: str = ""


def encode_request(message_id: str, reply_to: str, said: Mapping[str, str], body: Mapping[str, Any] | None) -> bytes:
    """Return a request.

    Args:
        message_id: its id, which the reply has.
        reply_to: the target address of the link that receives the reply.
        said: its application properties.
        body: its amqp-value; None for null.
    """
    return encode_message([message_id, None, None, None, reply_to], said, body)


def encode_http_get(message_id: str, reply_to: str, path: str) -> bytes:
    """Return a request to RabbitMQ, whose reply has what is at a path.

    Args:
        message_id: its id, which the reply has.
        reply_to: ``PAIR``.
        path: the path, with its parts quoted as in a url.
    """
    return encode_message([message_id, None, path, "GET", reply_to], {}, None)


def encode_reply(
    request: object,
    status: int,
    description: str,
    condition: str | None = None,
    body: Mapping[str, object] | None = None,
) -> bytes:
    """Return a reply.

    Args:
        request: the message-id of the request, of its type.
        status: of HTTP.
        description: for the client's user.
        condition: the condition of an error, or None.
        body: the amqp-value; None for null.
    """
    said: dict[str, object] = {"status-code": Int(status), "status-description": description}
    if condition is not None:
        said["error-condition"] = Symbol(condition)
    return encode_message([None, None, None, None, None, request], said, body)


def decode_reply(message: bytes) -> Received:
    """Read a reply.

    Raises:
        RemoteProtocolError: it is no message.
    """
    sections = dict(decode_sections(message))
    properties, said = sections.get(PROPERTIES) or [], sections.get(APPLICATION_PROPERTIES)
    named = {str(k): v for k, v in said.items()} if isinstance(said, Mapping) else {}
    texts = ["" if value is None else str(value) for value in (*properties, *[None] * (_CORRELATION_ID + 1))]
    request, subject = texts[_CORRELATION_ID], texts[_SUBJECT]
    return Received(request, named, sections.get(AMQP_VALUE), subject)


def encode_message(properties: list[object], said: Mapping[str, object], body: object) -> bytes:
    """Return a message; ``said`` are its application properties, and ``body`` its value."""
    value = dict(body) if isinstance(body, Mapping) else body
    parts = ((PROPERTIES, properties), *([(APPLICATION_PROPERTIES, dict(said))] if said else []), (AMQP_VALUE, value))
    return b"".join(encode_value(Described(ULong(code), value)) for code, value in parts)
