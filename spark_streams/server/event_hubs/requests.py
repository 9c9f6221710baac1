"""Requests and replies: a link on which the peer sends requests to an address, and one on which it gets the replies.

A reply goes to the link whose target is the request's reply-to, else to the peer's latest link from that address.

Spec: docs/specifications.md, Event Hubs (``$cbs``, ``$management``).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.amqp.attach_reply import open_info, open_producer
from spark_streams.server.amqp.connection_links import AttachedLink, ConnectionLinks
from spark_streams.server.amqp.deliveries import SETTLED, Deliveries
from spark_streams.server.amqp.error_conditions import DECODE_ERROR, RESOURCE_LIMIT, LinkRefused
from spark_streams.server.amqp.outgoing_deliveries import BYTES_PER_TURN
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.message import AMQP_VALUE, APPLICATION_PROPERTIES, PROPERTIES, decode_sections
from spark_streams.wire.amqp.values import Described, Int, Symbol, ULong
from spark_streams.wire.columnar.interleave import Ranges

_CREDIT: Final = 100
_MOST_BYTES: Final = 64 << 10
"""The largest request."""
_MOST_WAITING: Final = 1_000
"""The most replies that wait for a peer to take them."""
_MESSAGE_ID, _REPLY_TO, _CORRELATION_ID = 0, 4, 5
_NO_OFFSET: Final = np.zeros(1, np.int64)
OK: Final = 200
ACCEPTED: Final = 202
BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404

logger = logging.getLogger("spark_streams.server")


@dataclass(frozen=True)
class Request:
    """A request.

    Args:
        properties: its application properties.
        body: its amqp-value, or None.
        message_id: its message-id, in the type that it has.
        reply_to: the address for the reply, or None.
    """

    properties: Mapping[str, Any]
    body: Any
    message_id: Any
    reply_to: Any

    def text(self, name: str) -> str:
        """Return an application property that is a text; an empty one where it is none."""
        value = self.properties.get(name)
        return str(value) if isinstance(value, str) else ""


@dataclass(frozen=True)
class Reply:
    """A reply.

    Args:
        status: as in HTTP.
        description: in words.
        condition: an error's condition, or None.
        body: its amqp-value.
    """

    status: int
    description: str
    condition: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict)

    def encoded(self, message_id: Any) -> bytes:
        """Return the message that answers the request with a message-id."""
        properties: dict[str, Any] = {"status-code": Int(self.status), "status-description": self.description}
        if self.condition is not None:
            properties["error-condition"] = Symbol(self.condition)
        sections = (
            (PROPERTIES, [None] * _CORRELATION_ID + [message_id]),
            (APPLICATION_PROPERTIES, properties),
            (AMQP_VALUE, dict(self.body) or None),
        )
        return b"".join(encode_value(Described(ULong(code), value)) for code, value in sections)


def read_request(raw: bytes) -> Request:
    """Read a request.

    Raises:
        RemoteProtocolError: the bytes are no message.
    """
    sections = dict(decode_sections(raw))
    found = [*sections.get(PROPERTIES, ()), *(None for _ in range(_CORRELATION_ID + 1))]
    properties = sections.get(APPLICATION_PROPERTIES, {})
    named = {str(key): value for key, value in properties.items() if isinstance(key, str)}
    return Request(named, sections.get(AMQP_VALUE), found[_MESSAGE_ID], found[_REPLY_TO])


class ReplyLink(AttachedLink):
    """A link on which the peer gets replies.

    Args:
        connection, link: see ``AttachedLink``.
        replies: the connection's links for replies from this address; it is among them while it lives.

    Attributes:
        target: the address of the peer's target.
    """

    def __init__(self, connection: ConnectionLinks, link: Any, replies: list[ReplyLink]) -> None:
        super().__init__(connection, link, None)
        self.target = str(link.remote_target.address or "")
        self._replies = replies
        self._waiting: deque[bytes] = deque()
        open_info(link)
        deliveries = connection.incoming.attached_sender
        assert deliveries is not None
        self._deliveries, deliveries.owner = deliveries, self
        connection.outgoing.open_sender(deliveries, link)
        replies.append(self)

    def send(self, reply: bytes) -> None:
        """Send a reply, once the peer takes it.

        Raises:
            LinkRefused: too many wait already (amqp:resource-limit-exceeded).
        """
        if len(self._waiting) >= _MOST_WAITING:
            raise LinkRefused(RESOURCE_LIMIT, f"{_MOST_WAITING} replies wait for the peer to take them")
        self._waiting.append(reply)
        self.connection.wake(self)

    def serve(self) -> bool:
        """Send the replies that wait, as credit and window allow."""
        deliveries = self._deliveries
        if self.ended:
            return False
        if self.connection.write_paused:
            self.connection.block(self)
            return False
        deliveries.go_on(BYTES_PER_TURN)
        while self._waiting and not deliveries.is_begun and deliveries.room > 0:
            message = np.frombuffer(self._waiting.popleft(), np.uint8)
            whole = Ranges(message, np.zeros(1, np.int64), np.array([len(message)]))
            deliveries.send(whole, offsets=_NO_OFFSET)
        if deliveries.is_begun or (self._waiting and deliveries.credit > 0):
            self.connection.block(self)
        elif deliveries.drain and not self._waiting:
            deliveries.give_back()
        return False

    def _released(self, *, closed: bool) -> None:
        self._replies.remove(self)
        self._waiting.clear()
        self._deliveries.end()


class RequestLink(AttachedLink):
    """A link on which the peer sends requests.

    Args:
        connection, link: see ``AttachedLink``.
        replies: the connection's links for replies from this address.
        answer: answers a request.
    """

    def __init__(
        self, connection: ConnectionLinks, link: Any, replies: list[ReplyLink], answer: Callable[[Request], Reply]
    ) -> None:
        super().__init__(connection, link, None)
        deliveries = connection.incoming.attached
        assert deliveries is not None
        self._deliveries: Deliveries = deliveries
        self._replies = replies
        self._answer = answer
        open_producer(link, None, _MOST_BYTES)
        connection.outgoing.open(deliveries, link._impl)
        deliveries.owner = self
        self._top_up()

    def serve(self) -> bool:
        """Answer one of the requests that have come; return whether there are more."""
        if self.ended:
            return False
        self.take_input()
        return False

    def take_input(self) -> None:
        """Answer all requests that have come."""
        while not self.ended:
            taken = self._deliveries.take(1, _MOST_BYTES)
            if not len(taken.ids):
                break
            raw, number = taken.memory[taken.starts[0] : taken.ends[0]].tobytes(), int(taken.ids[0])
            try:
                self._reply(read_request(raw))
            except RemoteProtocolError:
                self._reject(number, LinkRefused(DECODE_ERROR, "the request cannot be decoded"))
            except LinkRefused as refusal:
                self._reject(number, refusal)
            else:
                if number != SETTLED:
                    self.connection.outgoing.accept(self._deliveries.session, taken.ids)
        if not self.ended and self._deliveries.refusal is not None:
            self.fail(self._deliveries.refusal)
        self._top_up()

    def _reply(self, request: Request) -> None:
        reply = self._answer(request).encoded(request.message_id)
        links = [each for each in self._replies if each.target == request.reply_to] or self._replies
        if links:
            links[-1].send(reply)

    def _reject(self, number: int, refusal: LinkRefused) -> None:
        if number == SETTLED:
            self.fail(refusal)
        else:
            self.connection.outgoing.reject(self._deliveries.session, number, refusal)

    def _top_up(self) -> None:
        if not self.ended and self._deliveries.credit <= _CREDIT // 2:
            self._deliveries.credit = _CREDIT
            self.connection.outgoing.flow(self._deliveries.session, self._deliveries)

    def _released(self, *, closed: bool) -> None:
        self.connection.unfinished(-len(self._deliveries.begun))
        self._deliveries.drop()
