"""Bad clients of the RabbitMQ door. Their frames are packed by hand."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import select
import ssl
import struct
from collections.abc import Iterator, Mapping

from spark_streams.server import RabbitConfig
from tests.bench.hostile_clients.registry import attack
from tests.real_rabbitmq.by_hand import (
    CREATE_SUPER_STREAM,
    CREDIT,
    DELETE_SUPER_STREAM,
    FIRST,
    METADATA,
    NEXT,
    PUBLISH,
    STORE_OFFSET,
    UNSUBSCRIBE,
    Peer,
    array,
    data,
    filtered,
    pairs,
    sub_batch,
    text,
)

DOOR = "rabbitmq-stream"
FRAME_BYTES = 1 << 20
MOST_RECORDS = 65_000
NAMES = 100_000


def come_in(urls: Mapping[str, str], *streams: str) -> Peer:
    """Connect, and make streams."""
    peer = Peer(urls[DOOR]).open()
    for stream in streams:
        peer.create(stream)
    return peer


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


def text_section(value: bytes) -> bytes:
    """Return an AMQP value of a binary: what no door can pass over without a look."""
    return b"\x00\x53\x77\xa0" + bytes([len(value)]) + value


def full_frame(message_of: list[bytes]) -> list[bytes]:
    """Return the entries of a frame that is full of gzip sub-batches of 65,000 messages."""
    plain = b"".join(map(data, itertools.islice(itertools.cycle(message_of), MOST_RECORDS)))
    packed = gzip.compress(plain)
    fit = (FRAME_BYTES - 100) // (len(packed) + 19)
    return [sub_batch(number, 1, MOST_RECORDS, len(plain), packed) for number in range(fit)]


def publish_for_ever(peer: Peer, stream: str, entries: list[bytes]) -> Iterator[None]:
    assert peer.declare(1, stream) == 1
    yield
    while True:
        peer.publish(1, entries)
        # Whether they are taken does not matter; that they were dealt with does.
        peer.barrier(stream)
        peer.waiting.clear()
        peer.sent.clear()
        peer.received.clear()
        yield


@attack(f"{DOOR}: sub-batches of 65,000 empty records")
def empty_sub_batches(urls: Mapping[str, str]) -> Iterator[None]:
    yield from publish_for_ever(come_in(urls, "bad"), "bad", full_frame([b""]))


@attack(f"{DOOR}: sub-batches of 65,000 AMQP messages")
def amqp_sub_batches(urls: Mapping[str, str]) -> Iterator[None]:
    messages = [text_section(b"x" * size) for size in range(20)]
    yield from publish_for_ever(come_in(urls, "bad"), "bad", full_frame(messages))


@attack(f"{DOOR}: sub-batches of 65,000 broken messages")
def broken_sub_batches(urls: Mapping[str, str]) -> Iterator[None]:
    messages = [b"\x00\x53" + bytes([size]) * size for size in range(20)]
    yield from publish_for_ever(come_in(urls, "bad"), "bad", full_frame(messages))


@attack(f"{DOOR}: one sub-batch of 65,000 AMQP messages")
def one_sub_batch(urls: Mapping[str, str]) -> Iterator[None]:
    messages = [text_section(b"x" * size) for size in range(20)]
    yield from publish_for_ever(come_in(urls, "bad"), "bad", full_frame(messages)[:1])


LONGEST = 8_380_000
"""Bytes that a sub-batch may inflate to by default, all but a few."""


def one_message(message: bytes) -> bytes:
    """Return a sub-batch of one message."""
    plain = data(message)
    return sub_batch(1, 1, 1, len(plain), gzip.compress(plain))


@attack(f"{DOOR}: a list of 8 million nulls")
def long_list(urls: Mapping[str, str]) -> Iterator[None]:
    """Of all messages of its size the one that takes longest to look at."""
    message = b"\x00\x53\x77\xd0" + struct.pack(">II", LONGEST + 4, LONGEST) + b"\x40" * LONGEST
    yield from publish_for_ever(come_in(urls, "bad"), "bad", [one_message(message)])


@attack(f"{DOOR}: two million data sections")
def data_sections(urls: Mapping[str, str]) -> Iterator[None]:
    message = b"\x00\x53\x75\x40" * (LONGEST // 4)
    yield from publish_for_ever(come_in(urls, "bad"), "bad", [one_message(message)])


@attack(f"{DOOR}: two million annotations")
def annotations(urls: Mapping[str, str]) -> Iterator[None]:
    count = LONGEST // 3 - 10
    head = b"\x00\x53\x72\xd1" + struct.pack(">II", 4 + 3 * count, 2 * count)
    message = head + b"\xa3\x00\x40" * count + text_section(b"x")
    yield from publish_for_ever(come_in(urls, "bad"), "bad", [one_message(message)])


@attack(f"{DOOR}: a group key of 8 MB")
def long_group_key(urls: Mapping[str, str]) -> Iterator[None]:
    """A message annotation, deflated."""
    key = b"k" * LONGEST
    name = b"\xa3\x17event-streams-group-key"
    field = b"\xb0" + struct.pack(">I", len(key)) + key
    content = struct.pack(">I", 2) + name + field
    message = b"\x00\x53\x72\xd1" + struct.pack(">I", len(content)) + content + text_section(b"x")
    yield from publish_for_ever(come_in(urls, "bad"), "bad", [one_message(message)])


@attack(f"{DOOR}: a flood of Credit")
def credit(urls: Mapping[str, str]) -> Iterator[None]:
    peer = come_in(urls, "bad")
    assert peer.subscribe(1, "bad", NEXT) == 1
    flood = frame(CREDIT, b"\x01" + struct.pack(">H", 1)) * 50_000
    yield
    while True:
        peer.socket.sendall(flood)
        yield


@attack(f"{DOOR}: a flood of Credit to no subscription")
def refused_credit(urls: Mapping[str, str]) -> Iterator[None]:
    peer = come_in(urls)
    flood = memoryview(frame(CREDIT, b"\x63" + struct.pack(">H", 1)) * 50_000)
    peer.socket.setblocking(False)
    yield
    while True:
        left = flood
        while left:
            readable, writable, _ = select.select([peer.socket], [peer.socket], [])
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if readable and not peer.socket.recv(1 << 20):
                    raise EOFError("the door closed the connection")
                if writable:
                    left = left[peer.socket.send(left) :]
        yield


@attack(f"{DOOR}: Metadata of 100,000 names")
def metadata(urls: Mapping[str, str]) -> Iterator[None]:
    peer = come_in(urls)
    names = array([text(f"n{number:07}") for number in range(NAMES)])
    yield
    while True:
        peer.ask(METADATA, names)
        peer.sent.clear()
        peer.received.clear()
        yield


def stored_offsets(urls: Mapping[str, str], names: int) -> Iterator[None]:
    """Offsets under so many names, and the deletion of their stream, again and again."""
    peer = come_in(urls)
    for round in itertools.count():
        stream = f"bad-{round}"
        flood = b"".join(
            frame(STORE_OFFSET, text(f"reference {number}") + text(stream) + struct.pack(">Q", number))
            for number in range(names)
        )
        peer.delete(stream)  # of a connection that was cut
        assert peer.create(stream) == 1
        if not round:
            yield
        peer.socket.sendall(flood)
        assert peer.delete(stream) == 1
        yield


@attack(f"{DOOR}: 100,000 stored offsets and a deletion", "[rabbitmq-stream]\nmax_stored_offsets = 1_000_000\n")
def very_many_stored_offsets(urls: Mapping[str, str]) -> Iterator[None]:
    yield from stored_offsets(urls, NAMES)


@attack(f"{DOOR}: as many stored offsets as a user may have, and a deletion")
def many_stored_offsets(urls: Mapping[str, str]) -> Iterator[None]:
    yield from stored_offsets(urls, RabbitConfig().max_stored_offsets)


@attack(f"{DOOR}: more stored offsets than a user may have")
def too_many_stored_offsets(urls: Mapping[str, str]) -> Iterator[None]:
    yield from stored_offsets(urls, NAMES)


@attack(f"{DOOR}: 1,000 partitions made and removed")
def partitions(urls: Mapping[str, str]) -> Iterator[None]:
    peer = come_in(urls)
    names = [f"bad-{number}" for number in range(1_000)]
    keys = [str(number) for number in range(1_000)]
    yield
    while True:
        create = text("bad") + array(list(map(text, names))) + array(list(map(text, keys))) + pairs({})
        assert peer.ask(CREATE_SUPER_STREAM, create).code == 1
        assert peer.ask(DELETE_SUPER_STREAM, text("bad")).code == 1
        yield


def filters_for_ever(urls: Mapping[str, str], values: int) -> Iterator[None]:
    """Filters that match nothing in 10,000 stored batches."""
    peer = come_in(urls, "bad")
    assert peer.declare(1, "bad") == 1
    for number in range(10_000):
        peer.publish(1, [filtered(number, f"value {number}", text_section(b"x"))], version=2)
        peer.confirmed(1)
        peer.sent.clear()
        peer.received.clear()
    properties = {f"filter.{number}": f"no such value {number}" for number in range(values)}
    yield
    while True:
        peer.subscribe(1, "bad", FIRST, 60_000, properties)
        peer.ask(UNSUBSCRIBE, b"\x01")
        peer.waiting.clear()
        peer.sent.clear()
        peer.received.clear()
        yield


@attack(f"{DOOR}: a filter that matches nothing")
def empty_filter(urls: Mapping[str, str]) -> Iterator[None]:
    yield from filters_for_ever(urls, 1)


@attack(f"{DOOR}: 1,000 filters that match nothing")
def empty_filters(urls: Mapping[str, str]) -> Iterator[None]:
    yield from filters_for_ever(urls, 1_000)


@attack(f"{DOOR}: frames of 60,000 messages")
def many_messages(urls: Mapping[str, str]) -> Iterator[None]:
    """What is not compressed at all, as many as go into a frame."""
    peer = come_in(urls, "bad")
    assert peer.declare(1, "bad") == 1
    message = text_section(b"x")
    entries = array([struct.pack(">Q", number) + data(message) for number in range((FRAME_BYTES - 100) // 18)])
    flood = frame(PUBLISH, b"\x01" + entries)
    yield
    while True:
        peer.socket.sendall(flood)
        peer.barrier("bad")
        peer.waiting.clear()
        peer.received.clear()
        yield
