"""Asks RabbitMQ which type a queue has, as only a stream keeps the messages that are read.

The broker accepts and echoes the start filter for every type of queue, but a classic or quorum queue loses each message
that a receiver accepts, or lets the broker settle.

Spec: docs/specifications.md, Q-5, Q-17.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.request_links import RequestLinks
from spark_streams.errors import NotFound, Refused
from spark_streams.redaction import safe_text
from spark_streams.wire.amqp.dialects import RABBITMQ
from spark_streams.wire.amqp.management import QUEUES, Received, encode_http_get

_MANAGEMENT_SINCE: Final = (4, 0)
"""The version with ``/management``."""


def version_of(connection: Connection) -> tuple[int, ...]:
    """Return the first two numbers of the peer's version; fewer where it tells none."""
    parts = connection.peer.properties.get("version", "").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def described_queue(connection: Connection, address: str, what: str) -> Received:
    """Return the description of a queue, with status 200.

    Args:
        connection: the connection.
        address: the queue's.
        what: what is asked, for messages.

    Raises:
        NotFound: there is no such queue.
        Refused: the user has no permission on it, or the broker is too old to tell.
        DeadlineExceeded, TransportError: no answer came in time, or the connection ended.
    """
    context = f"{what} at {connection.endpoint.address}"
    if version_of(connection) < _MANAGEMENT_SINCE:
        raise Refused("not supported", "RabbitMQ tells the arguments of a stream from 4.0 on", context)
    with closing(RequestLinks(connection, QUEUES, paired=True)) as links:
        (answer,) = links.answers([partial(encode_http_get, path=address)], what)
    if answer.subject == "200":
        return answer
    kind = NotFound if answer.subject == "404" else Refused
    raise kind(f"status {answer.subject}", safe_text(str(answer.body)), context)


def is_stream(connection: Connection, address: str, queue: str) -> bool:
    """Return whether a queue is known to be a stream; ask once on a connection.

    Args:
        connection: the connection.
        address: the queue's.
        queue: its name, for messages.

    Returns:
        False where the peer does not tell, has no such queue, or is no RabbitMQ.

    Raises:
        Refused: the queue is of another type.
        DeadlineExceeded, TransportError: as for ``described_queue``.
    """
    if address in connection.streams or connection.dialect.name != RABBITMQ.name:
        return address in connection.streams
    what, kind = f"the type of queue '{queue}'", None
    with suppress(Refused, NotFound):  # the attach, which follows, gives a better error
        described = described_queue(connection, address, what).body
        kind = described.get("type") if isinstance(described, Mapping) else None
    if kind == "stream":
        connection.streams.add(address)
    elif kind is not None:
        raise Refused(
            "not implemented",
            f"queue '{queue}' is a {safe_text(str(kind))} queue, not a stream: to read a message would take it off. "
            "Name a stream, such as one that is declared with 'x-queue-type' stream and bound to the same exchange",
            f"{what} at {connection.endpoint.address}",
        )
    return kind == "stream"
