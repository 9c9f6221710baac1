"""Sends requests to an address on one link, and takes the answers on another.

The requests of a call are under way together. The links stay open for the next call; where the peer has closed them
since, they are attached again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import proton

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.retry import Deadline
from spark_streams.wire.amqp.management import PAIR, Received, decode_reply

_CREDIT: Final = 500

Encode = Callable[[str, str], bytes]
"""Returns the message of a request with a message-id and the address for its answer."""


class RequestLinks:
    """The links of one connection to an address that answers requests.

    Args:
        connection: the connection.
        address: the address.
        paired: whether the two links are a pair of one name and one address, as RabbitMQ wants them.
    """

    def __init__(self, connection: Connection, address: str, *, paired: bool = False) -> None:
        self.connection = connection
        self._address = address
        self._paired = paired
        self._links: tuple[Any, Any, Any] | None = None

    def close(self) -> None:
        """Close the links, whose session others may need: a RabbitMQ has 63 of them on a connection."""
        if self._links is not None:
            self._links[0].close()
            self._links = None

    def answers(self, requests: Sequence[Encode], what: str) -> list[Received]:
        """Return the answers to requests, in their order.

        Args:
            requests: the requests.
            what: what is asked about, for messages.

        Raises:
            DeadlineExceeded, TransportError, PeerError: no answer came in time, or the links or the connection ended.
        """
        deadline = Deadline(self.connection.timeout_ms)
        session, sender, receiver = self._opened(what, deadline)
        waiting = {uuid.uuid4().hex: request for request in requests}
        unsent, answers = list(waiting.items()), dict[str, Received]()
        while len(answers) < len(waiting):
            while unsent and sender.credit > 0:
                message_id, request = unsent.pop(0)
                delivery = sender.delivery(message_id)
                sender.send(request(message_id, PAIR if self._paired else receiver.name))
                sender.advance()
                delivery.settle()
            for answer in self._received(receiver):
                if answer.request in waiting:  # others answer what an earlier call has given up
                    answers[answer.request] = answer
            if len(answers) < len(waiting):
                self._check(session, sender, receiver, what)
                self.connection.turn(deadline.left_s(f"{what}: no answer from '{self._address}'"))
        return [answers[message_id] for message_id in waiting]

    def _opened(self, what: str, deadline: Deadline) -> tuple[Any, Any, Any]:
        if self._links is not None:
            session, sender, receiver = self._links
            ended = any(self.connection.was_detached(each) for each in (sender, receiver))
            if not ended and not session.state & proton.Endpoint.REMOTE_CLOSED:
                return self._links
            session.close()
            self._links = None
        session = self.connection.session()
        sender, receiver = self._named(session, f"spark-streams-management-{uuid.uuid4().hex}")
        sender.snd_settle_mode = proton.Link.SND_SETTLED
        sender.open()
        receiver.open()
        receiver.flow(_CREDIT)
        self._links = session, sender, receiver
        opened = proton.Endpoint.REMOTE_ACTIVE
        while not (sender.state & opened and receiver.state & opened and sender.credit):
            self._check(session, sender, receiver, what)
            self.connection.turn(deadline.left_s(f"{what}: no answer to attach '{self._address}'"))
        return self._links

    def _named(self, session: Any, name: str) -> tuple[Any, Any]:
        """Return the sender and the receiver, with their addresses."""
        if not self._paired:
            sender, receiver = session.sender(f"{name}-out"), session.receiver(f"{name}-in")
            sender.source.address, sender.target.address = sender.name, self._address
            receiver.source.address, receiver.target.address = self._address, receiver.name
            return sender, receiver
        sender, receiver = session.sender(name), session.receiver(name)
        for link in (sender, receiver):
            link.source.address = link.target.address = self._address
            link.properties = {proton.symbol("paired"): True}
        receiver.snd_settle_mode = proton.Link.SND_SETTLED
        return sender, receiver

    def _check(self, session: Any, sender: Any, receiver: Any, what: str) -> None:
        context = f"{what}: '{self._address}' at {self.connection.endpoint.address}"
        for link in (sender, receiver):
            if self.connection.was_detached(link):
                raise self.connection.fault(link.remote_condition, context)
        if session.state & proton.Endpoint.REMOTE_CLOSED:
            raise self.connection.fault(session.remote_condition, context)

    def _received(self, receiver: Any) -> list[Received]:
        """Return the answers that have come."""
        found: list[Received] = []
        while (delivery := receiver.current) is not None and delivery.readable and not delivery.partial:
            message = bytes(receiver.recv(delivery.pending) or b"")
            receiver.advance()
            found.append(decode_reply(message))
            answers = bool(found[-1].request)
            delivery.update(delivery.ACCEPTED if answers else delivery.RELEASED)  # a queue may have the address
            delivery.settle()
            receiver.flow(int(answers))
        return found
