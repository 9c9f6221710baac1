"""Bad clients of the AMQP door."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping

import requests

from tests.bench.hostile_clients.registry import attack
from tests.server.amqp.raw_links import Receiver
from tests.server.amqp.raw_peer import EARLIEST, Ended, Peer, sql_filter

DOOR = "amqp"
GUARD_S = 600.0
NAME = b"\xa3\x17event-streams-group-key"


@contextlib.contextmanager
def cut_is_an_end() -> Iterator[None]:
    """Say it as the other doors' clients do when the connection has ended."""
    try:
        yield
    except Ended as fault:
        raise EOFError(str(fault)) from fault


def create(urls: Mapping[str, str], name: str, partitions: int) -> None:
    url = f"{urls['feedapi']}/{name}"
    answer = requests.put(url, params={"partitions": partitions}, timeout=GUARD_S)
    assert answer.status_code == 201, answer.text


def long_key() -> bytes:
    """A message with a group key of 15.9 MB."""
    key = b"k" * 15_900_000
    pair = NAME + b"\xb1" + struct.pack(">I", len(key)) + key
    return b"\x00\x53\x72\xd1" + struct.pack(">II", 4 + len(pair), 2) + pair + b"\x00\x53\x75\xa0\x01x"


def nulls(count: int) -> bytes:
    return b"\xd0" + struct.pack(">II", 4 + count, count) + b"\x40" * count


def send_for_ever(urls: Mapping[str, str], message: bytes) -> Iterator[None]:
    create(urls, "bad", 4)
    sender = Peer(urls[DOOR]).sender("bad")
    yield
    while True:
        with cut_is_an_end():
            sender.send(message, timeout_s=GUARD_S)
        yield


@attack(f"{DOOR}: a group key of 15.9 MB")
def group_key(urls: Mapping[str, str]) -> Iterator[None]:
    yield from send_for_ever(urls, long_key())


@attack(f"{DOOR}: a body of 15.9 MB")
def body(urls: Mapping[str, str]) -> Iterator[None]:
    yield from send_for_ever(urls, b"\x00\x53\x75\xb0" + struct.pack(">I", 15_900_000) + b"b" * 15_900_000)


@attack(f"{DOOR}: a map of uuids that all have one hash")
def one_hash(urls: Mapping[str, str]) -> Iterator[None]:
    entries = b"".join(b"\x98" + (n * (2**61 - 1)).to_bytes(16, "big") + b"\x40" for n in range(100_000))
    body = b"\xd1" + struct.pack(">II", 4 + len(entries), 200_000) + entries
    yield from send_for_ever(urls, b"\x00\x53\x77" + body)


@attack(f"{DOOR}: a list of 15.9 million nulls")
def long_list(urls: Mapping[str, str]) -> Iterator[None]:
    yield from send_for_ever(urls, b"\x00\x53\x77" + nulls(15_900_000))


@attack(f"{DOOR}: lists of 500,000 nulls")
def lists(urls: Mapping[str, str]) -> Iterator[None]:
    """Of a size that the loop itself would read."""
    yield from send_for_ever(urls, b"\x00\x53\x77" + nulls(500_000))


@attack(f"{DOOR}: 50 links to $info of 1,000 partitions, again and again")
def info(urls: Mapping[str, str]) -> Iterator[None]:
    create(urls, "bad", 1_000)
    yield
    while True:
        with cut_is_an_end():
            peer = Peer(urls[DOOR])
            receivers = [peer.attach_receiver("bad/$info") for _ in range(50)]
            for receiver in receivers:
                receiver.take(1, timeout_s=GUARD_S)
            peer.close()
        yield


@attack(f"{DOOR}: $info of 1,000 partitions as fast as it comes")
def info_flood(urls: Mapping[str, str]) -> Iterator[None]:
    create(urls, "bad", 1_000)
    peer = Peer(urls[DOOR])
    receiver = peer.receiver("bad/$info")
    yield
    while True:
        with cut_is_an_end():
            receiver.take(1, timeout_s=GUARD_S)
        yield


def drained(receiver: Receiver) -> None:
    """Return when the door has said that it has nothing."""
    receiver.peer.pump(lambda: not receiver.link.credit, GUARD_S)


@attack(f"{DOOR}: filters that match nothing, 20 links")
def filters(urls: Mapping[str, str]) -> Iterator[None]:
    create(urls, "bad", 1)
    lines = b'{"event":{"a":"some text that is long"},"key":"k"}\n' * 300_000
    headers = {"Content-Type": "application/x-ndjson"}
    assert requests.post(f"{urls['feedapi']}/bad", lines, headers=headers, timeout=GUARD_S).status_code == 200
    unmatched = sql_filter("p.subject = 'none'")
    yield
    while True:
        with cut_is_an_end():
            peer = Peer(urls[DOOR])
            receivers = [peer.attach_receiver("bad", filter=[EARLIEST, unmatched]) for _ in range(20)]
            for receiver in receivers:
                receiver.link.drain(10)
            for receiver in receivers:
                drained(receiver)
            peer.close()
        yield
