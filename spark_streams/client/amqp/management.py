"""Sends requests to a peer's ``$management``, on one link, and takes the answers on another.

Event Hubs answers what its hubs and partitions hold, our log creates and deletes streams.

The requests of a call are under way together. The links stay open for the next call; where the peer has closed them
since, they are attached again.

Spec: docs/specifications.md, H-3.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import proton

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.retry import Deadline
from spark_streams.errors import AuthenticationFailed, NotFound, Refused, RemoteProtocolError
from spark_streams.redaction import safe_text
from spark_streams.wire.amqp.management import MANAGEMENT, READ, STREAM_TYPE, decode_reply, encode_request

_CREDIT: Final = 500
_OK: Final = 200
_DONE: Final = (200, 201, 204)
_UNAUTHORIZED: Final = (401, 403)
_NOT_FOUND: Final = (404, 410)
_NOT_IMPLEMENTED: Final = 501


Settings = Mapping[str, str | int | None]
"""Settings of a stream by their names."""
_Request = tuple[Mapping[str, str], Any]
"""The application properties of a request, and its body."""
_Answer = tuple[Mapping[str, Any], Any]
"""The same of an answer."""


class Management:
    """The links to ``$management`` of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._links: tuple[Any, Any, Any] | None = None
        self._credit = 0

    def read(self, requests: Sequence[Mapping[str, str]], what: str) -> list[Mapping[str, Any]]:
        """Return the answers to READ requests, in their order.

        Args:
            requests: the application properties of each, beside the operation: ``type``, ``name``, ``partition``.
            what: what is asked about, for messages.

        Raises:
            NotFound: there is no such hub or partition.
            AuthenticationFailed: the peer does not let us ask.
            Refused: it is no Event Hubs.
            RemoteProtocolError: an answer is none.
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
            settings: of a new stream, with ``partitions``; what is None is not sent, and then not compared.
            what: what is done, for messages.

        Raises:
            NotFound: there is no such stream.
            Refused: the user may not, or there is another stream of that name, or a setting is invalid.
            DeadlineExceeded, TransportError, PeerError: as for ``read``.
        """
        request = {"operation": operation, "type": STREAM_TYPE, "name": stream}
        given = {name: str(value) for name, value in (settings or {}).items() if value is not None}
        (answer,) = self._answers([(request, None if settings is None else given)], what)
        status, condition, words = _status(answer[0])
        if isinstance(status, int) and status in _DONE:
            return status
        kind = NotFound if status in _NOT_FOUND else Refused
        raise kind(condition, words, f"{what} at {self.connection.endpoint.address}")

    def _answers(self, requests: Sequence[_Request], what: str) -> list[_Answer]:
        """Return the answers to requests, in their order; see ``read``."""
        session, sender, receiver = self._opened(what)
        deadline = Deadline(self.connection.timeout_ms)
        waiting = {uuid.uuid4().hex: request for request in requests}
        unsent, answers = list(waiting.items()), dict[str, _Answer]()
        while len(answers) < len(waiting):
            while unsent and sender.credit > 0:
                message_id, request = unsent.pop(0)
                delivery = sender.delivery(message_id)
                sender.send(encode_request(message_id, receiver.name, *request))
                sender.advance()
                delivery.settle()
            for message_id, answer in self._received(receiver):
                if message_id in waiting:  # others answer what an earlier call has given up
                    answers[message_id] = answer
            if len(answers) < len(waiting):
                self._check(session, sender, receiver, what)
                self.connection.turn(deadline.left_s(f"{what}: no answer from '{MANAGEMENT}'"))
        return [answers[message_id] for message_id in waiting]

    def _opened(self, what: str) -> tuple[Any, Any, Any]:
        if self._links is not None:
            session, sender, receiver = self._links
            ended = any(self.connection.was_detached(each) for each in (sender, receiver))
            if not ended and not session.state & proton.Endpoint.REMOTE_CLOSED:
                return self._links
            session.close()
            self._links = None
        session = self.connection.session()
        name = f"spark-streams-management-{uuid.uuid4().hex}"
        sender, receiver = session.sender(f"{name}-out"), session.receiver(f"{name}-in")
        sender.source.address, sender.target.address = sender.name, MANAGEMENT
        sender.snd_settle_mode = proton.Link.SND_SETTLED
        receiver.source.address, receiver.target.address = MANAGEMENT, receiver.name
        sender.open()
        receiver.open()
        receiver.flow(_CREDIT)
        self._links, self._credit = (session, sender, receiver), _CREDIT
        opened = proton.Endpoint.REMOTE_ACTIVE
        deadline = Deadline(self.connection.timeout_ms)
        while not (sender.state & opened and receiver.state & opened and sender.credit):
            self._check(session, sender, receiver, what)
            self.connection.turn(deadline.left_s(f"{what}: no answer to attach '{MANAGEMENT}'"))
        return self._links

    def _check(self, session: Any, sender: Any, receiver: Any, what: str) -> None:
        context = f"{what}: '{MANAGEMENT}' at {self.connection.endpoint.address}"
        for link in (sender, receiver):
            if self.connection.was_detached(link):
                raise self.connection.fault(link.remote_condition, context)
        if session.state & proton.Endpoint.REMOTE_CLOSED:
            raise self.connection.fault(session.remote_condition, context)

    def _received(self, receiver: Any) -> list[tuple[str, _Answer]]:
        """Return the answers that have come: the request's id, and application properties and body."""
        found: list[tuple[str, _Answer]] = []
        while (delivery := receiver.current) is not None and delivery.readable and not delivery.partial:
            message = bytes(receiver.recv(delivery.pending) or b"")
            receiver.advance()
            delivery.update(delivery.ACCEPTED)
            delivery.settle()
            receiver.flow(1)
            reply = decode_reply(message)
            found.append((reply.request, (reply.said, reply.body)))
        return found


def _status(said: Mapping[str, Any]) -> tuple[Any, str, str]:
    """Return the status of an answer, its condition and its words."""
    status = said.get("status-code", said.get("statusCode"))
    words = safe_text(str(said.get("status-description", said.get("statusDescription", ""))))
    return status, str(said.get("error-condition", "")) or f"status {status}", words


def _checked(answer: _Answer, context: str) -> Mapping[str, Any]:
    said, body = answer
    status, condition, words = _status(said)
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
