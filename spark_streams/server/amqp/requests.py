"""Requests and replies: a link on which the peer sends requests to an address, and one on which it gets the replies.

A reply goes to the link whose target is the request's reply-to, else to the peer's latest link from that address.

Spec: docs/specifications.md, Event Hubs (``$cbs``, ``$management``).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import numpy as np

from spark_streams.errors import RemoteProtocolError, SparkStreamsError
from spark_streams.server.amqp.attaches import MessageLink, to_producer
from spark_streams.server.amqp.connection_links import AttachedLink, LinkConnection
from spark_streams.server.amqp.error_conditions import INTERNAL_ERROR, LinkRefused
from spark_streams.server.amqp.link_turns import BYTES_PER_TURN
from spark_streams.server.counters import logger
from spark_streams.server.turns import Turn
from spark_streams.wire.amqp.engine.incoming_deliveries import ACCEPT
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.messages import SETTLED
from spark_streams.wire.amqp.engine.session import DECODE_ERROR, RESOURCE_LIMIT
from spark_streams.wire.amqp.engine.termini import ADDRESS
from spark_streams.wire.amqp.management import encode_reply
from spark_streams.wire.amqp.message import AMQP_VALUE, APPLICATION_PROPERTIES, PROPERTIES, decode_sections
from spark_streams.wire.amqp.values import Symbol, ULong

_CREDIT: Final = 100
_MOST_BYTES: Final = 32 << 10
"""The largest request: a token has some kilobytes."""
_MOST_WAITING: Final = 100
"""While so many replies wait for the peer to take them, no more requests are answered."""
_MOST_LINKS: Final = 16
"""The most links of a connection for the replies from one address."""
_MOST_ID_BYTES: Final = 1_024
"""The longest message-id; a reply repeats it."""
_MESSAGE_ID, _REPLY_TO = 0, 4
_MESSAGE_IDS: Final = (ULong, uuid.UUID, bytes, str, type(None))
"""The types of a message-id (AMQP 1.0 part 3 §3.2.4); the reply has it as it was."""


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
        status: of HTTP.
        description: the reason, as text.
        condition: an error's condition, or None.
        body: its amqp-value, or None.
    """

    status: HTTPStatus
    description: str
    condition: str | None = None
    body: Mapping[str, Any] | None = None

    def encoded(self, message_id: Any) -> bytes:
        """Return the message that answers the request with a message-id."""
        return encode_reply(message_id, self.status, self.description, self.condition, self.body)


Answers = Callable[[Request], Reply | Coroutine[object, object, Reply]]
"""A function that answers a request, at once or when a change is made."""


def read_request(raw: bytes) -> Request:
    """Read a request.

    Raises:
        RemoteProtocolError: the bytes are no message, or its message-id or its application properties are invalid.
    """
    sections = dict(decode_sections(raw))
    found = [*sections.get(PROPERTIES, ()), *(None for _ in range(_REPLY_TO + 1))]
    properties, message_id = sections.get(APPLICATION_PROPERTIES, {}), found[_MESSAGE_ID]
    if not isinstance(properties, Mapping):
        raise RemoteProtocolError("application properties with a key twice")
    if not isinstance(message_id, _MESSAGE_IDS):
        raise RemoteProtocolError(f"a message-id that is a {type(message_id).__name__}")
    if isinstance(message_id, Symbol) and not message_id.isascii():
        raise RemoteProtocolError("a message-id that is a symbol beyond ASCII, which no reply can have")
    if isinstance(message_id, str | bytes) and len(message_id) > _MOST_ID_BYTES:
        raise RemoteProtocolError(f"a message-id of more than {_MOST_ID_BYTES} bytes")
    named = {str(key): value for key, value in properties.items() if isinstance(key, str)}
    return Request(named, sections.get(AMQP_VALUE), message_id, found[_REPLY_TO])


class Replies:
    """The links on which a peer gets replies from one address."""

    def __init__(self) -> None:
        self.links: list[ReplyLink] = []

    @property
    def waiting(self) -> int:
        """How many replies wait for the peer to take them."""
        return sum(len(link.waiting) for link in self.links)

    def send(self, reply: bytes, reply_to: object) -> None:
        """Send a reply to the link with the target that a request names, else to the latest one."""
        links = [link for link in self.links if link.target == reply_to] or self.links
        if links:
            links[-1].send(reply)


class ReplyLink(MessageLink):
    """A link on which the peer gets replies.

    Args:
        connection, link: see ``AttachedLink``.
        replies: the connection's links for replies from this address; it is among them while it lives.

    Attributes:
        target: the address of the peer's target.
        waiting: replies that the peer has not taken.

    Raises:
        LinkRefused: there are as many already as there may be (amqp:resource-limit-exceeded).
    """

    def __init__(self, connection: LinkConnection, link: Link, replies: Replies) -> None:
        if len(replies.links) >= _MOST_LINKS:
            raise LinkRefused(RESOURCE_LIMIT, f"{_MOST_LINKS} links get replies from this address, and no more may")
        super().__init__(connection, link, None)
        self.target = "" if link.target is None else str(link.target.field(ADDRESS, str, ""))
        self._replies = replies
        self.waiting: deque[bytes] = deque()
        self._deliveries.available = lambda: len(self.waiting)
        replies.links.append(self)

    def send(self, reply: bytes) -> None:
        """Send a reply, once the peer takes it."""
        self.waiting.append(reply)
        self.connection.turns.wake(self)

    def serve(self) -> bool:
        """Send the replies that wait, as credit and the session window allow."""
        deliveries = self._deliveries
        if self.ended:
            return False
        if self.connection.turns.paused:
            self.connection.turns.block(self)
            return False
        deliveries.go_on(BYTES_PER_TURN)
        before = self._replies.waiting
        while self.waiting and not deliveries.is_begun and deliveries.room > 0:
            self._send(self.waiting.popleft())
        self._make_room(before)
        if deliveries.is_begun or (self.waiting and deliveries.credit > 0):
            self.connection.turns.block(self)
        else:
            deliveries.give_back()
        return False

    def _make_room(self, before: int) -> None:
        """Have the requests that wait for room answered, if there is some; ``before`` replies were waiting."""
        if before >= _MOST_WAITING > self._replies.waiting:
            for link in self.connection.links.served:
                if isinstance(link, RequestLink):
                    self.connection.turns.wake(link)

    def _released(self, *, closed: bool) -> None:
        before = self._replies.waiting
        self._replies.links.remove(self)
        self._make_room(before)
        self.waiting.clear()
        super()._released(closed=closed)


class RequestLink(AttachedLink):
    """A link on which the peer sends requests.

    Args:
        connection, link: see ``AttachedLink``.
        replies: the connection's links for replies from this address.
        answer: answers a request, at once or when a change is made; replies to several requests may be in any order.
    """

    def __init__(self, connection: LinkConnection, link: Link, replies: Replies, answer: Answers) -> None:
        super().__init__(connection, link, None)
        self._changes: set[asyncio.Task[None]] = set()
        self._deliveries = link.incoming
        self._replies = replies
        self._answer = answer
        self._deliveries.max_message_bytes = _MOST_BYTES
        link.attach(to_producer(link, None))
        self._top_up()

    def serve(self) -> bool:
        """Answer requests that have come, within one turn's share; return whether there are more."""
        turn = Turn(time.monotonic)
        while not self.ended and len(self._changes) + self._replies.waiting < _MOST_WAITING and self._answer_one():
            if turn.over:
                return True
        return False

    def take_input(self) -> None:
        """Answer what has come, because the link may be about to end; within one turn's share, too."""
        self.serve()

    def _answer_one(self) -> bool:
        """Answer the next request; return False where none has come."""
        taken = self._deliveries.take(1, _MOST_BYTES)
        if not len(taken.ids):
            fault = self._deliveries.fault
            if fault is not None:
                self.fail(LinkRefused(fault.condition, fault.description))
            return False
        raw, number = taken.memory[taken.starts[0] : taken.ends[0]].tobytes(), int(taken.ids[0])
        try:
            request = read_request(raw)
            answer = self._answer(request)
            if isinstance(answer, Reply):
                self._replies.send(answer.encoded(request.message_id), request.reply_to)
            else:
                change = asyncio.get_running_loop().create_task(self._answer_later(answer, request))
                self._changes.add(change)
                change.add_done_callback(self._changed)
        except RemoteProtocolError:
            self._reject(number, LinkRefused(DECODE_ERROR, "the request cannot be decoded"))
        except LinkRefused as refusal:
            self._reject(number, refusal)
        else:
            self._deliveries.settle(taken.ids, ACCEPT)
        self._top_up()
        return True

    async def _answer_later(self, answer: Coroutine[object, object, Reply], request: Request) -> None:
        try:
            reply = await answer
        except (OSError, SparkStreamsError) as fault:
            logger.error("a request to change a stream failed: %s", fault)
            words = "the log cannot be written: its own log says why"
            reply = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, words, INTERNAL_ERROR)
        except Exception:  # the peer would wait for its answer in vain
            logger.exception("a request to change a stream failed, please report it")
            words = "the request failed inside the log: its own log says more"
            reply = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, words, INTERNAL_ERROR)
        self._replies.send(reply.encoded(request.message_id), request.reply_to)

    def _changed(self, change: asyncio.Task[None]) -> None:
        self._changes.discard(change)
        if not change.cancelled() and not self.ended:
            self.connection.turns.wake(self)  # requests may have waited for room

    def _reject(self, number: int, refusal: LinkRefused) -> None:
        if number == SETTLED:
            self.fail(refusal)
        else:
            self._deliveries.settle(np.array([number]), refusal.condition.rejected)

    def _top_up(self) -> None:
        if not self.ended and self._deliveries.credit <= _CREDIT // 2:
            self._deliveries.flow(_CREDIT - self._deliveries.credit)
