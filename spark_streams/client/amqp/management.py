"""Asks Event Hubs' ``$management`` about hubs and partitions: requests on one link, answers on another.

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
from spark_streams.errors import AuthenticationFailed, NotFound, RemoteProtocolError
from spark_streams.redaction import safe_text
from spark_streams.wire.amqp.dialects.event_hubs import MANAGEMENT
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import AMQP_VALUE, APPLICATION_PROPERTIES, PROPERTIES, decode_sections
from spark_streams.wire.amqp.values import Described, ULong

_CREDIT: Final = 500
_OK: Final = 200
_UNAUTHORIZED: Final = (401, 403)
_NOT_FOUND: Final = (404, 410)


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
            RemoteProtocolError: an answer is none.
            DeadlineExceeded, TransportError, PeerError: no answer came in time, or the links or the connection ended.
        """
        session, sender, receiver = self._opened(what)
        deadline = Deadline(self.connection.timeout_ms)
        waiting = {uuid.uuid4().hex: request for request in requests}
        unsent, answers = list(waiting.items()), dict[str, Mapping[str, Any]]()
        while len(answers) < len(waiting):
            while unsent and sender.credit > 0:
                message_id, request = unsent.pop(0)
                delivery = sender.delivery(message_id)
                sender.send(_encoded(message_id, receiver.name, request))
                sender.advance()
                delivery.settle()
            for message_id, answer in self._received(receiver):
                if message_id in waiting:  # others answer what an earlier call has given up
                    answers[message_id] = _checked(answer, f"{what} at {self.connection.endpoint.address}")
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

    def _received(self, receiver: Any) -> list[tuple[str, tuple[Mapping[str, Any], Any]]]:
        """Return the answers that have come: the request's id, and application properties and body."""
        found: list[tuple[str, tuple[Mapping[str, Any], Any]]] = []
        while (delivery := receiver.current) is not None and delivery.readable and not delivery.partial:
            message = bytes(receiver.recv(delivery.pending) or b"")
            receiver.advance()
            delivery.update(delivery.ACCEPTED)
            delivery.settle()
            receiver.flow(1)
            sections = dict(decode_sections(message))
            properties = sections.get(PROPERTIES) or []
            said = sections.get(APPLICATION_PROPERTIES)
            named = {str(k): v for k, v in said.items()} if isinstance(said, Mapping) else {}
            request = str(properties[5]) if len(properties) > 5 else ""
            found.append((request, (named, sections.get(AMQP_VALUE))))
        return found


def _encoded(message_id: str, reply_to: str, request: Mapping[str, str]) -> bytes:
    parts = (
        (PROPERTIES, [message_id, None, None, None, reply_to]),
        (APPLICATION_PROPERTIES, {"operation": "READ", **request}),
        (AMQP_VALUE, None),
    )
    return b"".join(encode_value(Described(ULong(code), value)) for code, value in parts)


def _checked(answer: tuple[Mapping[str, Any], Any], context: str) -> Mapping[str, Any]:
    said, body = answer
    status = said.get("status-code", said.get("statusCode"))
    words = safe_text(str(said.get("status-description", said.get("statusDescription", ""))))
    condition = str(said.get("error-condition", "")) or f"status {status}"
    if status in _NOT_FOUND:
        raise NotFound(condition, words, context)
    if status in _UNAUTHORIZED:
        raise AuthenticationFailed(condition, words, context)
    if status != _OK or not isinstance(body, Mapping):
        raise RemoteProtocolError(f"{context}: '{MANAGEMENT}' answered {condition} {words}: expected a map")
    return {str(key): value for key, value in body.items()}
