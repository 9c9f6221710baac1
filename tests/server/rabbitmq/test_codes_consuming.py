"""The response codes of consumers' commands, each provoked; and ResolveOffsetSpec, which answers what Subscribe means.

Spec: Streams Protocol Reference, response codes; docs/specifications.md, S-121, S-122, S-151.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    CLOSE,
    FIRST,
    LAST,
    NEXT,
    RESOLVE_OFFSET,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Peer,
    offset,
    pairs,
    text,
    timestamp,
)
from tests.server.rabbitmq.consuming import chunks_of_three, firsts, publish_one, refused_credit

MISSING = "there-is-no-such-stream"


def resolved(peer: Peer, stream: str, start: bytes) -> tuple[int, int, int]:
    """Return code, type and offset of the answer."""
    return struct.unpack(">HHQ", peer.ask(RESOLVE_OFFSET, text(stream) + start).body)  # type: ignore[return-value]


# --- 0x01 OK is in all other tests


def test_0x02_of_a_stream_that_is_not_there(broker: Any) -> None:
    peer = broker.peer()
    assert peer.subscribe(1, MISSING, FIRST) == 0x02
    assert peer.subscribe(1, "", FIRST) == 0x02
    assert resolved(peer, MISSING, FIRST) == (0x02, 4, 0)


def test_0x02_comes_before_0x03(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST) == 1
    assert peer.subscribe(1, MISSING, FIRST) == 0x02


def test_0x03_of_an_id_in_use(broker: Any) -> None:
    stream, another, peer = broker.stream(), broker.stream("another"), broker.peer()
    publish_one(peer, stream, b"x")
    assert peer.subscribe(1, stream, FIRST) == 1
    assert peer.subscribe(1, stream, FIRST) == 0x03
    assert peer.subscribe(1, another, FIRST) == 0x03
    assert peer.subscribe(1, stream, FIRST, 10, {"single-active-consumer": "true"}) == 0x03
    assert firsts(peer, stream) == [0]  # the first one is as it was


def test_0x04_of_an_id_that_is_not_in_use(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 0x04
    assert refused_credit(peer, 1) == (0x04, 1)
    assert peer.subscribe(1, stream, FIRST) == 1
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 0x01
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 0x04


def test_0x04_after_the_stream_was_deleted(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST) == 1
    assert peer.delete(stream) == 1
    body = peer.read().body  # MetadataUpdate, unasked
    assert struct.unpack_from(">H", body)[0] == 0x06
    assert refused_credit(peer, 1) == (0x04, 1)
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 0x04
    assert peer.subscribe(1, stream, FIRST) == 0x02
    assert peer.create(stream) == 1
    publish_one(peer, stream, b"x")
    assert firsts(peer, stream) == []
    assert peer.subscribe(1, stream, FIRST) == 1
    assert firsts(peer, stream) == [0]


def test_0x10_without_permission_to_read(doors: Callable[..., Any]) -> None:
    from spark_streams.server import Permissions

    door = doors(permissions={"guest": Permissions(read="conformance-.*-open")})
    stream, readable, peer = door.stream("closed"), door.stream("open"), door.peer()
    assert peer.subscribe(1, stream, FIRST) == 0x10
    assert resolved(peer, stream, FIRST) == (0x10, 4, 0)
    assert peer.subscribe(1, readable, FIRST) == 1


def test_0x11_of_a_group_without_a_name(broker: Any) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert peer.subscribe(1, stream, FIRST, 10, {"single-active-consumer": "true"}) == 0x11
    assert peer.subscribe(1, stream, FIRST) == 1


def test_0x0f_of_a_log_that_cannot_be_read(door: Any) -> None:
    stream, peer = door.stream(), door.peer()
    for number in range(3):
        publish_one(peer, stream, b"%d" % number)
    (segment,) = (door.log.path / "streams").rglob("*.log") if hasattr(door.log, "path") else _segments(door)
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 0xFF
    segment.write_bytes(damaged)
    assert peer.subscribe(1, stream, offset(2)) == 0x0F
    assert resolved(peer, stream, offset(2))[0] == 0x0F
    assert peer.ask(UNSUBSCRIBE, bytes([1])).code == 0x04
    # Damage that is met later ends the connection: silence would be taken for the end of the stream.
    assert peer.subscribe(1, stream, FIRST) == 1
    code, reason = _closed(peer)
    assert code == 0x0F
    assert stream.encode() in reason


def _segments(door: Any) -> list[Any]:
    return [segment.path for segment in next(iter(door.log.stream(_only(door)).partitions.values()))._segments]


def _only(door: Any) -> str:
    (name,) = door._streams
    return str(name)


def _closed(peer: Peer) -> tuple[int, bytes]:
    body = peer.expect(CLOSE).body
    (code,) = struct.unpack_from(">H", body)
    return code, body[4:]


@pytest.mark.parametrize("kind", [0, 6, 65_535])
def test_an_unknown_offset_type_ends_the_connection(door: Any, kind: int) -> None:
    """A broker drops the socket; the door says why."""
    stream = door.stream()
    for key, body in (
        (SUBSCRIBE, bytes([1]) + text(stream) + struct.pack(">HH", kind, 10) + pairs({})),
        (RESOLVE_OFFSET, text(stream) + struct.pack(">H", kind)),
    ):
        peer = door.peer()
        peer.send(key, struct.pack(">I", 1) + body)
        assert _closed(peer)[0] == 0x0D


@pytest.mark.parametrize(
    ("start", "empty", "expected"),
    [
        (FIRST, 0, 0),
        (LAST, 0, 6),
        (NEXT, 0, 9),
        (offset(0), 0, 0),
        (offset(5), 0, 3),
        (offset(8), 0, 6),
        (offset(9), 0, 9),
        (offset(2**64 - 1), 0, 9),
        (timestamp(0), 0, 0),
        (timestamp(2**60), 0, 9),
    ],
)
def test_resolve_offset_specification(broker: Any, start: bytes, empty: int, expected: int) -> None:
    stream, peer = broker.stream(), broker.peer()
    assert resolved(peer, stream, start) == (0x01, 4, empty)
    assert resolved(peer, stream, start + pairs({"filter.0": "apple"})) == (0x01, 4, empty)
    chunks_of_three(peer, stream)
    assert resolved(peer, stream, start) == (0x01, 4, expected)
    assert resolved(peer, stream, start + pairs({})) == (0x01, 4, expected)
