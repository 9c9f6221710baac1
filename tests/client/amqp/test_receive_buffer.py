"""The receive buffer behind a link's deliveries, with an engine of proton's as the sender: frames, aborts, growth."""

from __future__ import annotations

import pytest

from spark_streams.client.amqp import receive_buffer
from spark_streams.client.amqp.receive_buffer import ReceiveBuffer
from spark_streams.errors import RemoteProtocolError
from tests.client.amqp.joined_engines import Ours, Sender, exchange

KEPT = 512


class Pair:
    """A sender and a receiver with one link, which has credit for 1,000 messages."""

    def __init__(self, max_frame: int = 512, max_bytes: int = 1 << 20, kept: int | None = None) -> None:
        self.sender, self.receiver = Sender(max_frame), Ours(max_frame, 100_000)
        self.deliveries = self.receiver.attach("link", max_bytes=max_bytes)
        self.deliveries.kept_bytes = kept
        self.pump()
        self.deliveries.flow(1_000)
        self.pump()

    def pump(self) -> None:
        exchange(self.sender, self.receiver.written, self.receiver.push)

    def send(self, *bodies: bytes) -> None:
        self.sender.send("link", *bodies)
        self.pump()


def messages(buffer: ReceiveBuffer, first: int = 0) -> list[bytes]:
    block = buffer.block(first)
    return [bytes(block.buffer[a:b]) for a, b in zip(block.starts, block.ends, strict=True)]


def test_messages_of_one_buffer() -> None:
    pair, buffer = Pair(), ReceiveBuffer(100, 10_000)
    bodies = [bytes([n]) * (n + 1) for n in range(50)]
    pair.send(*bodies)
    assert buffer.take(pair.deliveries) == 50
    assert messages(buffer) == bodies
    assert messages(buffer, 48) == bodies[48:]
    assert messages(buffer, 50) == []
    assert buffer.holds(b"\x07\x07", 0) and not buffer.holds(b"\x07", buffer.size - 10)
    buffer.clear()
    assert (buffer.rows, buffer.size, messages(buffer)) == (0, 0, [])


def test_it_stops_at_its_limits_and_goes_on_after_clear() -> None:
    pair, buffer = Pair(), ReceiveBuffer(10, 1_000)
    bodies = [b"%03d" % n * 40 for n in range(30)]
    pair.send(*bodies)
    seen = []
    while buffer.take(pair.deliveries):
        assert buffer.rows <= 10 and buffer.full == (buffer.rows == 10 or buffer.size >= 1_000)
        seen += messages(buffer)
        buffer.clear()
    assert seen == bodies


@pytest.mark.parametrize("kept", [None, KEPT])
def test_a_message_in_pieces_is_whole_only_with_its_last_frame(kept: int | None) -> None:
    pair, buffer = Pair(kept=kept), ReceiveBuffer(10, 50_000)
    pair.send(b"first")
    pair.sender.begin("link", b"a" * 3_000)
    pair.pump()
    assert buffer.take(pair.deliveries) == 1
    assert buffer.take(pair.deliveries) == 0
    buffer.clear()
    pair.sender.begin("link", b"b" * 3_000)
    pair.pump()
    assert buffer.take(pair.deliveries) == 0
    pair.sender.finish("link")
    pair.send(b"last")
    assert buffer.take(pair.deliveries) == 2
    assert messages(buffer) == [(b"a" * 3_000 + b"b" * 3_000)[:kept], b"last"]


@pytest.mark.parametrize("kept", [None, KEPT])
def test_an_aborted_delivery_leaves_nothing(kept: int | None) -> None:
    pair, buffer = Pair(kept=kept), ReceiveBuffer(10, 50_000)
    pair.send(b"first")
    pair.sender.begin("link", b"taken back" * 300)
    pair.pump()
    assert buffer.take(pair.deliveries) == 1
    pair.sender.abort("link")
    pair.send(b"second")
    assert buffer.take(pair.deliveries) == 1
    assert messages(buffer) == [b"first", b"second"]


def test_heads_of_messages_in_one_frame_each() -> None:
    pair, buffer = Pair(16_384, kept=5), ReceiveBuffer(100, 50_000)
    pair.send(*[b"%02d" % n * n for n in range(1, 40)])
    assert buffer.take(pair.deliveries) == 39
    assert messages(buffer) == [(b"%02d" % n * n)[:5] for n in range(1, 40)]


def test_the_buffer_grows_for_a_message_and_shrinks_again() -> None:
    pair, buffer = Pair(16_384, 8 << 20), ReceiveBuffer(10, 1_000)
    large = bytes(range(256)) * 12_000
    before = len(buffer._memory)
    pair.send(b"x", large)
    assert buffer.take(pair.deliveries) == 2
    assert messages(buffer) == [b"x", large]
    assert len(buffer._memory) > before
    buffer.clear()
    assert len(buffer._memory) == before
    pair.send(large[:7])
    assert buffer.take(pair.deliveries) == 1
    assert messages(buffer) == [large[:7]]


def test_a_message_that_fills_the_buffer_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_buffer, "_SLACK_BYTES", 24)
    for size in (1_023, 1_024, 1_025):
        pair, buffer = Pair(), ReceiveBuffer(10, 1_000)
        pair.send(b"q" * size, b"r")
        assert buffer.take(pair.deliveries) == 1
        assert messages(buffer) == [b"q" * size]
        buffer.clear()
        assert buffer.take(pair.deliveries) == 1


def test_a_message_above_the_limit_is_an_error_after_those_before_it() -> None:
    pair, buffer = Pair(16_384, 2_000_000), ReceiveBuffer(1, 1_000)
    pair.send(b"first", b"x" * 5_000_000)
    assert buffer.take(pair.deliveries) == 1
    buffer.clear()
    with pytest.raises(RemoteProtocolError, match="more than 2000000 bytes"):
        buffer.take(pair.deliveries)


@pytest.mark.parametrize("kept", [None, KEPT])
def test_an_empty_message_is_an_error(kept: int | None) -> None:
    pair, buffer = Pair(kept=kept), ReceiveBuffer(10, 50_000)
    pair.send(b"")
    with pytest.raises(RemoteProtocolError, match="empty message"):
        buffer.take(pair.deliveries)


@pytest.mark.parametrize("step", [1, 7, 100])
def test_arriving_byte_by_byte(step: int) -> None:
    pair, buffer = Pair(), ReceiveBuffer(100, 100_000)
    bodies = [b"%d" % n * n for n in range(1, 40)]
    pair.sender.send("link", *bodies)
    taken = 0

    def push(data: bytes) -> None:
        nonlocal taken
        pair.receiver.push(data)
        taken += buffer.take(pair.deliveries)

    exchange(pair.sender, pair.receiver.written, push, step)
    assert taken == len(bodies)
    assert messages(buffer) == bodies
