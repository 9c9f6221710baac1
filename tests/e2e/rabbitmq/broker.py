"""A broker as these scenarios use it: streams are made and filled by hand, and read without the project's codec."""

from __future__ import annotations

import contextlib
import gzip
import secrets
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import google_crc32c
import pyarrow as pa
import pytest

from tests.real_rabbitmq import by_hand
from tests.real_rabbitmq.by_hand import Chunk, Peer, array, chunk, data, filtered, pairs, plain, sub_batch, text

REAL = pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)
REAL_AT_NIGHT = pytest.param("rabbitmq", marks=[pytest.mark.rabbitmq, pytest.mark.nightly])
on_both = pytest.mark.parametrize("broker", ["embedded", REAL], indirect=True)
"""Scenarios that cost little, or depend on a broker in what no test of client or planner asks a real one."""
on_embedded = pytest.mark.parametrize("broker", ["embedded"], indirect=True)

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
FRAME = 1_000
CREDIT = 100
SMALL = {"max_length_bytes": "200000", "stream_max_segment_size_bytes": "100000"}
"""Arguments of a stream that retention cuts soon."""
SNAPPY = b"\xff\x06\x00\x00sNaPpY"


class Stored(NamedTuple):
    """A message as the broker delivers it."""

    offset: int
    timestamp_ms: int
    message: bytes

    @property
    def body(self) -> bytes:
        """The bytes of the only data section, which has to be the last one of the message."""
        at = self.message.rindex(b"\x00\x53\x75")
        form = self.message[at + 3]
        assert form in (0xA0, 0xB0), self.message
        return self.message[at + (5 if form == 0xA0 else 8) :]


def body(value: str | bytes) -> bytes:
    """A message of one data section (AMQP 1.0 part 3 §3.2.6), written by hand: described by 0x75, vbin32."""
    raw = value.encode() if isinstance(value, str) else value
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(raw)) + raw


def coloured(value: str, color: str | None) -> bytes:
    """A message with application property ``color``, or without it."""
    if color is None:
        return body(value)
    pair = b"\xa1\x05color\xa1" + bytes([len(color.encode())]) + color.encode()
    return b"\x00\x53\x74\xc1" + bytes([len(pair) + 1, 2]) + pair + body(value)


def numbers(low: int, high: int, prefix: str = "e") -> list[str]:
    """The texts e<low> to e<high - 1>."""
    return [f"{prefix}{n}" for n in range(low, high)]


def offset(number: int) -> str:
    """An offset as rows have it."""
    return f"{number:020d}"


class Broker(ABC):
    """A running broker, and streams on it that end with the test.

    Args:
        url: with credentials.
    """

    kind: str
    keeps_sub_entries: bool
    """Whether it hands out sub-entry batches as they were published."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._prefix = f"e2e-{secrets.token_hex(5)}"
        self._streams: list[str] = []
        self._super_streams: list[str] = []

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 5552

    # --- what is different on each kind

    def restart(self) -> None:
        """Stop the broker and start it again, on the same port and data."""
        raise NotImplementedError("others use this broker: tests/real_rabbitmq/test_restarts.py has one of its own")

    def add_partition(self, super_stream: str, number: int) -> str:
        """Add partition ``number`` to a super stream that has as many; return its name."""
        raise NotImplementedError("ask for fixture own_log")

    @abstractmethod
    def apply_retention(self) -> None:
        """Have the broker remove what retention allows it to, if it does not do so by itself."""

    @contextmanager
    def outsider(self) -> Iterator[str]:
        """The url of a user who may do nothing."""
        raise NotImplementedError("ask for fixture own_log")

    @contextmanager
    def hidden(self, super_stream: str, partition: str) -> Iterator[None]:
        """Have the broker leave a partition out when it is asked for the super stream's, for a moment."""
        raise NotImplementedError("ask for fixture own_log")

    # --- streams

    def name(self, text: str = "orders") -> str:
        """A name that no other test uses."""
        return f"{self._prefix}-{text}"

    @contextmanager
    def peer(self) -> Iterator[Peer]:
        """A connection by hand."""
        with contextlib.closing(Peer(self.url)) as peer:
            yield peer.open(versions=())

    def versions(self) -> dict[int, int]:
        """The commands that the broker takes, with their newest versions; none when it does not tell."""
        with contextlib.closing(Peer(self.url)) as peer:
            peer.open(versions=())
            try:
                asked = array([struct.pack(">HHH", by_hand.DELIVER, 1, 1)])
                answer = peer.ask(by_hand.EXCHANGE_COMMAND_VERSIONS, asked)
            except EOFError:
                return {}
        return {command: newest for command, _, newest in struct.iter_unpack(">HHH", answer.body[6:])}

    def needs(self, command: int, version: int = 1) -> None:
        """Skip the test when the broker does not take a command in that version."""
        if self.versions().get(command, 0) < version:
            pytest.skip(f"this broker does not take command {command:#x} in version {version}")

    def create(self, name: str = "orders", **arguments: str) -> str:
        """Create a stream and return its whole name."""
        whole = name if name.startswith(self._prefix) else self.name(name)
        with self.peer() as peer:
            assert peer.create(whole, **arguments) == 1
        self._streams.append(whole)
        return whole

    def create_super(self, count: int, name: str = "orders", keys: Sequence[str] | None = None) -> str:
        """Create a super stream of ``count`` partitions and return its whole name."""
        self.needs(by_hand.CREATE_SUPER_STREAM)
        whole = name if name.startswith(self._prefix) else self.name(name)
        names = [text(f"{whole}-{n}") for n in range(count)]
        bindings = [text(key) for key in keys or [str(n) for n in range(count)]]
        with self.peer() as peer:
            asked = text(whole) + array(names) + array(bindings) + pairs({})
            assert peer.ask(by_hand.CREATE_SUPER_STREAM, asked).code == 1
        self._super_streams.append(whole)
        return whole

    def delete(self, name: str) -> None:
        """Delete a stream."""
        with self.peer() as peer:
            assert peer.delete(name) == 1

    def delete_super(self, name: str) -> None:
        """Delete a super stream with its partitions."""
        with self.peer() as peer:
            assert peer.ask(by_hand.DELETE_SUPER_STREAM, text(name)).code == 1

    def close(self) -> None:
        """Delete what is left of the streams that were created."""
        with self.peer() as peer:
            for name in self._super_streams:
                peer.ask(by_hand.DELETE_SUPER_STREAM, text(name))
            for name in self._streams:
                peer.delete(name)

    # --- messages

    def publish(self, stream: str, messages: Sequence[str | bytes], *, each: int = FRAME) -> None:
        """Publish messages, each frame confirmed before the next; texts become the body of a message."""
        encoded = [body(m) if isinstance(m, str) else m for m in messages]
        with self.peer() as peer:
            assert peer.declare(1, stream) == 1
            for first in range(0, len(encoded), each):
                part = encoded[first : first + each]
                peer.publish(1, [plain(first + i, message) for i, message in enumerate(part)])
                peer.confirmed(len(part))

    def publish_filtered(self, stream: str, messages: Sequence[tuple[str | None, bytes]], *, each: int = FRAME) -> None:
        """Publish messages with filter values."""
        with self.peer() as peer:
            assert peer.declare(1, stream) == 1
            for first in range(0, len(messages), each):
                part = messages[first : first + each]
                peer.publish(1, [filtered(first + i, value, message) for i, (value, message) in enumerate(part)], 2)
                peer.confirmed(len(part))

    def publish_together(self, stream: str, batches: Sequence[Sequence[bytes]], compression: str = "none") -> None:
        """Publish sub-entry batches, each confirmed before the next."""
        with self.peer() as peer:
            assert peer.declare(1, stream) == 1
            for number, batch in enumerate(batches):
                inner = b"".join(data(message) for message in batch)
                stored = compressed(inner, compression)
                kind = COMPRESSIONS.index(compression)
                peer.publish(1, [sub_batch(number, kind, len(batch), len(inner), stored)])
                peer.confirmed(1)

    def first(self, stream: str) -> int:
        """The first offset that a stream still has."""
        with self.peer() as peer:
            assert peer.subscribe(1, stream, by_hand.FIRST, 1) == 1
            return chunk(peer.barrier(stream)[0]).first

    def truncate(self, stream: str, beyond: int) -> int:
        """Publish to a stream of ``SMALL`` until its first offset is ``beyond`` or later; return that."""
        deadline = time.monotonic() + 240
        while (first := self.first(stream)) < beyond:
            assert time.monotonic() < deadline, "retention removes nothing"
            self.publish(stream, ["x" * 1_000] * 100, each=5)
            self.apply_retention()
        return first

    def chunks(self, stream: str, credit: int = CREDIT) -> list[Chunk]:
        """All chunks of messages that a stream has."""
        found: list[Chunk] = []
        with self.peer() as peer:
            assert peer.subscribe(1, stream, by_hand.FIRST, credit) == 1
            while got := peer.barrier(stream):
                found += [chunk(frame) for frame in got]
                peer.send(by_hand.CREDIT, bytes([1]) + struct.pack(">H", len(got)))
        return found

    def read(self, stream: str) -> list[Stored]:
        """All messages of a stream, decompressed."""
        out = []
        for each in self.chunks(stream):
            messages = records(each)
            assert len(messages) == each.records
            out += [Stored(each.first + i, each.timestamp, message) for i, message in enumerate(messages)]
        return out

    def bodies(self, stream: str) -> list[str]:
        """The bodies of all messages of a stream, as text."""
        return [stored.body.decode() for stored in self.read(stream)]

    def store(self, stream: str, reference: str, value: int) -> None:
        """Store an offset, which writes a chunk that uses up an offset, and wait until it is there."""
        with self.peer() as peer:
            peer.send(by_hand.STORE_OFFSET, text(reference) + text(stream) + struct.pack(">Q", value))
            while self.stored(stream, reference, peer) != value:
                pass

    def stored(self, stream: str, reference: str, peer: Peer | None = None) -> int | None:
        """The offset that is stored under a name, None when there is none."""
        if peer is None:
            with self.peer() as own:
                return self.stored(stream, reference, own)
        answer = peer.ask(by_hand.QUERY_OFFSET, text(reference) + text(stream))
        return struct.unpack_from(">Q", answer.body, 2)[0] if answer.code == 1 else None


def compressed(inner: bytes, compression: str) -> bytes:
    """What a sub-entry batch stores, by other implementations than ours."""
    if compression == "none":
        return inner
    if compression == "gzip":
        return gzip.compress(inner, mtime=0)
    if compression != "snappy":
        return pa.Codec(compression).compress(inner).to_pybytes()
    assert len(inner) <= 65_536, "one chunk of snappy's framing format"
    crc = google_crc32c.value(inner)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    raw = struct.pack("<I", masked) + pa.Codec("snappy").compress(inner).to_pybytes()
    return SNAPPY + b"\x00" + struct.pack("<I", len(raw))[:3] + raw


def inflated(stored: bytes, kind: int, length: int) -> bytes:
    """Undo ``compressed``, and snappy's framing of several chunks."""
    compression = COMPRESSIONS[kind]
    if compression == "none":
        return stored
    if compression == "gzip":
        return gzip.decompress(stored)
    if compression != "snappy":
        return pa.Codec(compression).decompress(stored, decompressed_size=length).to_pybytes()
    assert stored.startswith(SNAPPY)
    out, at = b"", len(SNAPPY)
    while at < len(stored):
        (head,) = struct.unpack_from("<I", stored, at)
        part = stored[at + 8 : at + 4 + (head >> 8)]
        if head & 0xFF == 0:
            size, shift, i = 0, 0, 0
            while True:  # snappy's own format begins with the plain size, as a varint
                size |= (part[i] & 0x7F) << shift
                shift, i = shift + 7, i + 1
                if not part[i - 1] & 0x80:
                    break
            part = pa.Codec("snappy").decompress(part, decompressed_size=size).to_pybytes()
        out += part
        at += 4 + (head >> 8)
    return out


def records(each: Chunk) -> list[bytes]:
    """The messages of a chunk, those of sub-entry batches too."""
    found, at = list[bytes](), 0
    while at < each.data_length:
        if not each.rest[at] & 0x80:
            (size,) = struct.unpack_from(">I", each.rest, at)
            found.append(each.rest[at + 4 : at + 4 + size])
            at += 4 + size
            continue
        kind, count, length, size = struct.unpack_from(">BHII", each.rest, at)
        inner = inflated(each.rest[at + 11 : at + 11 + size], kind >> 4 & 7, length)
        assert len(inner) == length
        where = 0
        for _ in range(count):
            (one,) = struct.unpack_from(">I", inner, where)
            found.append(inner[where + 4 : where + 4 + one])
            where += 4 + one
        assert where == length
        at += 11 + size
    return found
