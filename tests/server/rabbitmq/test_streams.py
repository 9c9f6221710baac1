"""Streams, super streams, stored offsets, stats: the same requests to the door and to a real broker."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    CLOSE,
    CREATE,
    CREATE_SUPER_STREAM,
    DELETE,
    DELETE_SUPER_STREAM,
    METADATA,
    METADATA_UPDATE,
    NEXT,
    OPEN,
    PARTITIONS,
    PEER_PROPERTIES,
    QUERY_OFFSET,
    RESPONSE,
    ROUTE,
    SASL_HANDSHAKE,
    STORE_OFFSET,
    TUNE,
    Frame,
    Peer,
    array,
    pairs,
    plain,
    text,
)

OK, NOT_THERE, EXISTS, PRECONDITION = 0x01, 0x02, 0x05, 0x11


def texts(names: list[str]) -> bytes:
    return array([text(name) for name in names])


def create_super(peer: Peer, name: str, partitions: list[str], keys: list[str], **arguments: str) -> int:
    return peer.ask(CREATE_SUPER_STREAM, text(name) + texts(partitions) + texts(keys) + pairs(arguments)).code


def names(frame: Frame) -> tuple[int, list[str]]:
    """Take the answer to Route or Partitions apart."""
    code, count = struct.unpack_from(">HI", frame.body)
    found, at = [], 6
    for _ in range(count):
        (length,) = struct.unpack_from(">H", frame.body, at)
        found.append(frame.body[at + 2 : at + 2 + length].decode())
        at += 2 + length
    assert at == len(frame.body)
    return code, found


def partitions(peer: Peer, name: str) -> tuple[int, list[str]]:
    return names(peer.ask(PARTITIONS, text(name)))


def route(peer: Peer, key: str, name: str) -> tuple[int, list[str]]:
    return names(peer.ask(ROUTE, text(key) + text(name)))


def query(peer: Peer, reference: str, stream: str) -> tuple[int, int]:
    code, offset = struct.unpack(">HQ", peer.ask(QUERY_OFFSET, text(reference) + text(stream)).body)
    return code, offset


def store(peer: Peer, reference: str, stream: str, offset: int) -> None:
    peer.send(STORE_OFFSET, text(reference) + text(stream) + struct.pack(">Q", offset))


def stored(peer: Peer, reference: str, stream: str, offset: int) -> bool:
    """Store an offset, and ask until it is told: brokers write it a moment later."""
    store(peer, reference, stream, offset)
    return any(query(peer, reference, stream) == (OK, offset) for _ in range(2_000))


@pytest.fixture
def super_stream(broker: Any) -> Any:
    """A super stream of three partitions, made through the protocol and deleted at the end."""
    name = f"{broker.prefix}-sales"
    streams = [f"{name}-{where}" for where in ("emea", "apac", "amer")]
    with_peer = broker.peer()
    assert create_super(with_peer, name, streams, ["e", "a", "m"]) == OK
    yield name
    with_peer.ask(DELETE_SUPER_STREAM, text(name))


# --- streams


@pytest.mark.parametrize(
    ("first", "again", "code"),
    [
        ({}, {}, EXISTS),
        ({"max_age": "7D"}, {"max_age": "7D"}, EXISTS),
        ({"max_age": "7D"}, {"max_age": "24h"}, PRECONDITION),
        ({}, {"max_age": "7D"}, PRECONDITION),
        ({"max_age": "7D"}, {}, PRECONDITION),
        ({"max_length_bytes": "1000000"}, {"max_length_bytes": "2000000"}, PRECONDITION),
        ({"stream_max_segment_size_bytes": "100000"}, {"stream_max_segment_size_bytes": "200000"}, PRECONDITION),
        ({"stream_filter_size_bytes": "32"}, {"stream_filter_size_bytes": "32"}, EXISTS),
        ({"queue_leader_locator": "balanced"}, {"queue_leader_locator": "balanced"}, EXISTS),
        ({"initial_cluster_size": "1"}, {"initial_cluster_size": "1"}, EXISTS),
        ({"nobody_knows": "this"}, {}, EXISTS),
    ],
)
def test_creating_again(broker: Any, first: dict[str, str], again: dict[str, str], code: int) -> None:
    stream = broker.stream(**first)
    assert broker.peer().create(stream, **again) == code


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_age": "7D"},
        {"max_age": "24h"},
        {"max_age": "5m"},
        {"max_age": "10s"},
        {"max_age": "1Y"},
        {"max_age": "2M"},
        {"max_length_bytes": "5000000000", "stream_max_segment_size_bytes": "500000000"},
        {"stream_filter_size_bytes": "16"},
        {"stream_filter_size_bytes": "255"},
        {"initial_cluster_size": "3", "queue_leader_locator": "least-leaders"},
        {"queue_leader_locator": "client-local"},
        {"queue_leader_locator": "random"},
        {"queue_leader_locator": "min-masters"},
        {"nobody_knows": "this"},
    ],
)
def test_arguments_that_are_taken(broker: Any, arguments: dict[str, str]) -> None:
    broker.stream(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"stream_filter_size_bytes": "15"},
        {"stream_filter_size_bytes": "256"},
        {"stream_max_segment_size_bytes": "5000000000"},
        {"initial_cluster_size": "0"},
        {"queue_leader_locator": "somewhere"},
    ],
)
def test_arguments_that_are_not(broker: Any, arguments: dict[str, str]) -> None:
    peer = broker.peer()
    assert peer.create(f"{broker.prefix}-bad", **arguments) == PRECONDITION
    assert peer.delete(f"{broker.prefix}-bad") == NOT_THERE


@pytest.mark.parametrize("name", ["", "amq.orders"])
def test_names_that_are_not_taken(broker: Any, name: str) -> None:
    peer = broker.peer()
    assert peer.create(name) == PRECONDITION
    assert create_super(peer, name, [f"{broker.prefix}-0"], ["0"]) == PRECONDITION
    assert create_super(peer, f"{broker.prefix}-super", [name], ["0"]) == PRECONDITION


@pytest.mark.parametrize("name", ["with space", "ünï/cödé", "a.b,c:d#e*f", "%2E%2e..", "q" * 150])
def test_odd_names(broker: Any, name: str) -> None:
    stream = broker.stream(name)
    peer = broker.peer()
    assert peer.declare(1, stream) == OK
    peer.publish(1, [plain(1, b"x")])
    assert peer.confirmed(1) == [1]
    assert peer.stats(stream)[1]["committed_offset"] == 0


def test_deleting(broker: Any) -> None:
    stream = broker.stream()
    peer = broker.peer()
    assert peer.delete(stream) == OK
    assert peer.delete(stream) == NOT_THERE
    assert peer.create(stream, max_age="7D") == OK, "another one, with other arguments"


def test_metadata(broker: Any) -> None:
    here, there = broker.stream("here"), broker.stream("there")
    peer = broker.peer()
    port = peer.socket.getpeername()[1]
    body = peer.ask(METADATA, texts([here, f"{broker.prefix}-missing", there])).body
    (count, reference, length) = struct.unpack_from(">IHH", body)
    assert count == 1
    at = 8 + length
    assert struct.unpack_from(">I", body, at) == (port,)
    expected = [(here, OK, reference), (f"{broker.prefix}-missing", NOT_THERE, 0xFFFF), (there, OK, reference)]
    told = array([text(n) + struct.pack(">HHI", code, leader, 0) for n, code, leader in expected])
    # The order of the streams is the broker's affair.
    found = {body[at + 8 :].find(text(n) + struct.pack(">HHI", code, leader, 0)) for n, code, leader in expected}
    assert -1 not in found and len(body) - at - 4 == len(told)


@pytest.mark.parametrize("asked", [[], ["missing"]])
def test_metadata_of_nothing(broker: Any, asked: list[str]) -> None:
    whole = [f"{broker.prefix}-{name}" for name in asked]
    body = broker.peer().ask(METADATA, texts(whole)).body
    missing = array([text(name) + struct.pack(">HHI", NOT_THERE, 0xFFFF, 0) for name in whole])
    assert body == struct.pack(">I", 0) + missing


def test_deleted_streams_are_told_to_those_who_use_them(broker: Any) -> None:
    stream, other = broker.stream(), broker.stream("other")
    publisher, subscriber, both, bystander, deleter = (broker.peer() for _ in range(5))
    assert publisher.declare(1, stream) == subscriber.subscribe(1, stream, NEXT) == OK
    assert both.declare(1, stream) == both.subscribe(1, stream, NEXT) == both.declare(2, other) == OK
    assert bystander.declare(1, other) == OK
    assert deleter.delete(stream) == OK
    for peer in (publisher, subscriber, both):
        assert peer.expect(METADATA_UPDATE).body == struct.pack(">H", 6) + text(stream)
    publisher.publish(1, [plain(7, b"late")])
    assert publisher.expect(4).body == struct.pack(">BIQH", 1, 1, 7, 0x12)
    both.publish(2, [plain(8, b"fine")])
    assert both.confirmed(1) == [8]
    for peer in (both, bystander, publisher, deleter):
        peer.ask(METADATA, array([]))
        assert not list(peer.take(METADATA_UPDATE)), "told once, and only to users"


def test_the_deleter_is_told_too(broker: Any) -> None:
    stream = broker.stream()
    peer = broker.peer()
    assert peer.declare(1, stream) == OK
    peer.ask(DELETE, text(stream))
    assert peer.expect(METADATA_UPDATE).body == struct.pack(">H", 6) + text(stream)
    assert peer.ask(6, b"\1").code == 0x12
    assert peer.ask(12, b"\1").code == 0x04
    assert peer.declare(1, stream) == NOT_THERE


# --- stats


def test_stats(broker: Any) -> None:
    stream = broker.stream()
    peer = broker.peer()
    nothing = dict.fromkeys(("first_chunk_id", "last_chunk_id", "committed_chunk_id", "committed_offset"), -1)
    assert peer.stats(stream) == (OK, nothing)
    assert peer.declare(1, stream) == OK
    for number, size in enumerate((3, 2)):
        # One chunk each: the next is published when this one is confirmed.
        peer.publish(1, [plain(number * 10 + n, b"x") for n in range(size)])
        peer.confirmed(size)
    wanted = {"first_chunk_id": 0, "last_chunk_id": 3, "committed_chunk_id": 3, "committed_offset": 4}
    assert peer.stats(stream) == (OK, wanted)
    assert peer.stats(f"{broker.prefix}-missing") == (NOT_THERE, {})


# --- stored offsets


def test_stored_offsets(broker: Any) -> None:
    stream, other = broker.stream(), broker.stream("other")
    peer = broker.peer()
    assert query(peer, "app", stream) == (0x13, 0)
    for offset in (5, 3, 0, 2**64 - 1):
        assert stored(peer, "app", stream, offset), "back as well as forth"
    assert stored(peer, "r" * 255, stream, 7)
    assert query(peer, "app2", stream) == query(peer, "app", other) == (0x13, 0)
    assert query(broker.peer(), "app", stream) == (OK, 2**64 - 1), "another connection"
    assert query(peer, "app", f"{broker.prefix}-missing") == (NOT_THERE, 0)


def test_what_cannot_be_stored_is_dropped_without_a_word(broker: Any) -> None:
    stream = broker.stream()
    peer = broker.peer()
    store(peer, "r" * 256, stream, 1)
    store(peer, "app", f"{broker.prefix}-missing", 1)
    assert query(peer, "app", stream) == (0x13, 0)
    assert stored(peer, "app", stream, 2)


def test_stored_offsets_of_a_stream_that_was_made_anew(broker: Any) -> None:
    stream = broker.stream()
    peer = broker.peer()
    assert stored(peer, "app", stream, 5)
    assert peer.delete(stream) == peer.create(stream) == OK
    assert query(peer, "app", stream) == (0x13, 0)


# --- super streams


def test_partitions_and_routes(broker: Any, super_stream: str) -> None:
    peer = broker.peer()
    streams = [f"{super_stream}-{where}" for where in ("emea", "apac", "amer")]
    assert partitions(peer, super_stream) == (OK, streams), "in the order of creation"
    assert route(peer, "a", super_stream) == (OK, [streams[1]])
    assert route(peer, "0", super_stream) == route(peer, "", super_stream) == (OK, [])
    for name in (f"{broker.prefix}-missing", broker.stream()):
        assert partitions(peer, name) == route(peer, "0", name) == (NOT_THERE, [])
    for stream in streams:
        assert peer.stats(stream)[0] == OK
    assert peer.stats(super_stream) == (NOT_THERE, {}), "it is no stream itself"
    assert peer.delete(super_stream) == NOT_THERE


def test_creating_super_streams(broker: Any, super_stream: str) -> None:
    peer = broker.peer()
    taken, new = f"{super_stream}-emea", f"{broker.prefix}-new"
    first, second = f"{new}-x", f"{new}-y"
    assert create_super(peer, super_stream, [f"{new}-0"], ["0"]) == EXISTS
    assert create_super(peer, new, [first], ["x", "y"]) == PRECONDITION
    assert create_super(peer, new, [first, second], ["x"]) == PRECONDITION
    assert create_super(peer, new, [first, first], ["x", "y"]) == PRECONDITION
    assert create_super(peer, new, [first, taken], ["x", "y"]) == EXISTS
    assert partitions(peer, new) == (NOT_THERE, [])
    assert peer.stats(first)[0] == NOT_THERE, "nothing is left of what failed"
    assert create_super(peer, new, [first, second], ["x", "x"], **{"max-age": "7D"}) == OK
    assert sorted(route(peer, "x", new)[1]) == [first, second], "one key may lead to several"
    assert peer.ask(DELETE_SUPER_STREAM, text(new)).code == OK


def test_deleting_super_streams(broker: Any, super_stream: str) -> None:
    peer, user = broker.peer(), broker.peer()
    streams = [f"{super_stream}-{where}" for where in ("emea", "apac", "amer")]
    assert user.declare(1, streams[0]) == user.subscribe(1, streams[2], NEXT) == OK
    assert peer.ask(DELETE_SUPER_STREAM, text(super_stream)).code == OK
    told = {user.expect(METADATA_UPDATE).body for _ in range(2)}
    assert told == {struct.pack(">H", 6) + text(stream) for stream in (streams[0], streams[2])}
    assert peer.ask(DELETE_SUPER_STREAM, text(super_stream)).code == NOT_THERE
    assert partitions(peer, super_stream) == (NOT_THERE, [])
    assert [peer.stats(stream)[0] for stream in streams] == [NOT_THERE] * 3


def test_partitions_are_streams(broker: Any, super_stream: str) -> None:
    peer = broker.peer()
    stream = f"{super_stream}-apac"
    assert peer.declare(1, stream) == OK
    peer.publish(1, [plain(1, b"x")])
    assert peer.confirmed(1) == [1]
    assert [peer.stats(f"{super_stream}-{w}")[1]["committed_offset"] for w in ("emea", "apac", "amer")] == [-1, 0, -1]
    assert stored(peer, "app", stream, 9)
    assert query(peer, "app", f"{super_stream}-emea") == (0x13, 0)


# --- frames that are none


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">IHH", 4, 0x55, 1),
        struct.pack(">IHH", 4, 0x17, 9),
        struct.pack(">IHH", 4, 8, 1),
        struct.pack(">IHHI", 8, CREATE, 7, 1),
        struct.pack(">IHHI", 8, 0x11, 1, 1) + b"",
        struct.pack(">IHHII", 12, TUNE, 1, 1 << 20, 60),
        struct.pack(">IHHII", 12, TUNE | RESPONSE, 1, 1 << 20, 60),
        struct.pack(">IH", 2, 1),
        struct.pack(">I", 0),
    ],
)
def test_unknown_frames(broker: Any, raw: bytes) -> None:
    peer = broker.peer()
    peer.socket.sendall(raw)
    frame = peer.expect(CLOSE)
    assert frame.code == 0x0D
    peer.send(CLOSE | RESPONSE, struct.pack(">IH", frame.correlation, 1))
    with pytest.raises((EOFError, ConnectionError)):
        peer.read()


def test_frames_above_what_was_agreed(broker: Any) -> None:
    peer = broker.connect()
    peer.open()
    peer.socket.sendall(struct.pack(">I", (1 << 20) + 1))
    frame = peer.expect(CLOSE)
    assert frame.code == 0x0E


def test_a_smaller_frame_is_agreed_on(broker: Any) -> None:
    peer = broker.connect()
    peer.ask(PEER_PROPERTIES, pairs({}))
    peer.ask(SASL_HANDSHAKE)
    peer.authenticate()
    peer.tune(frame_max=1_000)
    assert peer.ask(OPEN, text("/")).code == 1
    assert peer.ask(METADATA, texts(["x" * 900])).body.startswith(struct.pack(">I", 0))
    peer.send(METADATA, struct.pack(">I", 9) + texts(["x" * 1_000]))
    assert peer.expect(CLOSE).code == 0x0E


def test_closing(broker: Any) -> None:
    peer = broker.peer()
    assert peer.ask(CLOSE, struct.pack(">H", 1) + text("done")).body == struct.pack(">H", 1)
    with pytest.raises((EOFError, ConnectionError)):
        peer.read()
