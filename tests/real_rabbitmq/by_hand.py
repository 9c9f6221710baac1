"""A stream protocol client whose frames are packed by hand: what captures and checks of a broker are made with.

Nothing here knows the project's codec, so that bytes captured with it can judge the codec.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

DECLARE_PUBLISHER, PUBLISH, PUBLISH_CONFIRM, PUBLISH_ERROR, QUERY_PUBLISHER_SEQUENCE = 1, 2, 3, 4, 5
DELETE_PUBLISHER, SUBSCRIBE, DELIVER, CREDIT, STORE_OFFSET, QUERY_OFFSET, UNSUBSCRIBE = 6, 7, 8, 9, 10, 11, 12
CREATE, DELETE, METADATA, METADATA_UPDATE, PEER_PROPERTIES, SASL_HANDSHAKE = 13, 14, 15, 16, 17, 18
SASL_AUTHENTICATE, TUNE, OPEN, CLOSE, HEARTBEAT, ROUTE, PARTITIONS, CONSUMER_UPDATE = 19, 20, 21, 22, 23, 24, 25, 26
EXCHANGE_COMMAND_VERSIONS, STREAM_STATS, CREATE_SUPER_STREAM, DELETE_SUPER_STREAM, RESOLVE_OFFSET = 27, 28, 29, 30, 31
RESPONSE = 0x8000
FIRST, LAST, NEXT = (struct.pack(">H", each) for each in (1, 2, 3))
UNCORRELATED = {
    PUBLISH,
    PUBLISH_CONFIRM,
    PUBLISH_ERROR,
    DELIVER,
    CREDIT,
    STORE_OFFSET,
    METADATA_UPDATE,
    TUNE,
    HEARTBEAT,
}
TIMEOUT_S = 120


@dataclass(frozen=True)
class Frame:
    """One frame without its size; ``body`` follows key, version and, where there is one, the correlation id."""

    key: int
    version: int
    correlation: int | None
    body: bytes
    raw: bytes

    @property
    def code(self) -> int:
        """The response code that begins the body of most responses."""
        return int(struct.unpack_from(">H", self.body)[0])


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def data(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack(">I", len(value)) + value


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">I", len(items)) + b"".join(items)


def pairs(values: dict[str, str]) -> bytes:
    return array([text(key) + text(value) for key, value in values.items()])


def offset(value: int) -> bytes:
    return struct.pack(">HQ", 4, value)


def timestamp(ms: int) -> bytes:
    return struct.pack(">Hq", 5, ms)


def plain(publishing_id: int, message: bytes) -> bytes:
    """One entry of Publish version 1."""
    return struct.pack(">Q", publishing_id) + data(message)


def filtered(publishing_id: int, value: str | None, message: bytes) -> bytes:
    """One entry of Publish version 2."""
    return struct.pack(">Q", publishing_id) + text(value) + data(message)


def sub_batch(publishing_id: int, compression: int, count: int, inner_length: int, stored: bytes) -> bytes:
    """One sub-batch entry of Publish version 1; ``stored`` is the compressed form of ``inner_length`` bytes."""
    head = struct.pack(">QBHII", publishing_id, 0x80 | compression << 4, count, inner_length, len(stored))
    return head + stored


def split(raw: bytes) -> Frame:
    """Take the frame after its size field apart."""
    key, version = struct.unpack_from(">HH", raw)
    if key & 0x7FFF in UNCORRELATED:
        return Frame(key, version, None, raw[4:], raw)
    return Frame(key, version, struct.unpack_from(">I", raw, 4)[0], raw[8:], raw)


class Peer:
    """One connection. ``sent`` and ``received`` keep every frame's bytes, with the size field, in order."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.user, self.password = parts.username or "guest", parts.password or "guest"
        self.socket = socket.create_connection((parts.hostname, parts.port or 5552), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")
        self.sent: list[bytes] = []
        self.received: list[bytes] = []
        self.waiting: list[Frame] = []
        self.correlation = 0

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def send(self, key: int, body: bytes = b"", version: int = 1) -> None:
        """Send a frame without a correlation id (a body may begin with one)."""
        raw = struct.pack(">IHH", len(body) + 4, key, version) + body
        self.sent.append(raw)
        self.socket.sendall(raw)

    def read(self) -> Frame:
        """Return the next frame from the wire; EOFError when the broker has closed the connection."""
        head = self.stream.read(4)
        if len(head) < 4:
            seen = [f"{frame.key:#06x} {frame.body.hex()}" for frame in self.waiting]
            raise EOFError(f"the broker closed the connection; unread frames: {seen}")
        raw = self.stream.read(struct.unpack(">I", head)[0])
        self.received.append(head + raw)
        return split(raw)

    def ask(self, key: int, body: bytes = b"", version: int = 1) -> Frame:
        """Send a request and return its response; what comes before it waits for ``expect``."""
        self.correlation += 1
        self.send(key, struct.pack(">I", self.correlation) + body, version)
        while True:
            frame = self.read()
            if frame.key == key | RESPONSE and frame.correlation == self.correlation:
                return frame
            self.waiting.append(frame)

    def expect(self, key: int) -> Frame:
        """Return the first waiting or coming frame of that key; EOFError when the stream is taken away instead."""
        while True:
            for index, frame in enumerate(self.waiting):
                if frame.key == key:
                    return self.waiting.pop(index)
                if frame.key == METADATA_UPDATE:
                    raise EOFError(f"the stream is not available any more: {frame.body!r}")
            self.waiting.append(self.read())

    def take(self, key: int) -> Iterator[Frame]:
        """Yield, and forget, the waiting frames of that key; nothing is read from the wire."""
        found = [frame for frame in self.waiting if frame.key == key]
        self.waiting = [frame for frame in self.waiting if frame.key != key]
        yield from found

    def open(self, vhost: str = "/", versions: Sequence[tuple[int, int, int]] = ((DELIVER, 1, 2),)) -> Peer:
        """Run the whole opening sequence; ``versions`` are the client's commands, none sends no list."""
        self.ask(PEER_PROPERTIES, pairs({"product": "capture", "version": "1", "platform": "Python"}))
        self.ask(SASL_HANDSHAKE)
        answer = self.authenticate()
        assert answer.code == 1, f"authentication failed with {answer.code:#x}"
        self.tune()
        answer = self.ask(OPEN, text(vhost))
        assert answer.code == 1, f"open failed with {answer.code:#x}"
        if versions:
            self.ask(EXCHANGE_COMMAND_VERSIONS, array([struct.pack(">HHH", *each) for each in versions]))
        return self

    def authenticate(self, mechanism: str = "PLAIN", secret: bytes | None = b"?") -> Frame:
        """Send SaslAuthenticate; by default with the url's user and password."""
        if secret == b"?":
            secret = b"\0" + self.user.encode() + b"\0" + self.password.encode()
        return self.ask(SASL_AUTHENTICATE, text(mechanism) + data(secret))

    def tune(self, frame_max: int = 1 << 20, heartbeat_s: int = 0) -> Frame:
        """Wait for the broker's Tune, answer it, and return it; no heartbeats by default: nobody here sends them."""
        frame = self.expect(TUNE)
        self.send(TUNE | RESPONSE, struct.pack(">II", frame_max, heartbeat_s))
        return frame

    def create(self, stream: str, **arguments: str) -> int:
        """Create a stream and return the response code; underscores in names of arguments stand for hyphens."""
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        return self.ask(CREATE, text(stream) + pairs(named)).code

    def delete(self, stream: str) -> int:
        return self.ask(DELETE, text(stream)).code

    def declare(self, publisher: int, stream: str, reference: str = "") -> int:
        return self.ask(DECLARE_PUBLISHER, bytes([publisher]) + text(reference) + text(stream)).code

    def publish(self, publisher: int, entries: Sequence[bytes], version: int = 1) -> None:
        """Send one Publish frame and do not wait."""
        self.send(PUBLISH, bytes([publisher]) + array(entries), version)

    def confirmed(self, count: int) -> list[int]:
        """Wait for ``count`` confirmed publishing ids and return them as they came."""
        ids: list[int] = []
        while len(ids) < count:
            body = self.expect(PUBLISH_CONFIRM).body
            ids += struct.unpack_from(f">{struct.unpack_from('>I', body, 1)[0]}Q", body, 5)
        return ids

    def subscribe(
        self, subscription: int, stream: str, start: bytes, credit: int = 10, properties: dict[str, str] | None = None
    ) -> int:
        body = bytes([subscription]) + text(stream) + start + struct.pack(">H", credit)
        return self.ask(SUBSCRIBE, body + (pairs(properties) if properties is not None else b"")).code

    def barrier(self, stream: str) -> list[Frame]:
        """Ask for metadata and return the deliveries that came before the answer (and any that waited)."""
        self.ask(METADATA, array([text(stream)]))
        return list(self.take(DELIVER))

    def stats(self, stream: str) -> tuple[int, dict[str, int]]:
        body = self.ask(STREAM_STATS, text(stream)).body
        code, count = struct.unpack_from(">HI", body)
        found, at = {}, 6
        for _ in range(count):
            (length,) = struct.unpack_from(">H", body, at)
            found[body[at + 2 : at + 2 + length].decode()] = struct.unpack_from(">q", body, at + 2 + length)[0]
            at += 10 + length
        return code, found


@dataclass(frozen=True)
class Chunk:
    """The header of a delivered chunk, and what follows it in the frame."""

    subscription: int
    committed: int | None
    type: int
    entries: int
    records: int
    timestamp: int
    epoch: int
    first: int
    crc: int
    data_length: int
    trailer_length: int
    bloom_size: int
    rest: bytes


def chunk(frame: Frame) -> Chunk:
    """Take a Deliver frame apart."""
    body, committed, at = frame.body, None, 1
    if frame.version == 2:
        committed, at = struct.unpack_from(">Q", body, 1)[0], 9
    _, kind, entries, records, time, epoch, first, crc, size, trailer, bloom = struct.unpack_from(
        ">BBHIqQQIIIB", body, at
    )
    return Chunk(
        body[0], committed, kind, entries, records, time, epoch, first, crc, size, trailer, bloom, body[at + 48 :]
    )
