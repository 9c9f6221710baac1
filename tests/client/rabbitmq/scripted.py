"""A broker that says what a test wants it to say: frames packed by hand, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_streams.client import RabbitClient
from spark_streams.endpoint import Endpoint, Secret
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import RESPONSE, array, pairs, text

OK: Final = 1
VERSION: Final = "4.3.6"


def deliver(
    first: int,
    messages: Sequence[bytes],
    *,
    time_ms: int = 1_000,
    subscription: int = 0,
    crc_off_by: int = 0,
    magic: int = 0x50,
    kind: int = 0,
    entry: bytes = b"",
) -> bytes:
    """The body of a Deliver frame, version 1, with one chunk: of messages, or of one record in an ``entry``."""
    data = entry or b"".join(struct.pack(">I", len(message)) + message for message in messages)
    count = len(messages) or 1
    head = struct.pack(
        ">BBHIqQQIIIB3x", magic, kind, count, count, time_ms, 1, first,
        zlib.crc32(data) ^ crc_off_by, len(data), 0, 0,
    )  # fmt: skip
    return bytes([subscription]) + head + data


def stats(**values: int) -> bytes:
    """What follows the code in the answer to StreamStats."""
    return array([text(name) + struct.pack(">q", value) for name, value in values.items()])


def metadata(stream: str, code: int = OK, port: int | None = None) -> bytes:
    """What follows the correlation id in the answer to Metadata: one stream, on one node or none."""
    nodes = [struct.pack(">H", 3) + text("127.0.0.1") + struct.pack(">I", port)] if port else []
    leader, replicas = (3, [struct.pack(">H", 3)]) if port else (0xFFFF, [])
    return array(nodes) + array([text(stream) + struct.pack(">HH", code, leader) + array(replicas)])


class Wire:
    """The broker's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or an answer waits for the one before it
        self.stream = connection.makefile("rb")

    def send(self, kind: int, body: bytes, version: int = 1) -> None:
        self.raw(struct.pack(">IHH", len(body) + 4, kind, version) + body)

    def raw(self, sent: bytes) -> None:
        self.socket.sendall(sent)

    def answer(self, kind: int, correlation: int, code: int = OK, rest: bytes = b"") -> None:
        self.send(kind | RESPONSE, struct.pack(">IH", correlation, code) + rest)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


Handler = Callable[[Wire, int, bytes], None]


def _connecting(kind: int) -> Handler:
    def handle(wire: Wire, correlation: int, body: bytes) -> None:
        rest = {
            key.PEER_PROPERTIES: pairs({"product": "RabbitMQ", "version": VERSION}),
            key.SASL_HANDSHAKE: array([text("PLAIN")]),
            key.OPEN: pairs({}),
            key.EXCHANGE_COMMAND_VERSIONS: array([struct.pack(">HHH", each, 1, 1) for each in range(1, 0x20)]),
        }.get(kind, b"")
        wire.answer(kind, correlation, OK, rest)
        if kind == key.SASL_AUTHENTICATE:
            wire.send(key.TUNE, struct.pack(">II", 1 << 20, 0))

    return handle


@dataclass
class Scripted:
    """A context manager; ``handlers`` say what is done with a request, by key; the handshake goes well by itself.

    A frame that no handler is for is noted in ``seen`` and not answered.
    """

    handlers: dict[int, Handler] = field(default_factory=dict)
    greeting: bytes | None = None
    """Sent as soon as somebody connects, before anything is read; then the connection is closed."""

    def __post_init__(self) -> None:
        plain = (
            key.PEER_PROPERTIES, key.SASL_HANDSHAKE, key.SASL_AUTHENTICATE, key.OPEN, key.EXCHANGE_COMMAND_VERSIONS,
            key.UNSUBSCRIBE, key.CLOSE,
        )  # fmt: skip
        self.handlers = {**{each: _connecting(each) for each in plain}, **self.handlers}
        self.seen: list[tuple[int, bytes]] = []
        self.connections = 0
        self._open: list[Wire] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Scripted:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept`, which waits in its thread, takes one more
        self._listener.close()
        for wire in self._open:
            wire.hang_up()

    def client(self, timeout_ms: int = 5_000) -> RabbitClient:
        return RabbitClient(self.endpoint, timeout_ms=timeout_ms)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("rabbitmq-stream", "127.0.0.1", self.port, "guest", Secret("guest"))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                wire = Wire(connection)
                self._open.append(wire)
                threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self.greeting is not None:
                wire.raw(self.greeting)
                wire.stream.read1(1)
                wire.hang_up()
                return
            while len(head := wire.stream.read(4)) == 4:
                (size,) = struct.unpack(">I", head)
                if size > 1 << 20:  # the bytes of another protocol
                    wire.hang_up()
                    return
                raw = wire.stream.read(size)
                frame = key.split(raw)
                self.seen.append((frame.key, frame.body))
                handler = self.handlers.get(frame.key)
                if handler is not None:
                    handler(wire, frame.correlation or 0, frame.body)


S: Final = "s"
"""The stream that scripts speak of."""


def answers(kind: int, *each: tuple[int, bytes]) -> Callable[[Wire, int, bytes], None]:
    """Answer with these codes and contents, one after the other, the last one again and again."""
    left = deque(each)

    def handle(wire: Wire, number: int, _: bytes) -> None:
        code, rest = left.popleft() if len(left) > 1 else left[0]
        wire.answer(kind, number, code, rest)

    return handle


def silence(*_: object) -> None:
    """Do not answer."""


def metadata_of(wire: Wire, number: int, _: bytes) -> None:
    wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + metadata(S))


class Chunks:
    """Subscribe and Credit of a broker that has these chunks: one for each credit, until there are no more.

    It goes on with subscriptions that are over, which brokers do not.
    """

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks
        self.subscribed = 0
        self._left: dict[int, deque[bytes]] = {}

    def subscribe(self, wire: Wire, number: int, body: bytes) -> None:
        self.subscribed += 1
        wire.answer(key.SUBSCRIBE, number)
        at = 1 + 2 + len(S)
        kind, value = struct.unpack_from(">HQ", body, at) if body[at + 1] == 4 else (1, 0)
        credit = struct.unpack_from(">H", body, at + (10 if kind == 4 else 2))[0]
        left = deque(c for c in self.chunks if struct.unpack_from(">Q", c, 25)[0] + c[8] > value)
        self._left[body[0]] = left
        self._send(wire, body[0], credit)

    def credit(self, wire: Wire, _: int, body: bytes) -> None:
        # There is no correlation id in it, so the body is whole.
        self._send(wire, *struct.unpack_from(">BH", body))

    def _send(self, wire: Wire, subscription: int, count: int) -> None:
        left = self._left.get(subscription, deque())  # one of another handler has none
        for _ in range(min(count, len(left))):
            wire.send(key.DELIVER, bytes([subscription]) + left.popleft()[1:])

    def script(self, last: int, first: int = 0) -> dict[int, Callable[[Wire, int, bytes], None]]:
        held = stats(first_chunk_id=first, committed_chunk_id=0, committed_offset=last)
        return {
            key.SUBSCRIBE: self.subscribe,
            key.CREDIT: self.credit,
            key.METADATA: metadata_of,
            key.STREAM_STATS: answers(key.STREAM_STATS, (1, held)),
        }
