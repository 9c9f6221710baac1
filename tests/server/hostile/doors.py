"""The doors as hostile clients see them: raw bytes; and clients that mean well, which go on beside them."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from typing import ClassVar
from urllib.parse import urlsplit

import requests
from proton import Described, symbol

from tests.real_rabbitmq.by_hand import (
    CREDIT,
    DELIVER,
    OPEN,
    RESPONSE,
    SASL_HANDSHAKE,
    chunk,
    data,
    pairs,
    plain,
    text,
)
from tests.real_rabbitmq.by_hand import PEER_PROPERTIES as PROPERTIES
from tests.real_rabbitmq.by_hand import Peer as RabbitPeer
from tests.server.amqp.raw_peer import Ended, Peer

DEADLINE_S = 60.0
"""Only against hanging."""
SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
SELECTOR = "apache.org:selector-filter:string"
NDJSON = {"Content-Type": "application/x-ndjson"}


def sasl_init(announced: int | None = None) -> bytes:
    """sasl-init with PLAIN guest:guest; or only its head, with another size."""
    fields = b"\xa3\x05PLAIN" + b"\xa0\x0c\x00guest\x00guest"
    body = b"\x00\x53\x41\xc0" + bytes([len(fields) + 1, 2]) + fields
    head = struct.pack(">IBBH", 8 + len(body) if announced is None else announced, 2, 1, 0)
    return head + body if announced is None else head


def rabbit_frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


def introduction() -> bytes:
    """What a RabbitMQ client says first: PeerProperties and SaslHandshake."""
    return rabbit_frame(PROPERTIES, struct.pack(">I", 1) + pairs({"product": "x" * 100})) + rabbit_frame(
        SASL_HANDSHAKE, struct.pack(">I", 2)
    )


class Raw:
    """A socket, and what the other side has said and done.

    Args:
        url: of the door.
        receive_bytes: of the system's buffer; 0 leaves it as it is.
    """

    _all: ClassVar[list[Raw]] = []

    def __init__(self, url: str, receive_bytes: int = 0) -> None:
        parts = urlsplit(url)
        self._all.append(self)
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect((parts.hostname, parts.port))
        self.received = b""
        self.ended = False

    def send(self, content: bytes) -> None:
        """Send; that the other side has closed is found by ``look``, behind its last words."""
        with contextlib.suppress(OSError):
            self.socket.sendall(content)

    def look(self, wait_s: float = 0.0) -> None:
        """Take what has come, and note an end."""
        while not self.ended and select.select([self.socket], [], [], wait_s)[0]:
            try:
                piece = self.socket.recv(65_536)
            except OSError:
                piece = b""
            self.ended = not piece
            self.received += piece

    def holds(self, *words: bytes) -> set[bytes]:
        """Return which of these have been said."""
        return {each for each in words if each in self.received}

    def close(self) -> None:
        self.socket.close()

    @classmethod
    def close_all(cls) -> None:
        """Close what a test left open."""
        while cls._all:
            cls._all.pop().close()


def client_hello(url: str) -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=urlsplit(url).hostname).do_handshake()
    return outgoing.read()


class Beside(ABC):
    """A client that writes and reads back, one row after the other, on connections that it keeps.

    Args:
        url: of the door.
        stream: nobody else writes to it.
    """

    def __init__(self, url: str, stream: str) -> None:
        self.url = url
        self.stream = stream
        self.rows = 0
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Connect, to write and to read what is written from now on."""

    @abstractmethod
    def write(self, row: bytes) -> None:
        """Write a row, and return when it is confirmed."""

    @abstractmethod
    def read(self) -> list[bytes]:
        """Return the rows that come next, at least one."""

    @abstractmethod
    def close(self) -> None:
        """End."""

    def step(self) -> None:
        """Write a row, and read it and nothing else."""
        self.read_back(self.write_next())

    def write_next(self, size: int = 0) -> bytes:
        """Write a row, of so many bytes at least, return it when it is confirmed."""
        row = (b"row %d" % self.rows).ljust(size, b".")
        self.rows += 1
        self.write(row)
        return row

    def read_back(self, row: bytes) -> None:
        """Read a row, which is the next one, and nothing else."""
        assert self.read() == [row]


class AmqpBeside(Beside):
    def open(self) -> None:
        self.peer = Peer(self.url)
        self.receiver = self.peer.receiver(self.stream)
        self.sender = self.peer.sender(self.stream)

    def write(self, row: bytes) -> None:
        self.sender.send(row, timeout_s=DEADLINE_S)

    def read(self) -> list[bytes]:
        return list(self.receiver.bodies(self.receiver.take(1, timeout_s=DEADLINE_S)))

    def close(self) -> None:
        self.peer.close()


class HubBeside(AmqpBeside):
    def open(self) -> None:
        self.peer = Peer(self.url)
        end = "amqp.annotation.x-opt-offset > '@latest'"
        only_new = {symbol(SELECTOR): Described(symbol(SELECTOR), end)}
        where = f"{self.stream}/ConsumerGroups/$Default/Partitions/0"
        self.receiver = self.peer.receiver(where, filter=only_new)
        self.sender = self.peer.sender(self.stream)


class RabbitBeside(Beside):
    def open(self) -> None:
        self.peer = RabbitPeer(self.url)
        self.peer.socket.settimeout(DEADLINE_S)
        self.peer.open()
        assert self.peer.declare(1, self.stream) == 1
        assert self.peer.subscribe(1, self.stream, struct.pack(">H", 3), credit=1_000) == 1

    def write(self, row: bytes) -> None:
        self.peer.publish(1, [plain(self.rows, row)])
        assert self.peer.confirmed(1) == [self.rows]

    def read(self) -> list[bytes]:
        found = chunk(self.peer.expect(DELIVER))
        (size,) = struct.unpack_from(">I", found.rest)
        assert found.records == 1
        self.peer.send(CREDIT, b"\x01" + struct.pack(">H", 1))
        return [found.rest[4 : 4 + size]]

    def close(self) -> None:
        self.peer.close()


class FeedBeside(Beside):
    def open(self) -> None:
        self.session = requests.Session()
        self.address = f"{self.url}/{self.stream}"
        self.cursor = "_last"
        self.read_page()

    def read_page(self) -> list[bytes]:
        query = {"partition": "0", "cursor": self.cursor}
        answer = self.session.get(self.address, params=query, timeout=DEADLINE_S)
        assert answer.status_code == 200, answer.text
        rows = []
        for line in filter(None, answer.content.split(b"\n")):
            if line.startswith(b'{"event":"'):
                rows.append(line[len(b'{"event":"') :].split(b'"')[0])
            else:
                self.cursor = line.split(b'"cursor":"')[1].split(b'"')[0].decode()
        return rows

    def write(self, row: bytes) -> None:
        line = b'{"event":"' + row + b'"}\n'
        answer = self.session.post(self.address, line, headers=NDJSON, timeout=DEADLINE_S)
        assert answer.status_code == 200, answer.text

    def read(self) -> list[bytes]:
        deadline = time.monotonic() + DEADLINE_S
        while not (rows := self.read_page()):
            assert time.monotonic() < deadline, "a row that was confirmed is not on the feed"
        return rows

    def close(self) -> None:
        self.session.close()


BESIDE: dict[str, type[Beside]] = {
    "amqp": AmqpBeside,
    "rabbitmq-stream": RabbitBeside,
    "feedapi": FeedBeside,
    "event-hubs": HubBeside,
}


def comes_in(door: str, url: str, stream: str) -> Beside:
    """Somebody who means well comes in, and tries again when the door is too busy."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return BESIDE[door](url, stream)
        except (OSError, EOFError, Ended, TimeoutError, AssertionError):
            assert time.monotonic() < deadline, f"{door}: nobody new is let in"


def established(url: str, receive_bytes: int = 0) -> Raw:
    """A raw socket that has introduced itself: from now on it may do what the door offers.

    On a slow machine that may take longer than the door allows; then it is tried again.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        raw = Raw(url, receive_bytes)
        words = introduce(raw, urlsplit(url).scheme)
        while words not in raw.received and not raw.ended:
            assert time.monotonic() < deadline, raw.received[:500]
            raw.look(0.05)
        if words in raw.received:
            return raw


def introduce(raw: Raw, scheme: str) -> bytes:
    """Send what somebody sends who is known; return what the answer holds."""
    if scheme == "amqp":
        raw.send(SASL + sasl_init() + AMQP + AMQP_OPEN)
        return b"\x00\x53\x10"
    if scheme == "rabbitmq-stream":
        secret = struct.pack(">I", 3) + text("PLAIN") + data(b"\0guest\0guest")
        tune = struct.pack(">II", 1 << 20, 60)
        raw.send(introduction() + rabbit_frame(0x13, secret) + rabbit_frame(0x14 | RESPONSE, tune))
        raw.send(rabbit_frame(OPEN, struct.pack(">I", 4) + text("/")))
        return struct.pack(">HHI", OPEN | RESPONSE, 1, 4)
    raw.send(b"GET /calm HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return b"\r\n\r\n"


def until_said(raw: Raw, words: bytes) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while words not in raw.received:
        assert not raw.ended and time.monotonic() < deadline, raw.received[:500]
        raw.look(0.05)


def amqp_frame(channel: int, performative: bytes) -> bytes:
    return struct.pack(">IBBH", 8 + len(performative), 2, 0, channel) + performative


def amqp_list(code: int, *fields: bytes) -> bytes:
    content = b"".join(fields)
    return b"\x00\x53" + bytes([code]) + b"\xd0" + struct.pack(">II", len(content) + 4, len(fields)) + content


def amqp_text(words: bytes) -> bytes:
    return b"\xb1" + struct.pack(">I", len(words)) + words


NULL, FALSE, TRUE, ZERO = b"\x40", b"\x42", b"\x41", b"\x43"
WINDOW = struct.pack(">BI", 0x70, 2_000)
CONTAINER = amqp_text(b"hostile")
AMQP_OPEN = amqp_frame(0, amqp_list(0x10, CONTAINER))
AMQP_BEGIN = amqp_list(0x11, NULL, ZERO, WINDOW, WINDOW)


def attach(name: bytes, handle: int, address: bytes, *, echo: bytes = b"") -> bytes:
    """attach as a receiver; ``echo`` is an address of its own that a refusal brings back."""
    source = b"\x00\x53\x28" + b"\xd0" + struct.pack(">II", len(address) + 9, 1) + amqp_text(address)
    target = b"\x00\x53\x29" + b"\xd0" + struct.pack(">II", len(echo) + 9, 1) + amqp_text(echo)
    number = struct.pack(">BI", 0x70, handle)
    return amqp_list(0x12, amqp_text(name), number, TRUE, NULL, NULL, source, target)


def detach(handle: int) -> bytes:
    return amqp_list(0x16, struct.pack(">BI", 0x70, handle), TRUE)


def flow(handle: int, credit: int) -> bytes:
    number, more = struct.pack(">BI", 0x70, handle), struct.pack(">BI", 0x70, credit)
    return amqp_list(0x13, ZERO, WINDOW, ZERO, WINDOW, number, ZERO, more)
