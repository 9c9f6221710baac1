"""Signs of life both ways, and peers that do not read."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.server import turns
from spark_streams.server.rabbitmq.subscription import Subscription
from tests.real_rabbitmq.by_hand import (
    FIRST,
    HEARTBEAT,
    METADATA,
    OPEN,
    PEER_PROPERTIES,
    SASL_HANDSHAKE,
    array,
    filtered,
    pairs,
    plain,
    text,
)
from tests.server.rabbitmq.beside import until
from tests.server.rabbitmq.clock import Clock
from tests.server.rabbitmq.clock import clock as clock


def opened(broker: Any, heartbeat_s: int) -> Any:
    """A connection with this heartbeat agreed on."""
    peer = broker.connect()
    peer.ask(PEER_PROPERTIES, pairs({}))
    peer.ask(SASL_HANDSHAKE)
    peer.authenticate()
    peer.tune(heartbeat_s=heartbeat_s)
    assert peer.ask(OPEN, text("/")).code == 1
    return peer


@pytest.mark.nightly
@pytest.mark.rabbitmq
@pytest.mark.parametrize("broker", ["real"], indirect=True)
def test_a_real_brokers_heartbeats(broker: Any) -> None:
    """In true seconds: they come, keep a connection, as requests do, and a silent peer is dropped."""
    peer = opened(broker, 1)
    for _ in range(6):
        assert peer.read().key == HEARTBEAT
        peer.send(HEARTBEAT)
    for _ in range(5):
        peer.ask(METADATA, array([]))
        peer.waiting.clear()
        assert peer.read().key == HEARTBEAT
    peer = opened(broker, 1)
    keys = []
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            keys.append(peer.read().key)
    assert set(keys) == {HEARTBEAT} and len(keys) >= 2, "and no Close: it could not be answered"


def pass_time(door: Any, clock: Clock, seconds: float) -> None:
    """Let the door read what it was sent, and then time pass."""
    door.taken_in()
    door.server.call(lambda: clock.advance(seconds))


def test_heartbeats_come_and_a_silent_peer_is_dropped(door: Any, clock: Clock) -> None:
    peer = opened(door, 1)
    pass_time(door, clock, 2.0)
    assert [peer.read().key for _ in range(4)] == [HEARTBEAT] * 4, "two a second"
    pass_time(door, clock, 0.6)
    with pytest.raises((EOFError, ConnectionError)):
        while True:
            assert peer.read().key == HEARTBEAT, "no Close: it could not be answered"


def test_heartbeats_come_while_a_search_finds_nothing(door: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, writer = door.stream(), door.peer()
    assert writer.declare(1, stream) == 1
    for number in range(12):  # a stored batch each
        writer.publish(1, [filtered(number, f"value {number}", b"x")], version=2)
        assert writer.confirmed(1) == [number]
    deliver = Subscription.deliver

    def slowly(self: Subscription, *limits: Any) -> tuple[int, bool]:
        delivered = deliver(self, *limits)
        clock.advance(0.1)
        return delivered

    reader = opened(door, 1)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    monkeypatch.setattr(Subscription, "deliver", slowly)
    assert reader.subscribe(1, stream, FIRST, 10, {"filter.0": "no such value, for sure"}) == 1
    assert reader.barrier(stream) == []
    assert len(list(reader.take(HEARTBEAT))) >= 2, "two a second"


def test_heartbeats_keep_a_connection(door: Any, clock: Clock) -> None:
    peer = opened(door, 1)
    for _ in range(6):
        pass_time(door, clock, 1.9)
        peer.send(HEARTBEAT)
    assert peer.ask(METADATA, array([])).body == bytes(8)


def test_requests_are_signs_of_life_too(door: Any, clock: Clock) -> None:
    peer = opened(door, 1)
    for _ in range(6):
        pass_time(door, clock, 1.9)
        peer.ask(METADATA, array([]))


def test_answers_are_signs_of_life_too(door: Any, clock: Clock) -> None:
    peer = opened(door, 1)
    for _ in range(4):
        peer.ask(METADATA, array([]))
        pass_time(door, clock, 0.4)
    peer.ask(METADATA, array([]))
    assert HEARTBEAT not in [frame.key for frame in peer.waiting]


def test_without_heartbeats_silence_is_allowed(doors: Callable[..., Any], clock: Clock) -> None:
    door = doors(heartbeat_s=0)
    peer = opened(door, 0)
    pass_time(door, clock, 3_600)
    peer.ask(METADATA, array([]))
    assert HEARTBEAT not in [frame.key for frame in peer.waiting]


def test_the_shorter_interval_counts(doors: Callable[..., Any], clock: Clock) -> None:
    for number, asked in enumerate((60, 0)):
        door = doors(heartbeat_s=1, folder=f"log-{number}")
        peer = opened(door, asked)
        pass_time(door, clock, 0.5)
        assert peer.read().key == HEARTBEAT


def filled(door: Any, megabytes: int) -> str:
    """A stream with so many chunks of a megabyte."""
    door.log.create_stream("large")
    for _ in range(megabytes):
        door.partition("large").append([b"x" * (1 << 20)])
    return "large"


def test_a_peer_that_takes_nothing_is_dropped(doors: Callable[..., Any], clock: Clock) -> None:
    door = doors(heartbeat_s=1, max_outgoing_bytes=1 << 20)
    stream = filled(door, 40)
    peer = door.connect()
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    peer.open()
    peer.send(7, struct.pack(">IB", 5, 1) + text(stream) + FIRST + struct.pack(">H", 100))
    (connection,) = door.server.call(lambda: set(door.server.server.door("rabbitmq-stream").connections))
    for _ in range(100):
        # It goes on to say that it lives, but reads nothing.
        try:
            peer.send(HEARTBEAT)
        except OSError:
            break
        pass_time(door, clock, 0.5)
        if door.server.call(lambda: connection not in door.server.server.door("rabbitmq-stream").connections):
            break
    assert door.server.call(lambda: connection not in door.server.server.door("rabbitmq-stream").connections)


def test_what_waits_for_a_slow_reader_is_bounded(doors: Callable[..., Any]) -> None:
    """A reader with credit for everything: what the door holds for it stays near the high-water mark."""
    door = doors(max_outgoing_bytes=1 << 20)
    stream = filled(door, 40)
    peer = door.connect()
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    peer.open()
    assert peer.subscribe(1, stream, FIRST, credit=100) == 1
    (connection,) = door.server.call(lambda: set(door.server.server.door("rabbitmq-stream").connections))
    # What the system takes for a peer that does not read is less than the 40 MB of the stream.
    until(lambda: door.server.call(lambda: connection.outgoing_bytes > 0))
    held = 0
    for _ in range(40):
        held = max(held, door.server.call(lambda: connection.outgoing_bytes))
        assert peer.expect(8).body[0] == 1
    assert held < 5 << 20, "the mark, and a turn of chunks above it"


def test_requests_without_reading_are_not_answered_without_end(doors: Callable[..., Any]) -> None:
    """A peer that asks and asks and never reads: its requests stay in its socket, not answers in the door's memory."""
    door = doors(max_outgoing_bytes=1 << 16)
    peer = door.connect()
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    peer.open()
    (connection,) = door.server.call(lambda: set(door.server.server.door("rabbitmq-stream").connections))
    body = struct.pack(">I", 1) + array([text("n" * 200)] * 4_000)
    request = struct.pack(">IHH", len(body) + 4, METADATA, 1) + body
    peer.socket.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 200 << 20:
            peer.socket.sendall(request)
            sent += len(request)
    assert door.server.call(lambda: connection.outgoing_bytes) < 4 << 20


def test_with_too_much_under_way_nothing_more_is_read(doors: Callable[..., Any]) -> None:
    """Appends that wait for the disk: entries under way are bounded, and all are confirmed in the end."""
    from spark_streams.log import LogConfig

    door = doors(max_unconfirmed=100, log_config=LogConfig(fsync="always"))
    stream = door.stream()
    peer = door.peer()
    assert peer.declare(1, stream) == 1
    for first in range(0, 5_000, 50):
        peer.publish(1, [plain(first + n, b"x" * 100) for n in range(50)])
    assert sorted(peer.confirmed(5_000)) == list(range(5_000))
