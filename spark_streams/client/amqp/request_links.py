"""Sends requests to an address on one link, and takes the answers on another.

The requests of a call are under way together. The links stay open for the next call; where the peer has closed them
since, they are attached again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.request_pair import RequestPair
from spark_streams.client.retry import Deadline
from spark_streams.wire.amqp.management import PAIR, Received, decode_reply

Encode = Callable[[str, str], bytes]
"""Returns the message of a request with a message-id and the address for its answer."""


class RequestLinks:
    """The links of one connection to an address that answers requests.

    Args:
        connection: the connection.
        address: the address.
        paired: whether the two links are a pair of one name and one address, as RabbitMQ requires.
    """

    def __init__(self, connection: Connection, address: str, *, paired: bool = False) -> None:
        self.connection = connection
        self._address = address
        self._paired = paired
        self._links: RequestPair | None = None

    def close(self) -> None:
        """Close the links, so that others can use their session: RabbitMQ has 63 of them on a connection."""
        if self._links is not None:
            self._links.end()
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
        links = self._opened(what, deadline)
        waiting = {uuid.uuid4().hex: request for request in requests}
        unsent, answers = list(waiting.items()), dict[str, Received]()
        while len(answers) < len(waiting):
            while unsent and links.room:
                message_id, request = unsent.pop(0)
                links.send(request(message_id, PAIR if self._paired else links.receiver.name))
            for answer in links.received(decode_reply):
                if answer.request in waiting:  # others answer requests that an earlier call has given up
                    answers[answer.request] = answer
            if len(answers) < len(waiting):
                self._check(links, what)
                self.connection.turn(deadline.left_s(f"{what}: no answer from '{self._address}'"))
        return [answers[message_id] for message_id in waiting]

    def _opened(self, what: str, deadline: Deadline) -> RequestPair:
        if self._links is not None:
            if self._links.ended is None:
                return self._links
            self.close()
        name = f"spark-streams-management-{uuid.uuid4().hex}"
        links = self._links = RequestPair(self.connection.session(), name, self._address, paired=self._paired)
        while not (links.open and links.room):
            self._check(links, what)
            self.connection.turn(deadline.left_s(f"{what}: no answer to attach '{self._address}'"))
        return links

    def _check(self, links: RequestPair, what: str) -> None:
        if links.ended is not None:
            context = f"{what}: '{self._address}' at {self.connection.endpoint.address}"
            raise self.connection.fault(links.ended.error, context)
