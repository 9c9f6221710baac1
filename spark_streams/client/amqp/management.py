"""Sends requests to a peer's ``$management``.

Event Hubs describes its hubs and partitions; our log creates and deletes streams, and returns their settings.

Spec: docs/specifications.md, H-3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.request_links import RequestLinks
from spark_streams.errors import AuthenticationFailed, NotFound, Refused, RemoteProtocolError
from spark_streams.redaction import quoted, safe_text
from spark_streams.wire.amqp.dialects import EVENT_HUBS, RABBITMQ
from spark_streams.wire.amqp.management import (
    ARGUMENTS,
    CREATE,
    DELETE,
    MANAGEMENT,
    READ,
    STREAM_TYPE,
    Received,
    encode_request,
)

_OK: Final = 200
_DONE: Final = (200, 201, 204)
_UNAUTHORIZED: Final = (401, 403)
_NOT_FOUND: Final = (404, 410)
_NOT_IMPLEMENTED: Final = 501


_MADE: Final = {CREATE: "created", DELETE: "deleted"}
_ELSEWHERE: Final = {
    RABBITMQ.name: ": RabbitMQ does it over its stream protocol, with a url rabbitmq-stream://…",
    EVENT_HUBS.name: ": hubs are made in Azure; for our log give the url of another door, such as amqp://host:port",
}
"""Where streams of a dialect's peers are created and deleted."""

Settings = Mapping[str, str | int | None]
"""Settings of a stream by their names."""
_Request = tuple[Mapping[str, str], Any]
"""The application properties of a request, and its body."""


class Management:
    """The links to ``$management`` of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._links = RequestLinks(connection, MANAGEMENT)

    def close(self) -> None:
        """Close the links."""
        self._links.close()

    def read(self, requests: Sequence[Mapping[str, str]], what: str) -> list[Mapping[str, Any]]:
        """Return the answers to READ requests, in their order.

        Args:
            requests: the application properties of each, beside the operation: ``type``, ``name``, ``partition``.
            what: what is asked about, for messages.

        Raises:
            NotFound: there is no such hub or partition.
            AuthenticationFailed: the peer does not let us ask.
            Refused: it is no Event Hubs.
            RemoteProtocolError: an answer is malformed.
            DeadlineExceeded, TransportError, PeerError: no answer came in time, or the links or the connection ended.
        """
        answers = self._answers([({"operation": READ, **request}, None) for request in requests], what)
        context = f"{what} at {self.connection.endpoint.address}"
        return [_checked(answer, context) for answer in answers]

    def change(self, operation: str, stream: str, settings: Settings | None, what: str) -> int:
        """Have our log make a change, and return the status of its answer.

        Args:
            operation: ``CREATE`` or ``DELETE``.
            stream: the stream's name.
            settings: of a new stream, with ``partitions``; a setting of None is not sent, and then not compared.
            what: what is done, for messages.

        Raises:
            NotFound: there is no such stream.
            Refused: the user may not change it, or there is another stream of that name, or a setting is invalid.
            DeadlineExceeded, TransportError, PeerError: as for ``read``.
        """
        request = {"operation": operation, "type": STREAM_TYPE, "name": stream}
        given = {name: str(value) for name, value in (settings or {}).items() if value is not None}
        return self._done((request, None if settings is None else given), what)[0]

    def settings(self, stream: str, what: str) -> dict[str, Any]:
        """Return the settings of a stream of our log, by their names.

        Args:
            stream: the stream's name.
            what: what is asked, for messages.

        Raises:
            NotFound: there is no such stream.
            Refused: the user may not read it.
            RemoteProtocolError: the answer has no settings.
            DeadlineExceeded, TransportError, PeerError: as for ``read``.
        """
        _, body = self._done(({"operation": READ, "type": STREAM_TYPE, "name": stream}, None), what)
        return arguments_of(body, f"{what} at {self.connection.endpoint.address}: '{MANAGEMENT}'")

    def _done(self, request: _Request, what: str) -> tuple[int, Any]:
        """Return the status and the body of our log's answer, if it did what the request asked for."""
        (answer,) = self._answers([request], what)
        status, condition, words = _status(answer.said)
        if isinstance(status, int) and status in _DONE:
            return status, answer.body
        kind = NotFound if status in _NOT_FOUND else Refused
        raise kind(condition, words, f"{what} at {self.connection.endpoint.address}")

    def _answers(self, requests: Sequence[_Request], what: str) -> list[Received]:
        """Return the answers to requests, in their order; see ``read``."""
        encoded = [partial(encode_request, said=said, body=body) for said, body in requests]
        return self._links.answers(encoded, what)


def arguments_of(description: object, who: str) -> dict[str, Any]:
    """Return the settings in the description of a stream.

    Args:
        description: the description.
        who: the node that has answered it, for messages.

    Raises:
        RemoteProtocolError: the description has no settings.
    """
    found = description.get(ARGUMENTS) if isinstance(description, Mapping) else None
    if not isinstance(found, Mapping):
        raise RemoteProtocolError(f"{who} answered {quoted(description, 200)}: expected a map with '{ARGUMENTS}'")
    return {str(name): _plain(value) for name, value in found.items()}


def _plain(value: Any) -> str | int | float | None:
    """Return a value of AMQP as one of Python's own types; as a text, where it is neither a text nor a number."""
    if value is None or isinstance(value, bool | float):
        return value
    return int(value) if isinstance(value, int) else str(value)


def _status(said: Mapping[str, Any]) -> tuple[Any, str, str]:
    """Return the status of an answer, its condition and its text."""
    status = said.get("status-code", said.get("statusCode"))
    words = safe_text(str(said.get("status-description", said.get("statusDescription", ""))))
    return status, str(said.get("error-condition", "")) or f"status {status}", words


def _checked(answer: Received, context: str) -> Mapping[str, Any]:
    body = answer.body
    status, condition, words = _status(answer.said)
    if status in _NOT_FOUND:
        raise NotFound(condition, words, context)
    if status in _UNAUTHORIZED:
        raise AuthenticationFailed(condition, words, context)
    if status == _NOT_IMPLEMENTED:
        other = "AMQP 1.0 answers there, and no Event Hubs: give its address, amqp://host:port, or check the port"
        raise Refused(condition, f"{words}; {other}", context)
    if status != _OK or not isinstance(body, Mapping):
        raise RemoteProtocolError(f"{context}: '{MANAGEMENT}' answered {condition}: {words}: expected a map")
    return {str(key): value for key, value in body.items()}


def change_stream(connection: Connection, operation: str, stream: str, settings: Settings | None) -> int:
    """Have a stream created or deleted; see ``Management.change``.

    Raises:
        Refused: the peer is not our log; the text says how its streams are made.
    """
    what = f"stream '{stream}' was not {_MADE[operation]}"
    if not connection.peer.is_reference_log:
        advice = "AMQP has no request for it" + _ELSEWHERE.get(connection.dialect.name, "")
        raise Refused("not supported", advice, f"{what} at {connection.endpoint.address}")
    with closing(Management(connection)) as management:
        return management.change(operation, stream, settings, what)
