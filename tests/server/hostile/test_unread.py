"""Clients that ask and never read the answers: what they asked for is not collected, and they are dropped."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import METADATA, SUBSCRIBE, array, offset, text
from tests.server.amqp.raw_peer import EARLIEST, Peer
from tests.server.event_hubs.conftest import sas
from tests.server.hostile.conftest import BIG_ROW_BYTES, BIG_ROWS
from tests.server.hostile.doors import (
    AMQP_BEGIN,
    amqp_frame,
    amqp_text,
    attach,
    detach,
    established,
    rabbit_frame,
)
from tests.server.hostile.hub_frames import SAS_TYPE, receiver, request, sender, transfer

CLIENTS = 4


def page(events: int) -> bytes:
    return b"GET /big?partition=0&cursor=_first&pageSizeHint=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % events


def amqp_links() -> Iterator[bytes]:
    """Links that are refused and closed again, each with an answer as long as the question."""
    yield amqp_frame(0, AMQP_BEGIN)
    for number in count():
        asked = attach(b"link %d" % number, 0, b"nothing there", echo=b"x" * 20_000)
        yield amqp_frame(0, asked) + amqp_frame(0, detach(0))


def rabbit_reader() -> Iterator[bytes]:
    start = offset(0) + struct.pack(">H", 10_000)
    yield rabbit_frame(SUBSCRIBE, struct.pack(">I", 9) + b"\x01" + text("big") + start)


def rabbit_questions() -> Iterator[bytes]:
    names = array([text(f"{n:0200d}") for n in range(400)])
    return repeat(rabbit_frame(METADATA, struct.pack(">I", 9) + names))


def feed_pages() -> Iterator[bytes]:
    yield page(BIG_ROWS) * 3


def feed_stream() -> Iterator[bytes]:
    yield b"GET /big?partition=0&cursor=_first&stream=y HTTP/1.1\r\nHost: localhost\r\n\r\n"


def feed_questions() -> Iterator[bytes]:
    return repeat(b"GET /calm HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)


def hub_questions() -> Iterator[bytes]:
    """Questions to $management, with a link for the replies that has credit and is not read."""
    yield sender(b"$management") + receiver(b"$management", 1, 1_000_000)
    question = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "big"}
    for number in count():
        yield transfer(request(b"\x40", b"%02000d" % number, **question), number)


def hub_tokens() -> Iterator[bytes]:
    """Tokens under ever new names, of somebody who has signed in."""
    yield sender(b"$cbs") + receiver(b"$cbs", 1, 1_000_000)
    for number in count():
        token = sas(f"sb://h/{number}", "guest", "guest")
        asked = request(amqp_text(token.encode()), b"%02000d" % number, operation="put-token", type=SAS_TYPE)
        yield transfer(asked, number)


def amqp_receiver(url: str) -> socket.socket:
    """A receiver of the big stream with credit for all of it."""
    peer = Peer(url)
    peer.attach_receiver("big", filter=EARLIEST, credit=1_000_000, presettled=True)
    plain = peer.socket.dup()
    peer.socket.close()
    return plain


def hub_receiver(url: str) -> socket.socket:
    """The same, of a partition of a hub."""
    peer = Peer(url)
    peer.attach_receiver("big/ConsumerGroups/$Default/Partitions/0", credit=1_000_000)
    plain = peer.socket.dup()
    peer.socket.close()
    return plain


@dataclass(frozen=True)
class Unread:
    """Who asks for what.

    Args:
        door: which.
        asks: what is sent to it, as long as it takes that.
        opens: makes a connection that has asked already.
    """

    door: str
    asks: Callable[[], Iterator[bytes]] = lambda: iter(())
    opens: Callable[[str], socket.socket] = lambda url: established(url, receive_bytes=4_096).socket


UNREAD = {
    "amqp receiver": Unread("amqp", opens=amqp_receiver),
    "amqp refused links": Unread("amqp", amqp_links),
    "event-hubs receiver": Unread("event-hubs", opens=hub_receiver),
    "event-hubs questions": Unread("event-hubs", hub_questions),
    "event-hubs tokens": Unread("event-hubs", hub_tokens),
    "rabbitmq-stream subscription": Unread("rabbitmq-stream", rabbit_reader),
    "rabbitmq-stream metadata": Unread("rabbitmq-stream", rabbit_questions),
    "feedapi pages": Unread("feedapi", feed_pages),
    "feedapi streamed response": Unread("feedapi", feed_stream),
    "feedapi pipelined requests": Unread("feedapi", feed_questions),
}
GONE = {7, 8}
"""States of TCP: CLOSE and CLOSE_WAIT."""


class Asking:
    """One client: it sends what the socket takes, and never reads."""

    def __init__(self, url: str, unread: Unread) -> None:
        self.socket = unread.opens(url)
        self.socket.setblocking(False)
        self._asks = unread.asks()
        self._left = memoryview(b"")
        self.ended = False

    def go_on(self) -> bool:
        """Send for a moment; answer whether the door has ended the connection."""
        end = time.monotonic() + 0.02
        while not self.ended and time.monotonic() < end:
            if not self._left:
                self._left = memoryview(next(self._asks, b""))
            if not self._left:
                break
            try:
                self._left = self._left[self.socket.send(self._left) :]
            except BlockingIOError:
                break
            except OSError:
                self.ended = True
        # Nothing is read, so the system is asked for the end.
        state = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        self.ended = self.ended or state in GONE
        return self.ended


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=[pytest.mark.nightly] if each == "feedapi pipelined requests" else [])
        for each in UNREAD
    ],
)
def test_who_never_reads_is_dropped(served: Any, name: str) -> None:
    unread = UNREAD[name]
    before = served.memory_bytes
    clients = [Asking(served.urls[unread.door], unread) for _ in range(CLIENTS)]
    most = 0

    def dropped() -> bool:
        nonlocal most
        most = max(most, served.memory_bytes)
        return all([client.go_on() for client in clients])

    served.until(dropped, f"the end of: {name}")
    # All of them have asked for CLIENTS times the whole stream, or for more than that.
    assert most < before + CLIENTS * BIG_ROWS * BIG_ROW_BYTES // 2
    for client in clients:
        client.socket.close()
