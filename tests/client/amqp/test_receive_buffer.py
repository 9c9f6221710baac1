"""Intake and HeadIntake against a second engine, without sockets: frames, aborts, growth, memory that is used again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from spark_streams.client.amqp import receive_buffer as intakes
from spark_streams.client.amqp.receive_buffer import HeadBuffer, ReceiveBuffer
from spark_streams.errors import RemoteProtocolError


class Pair:
    """A sending and a receiving engine with one link, joined by ``pump``."""

    def __init__(self, max_frame: int = 512) -> None:
        self.engines = []
        for mode in (proton.Transport.SERVER, proton.Transport.CLIENT):
            engine, connection = proton.Transport(mode), proton.Connection()
            engine.max_frame_size = max_frame
            connection.container = "test"
            engine.bind(connection)
            connection.open()
            self.engines.append((engine, connection))
        session = self.engines[1][1].session()
        session.open()
        self.receiver = session.receiver("link")
        self.receiver.snd_settle_mode = proton.Link.SND_SETTLED
        self.receiver.open()
        self.receiver.flow(1_000)
        self.pump()
        (server,) = (self.engines[0][1],)
        server.session_head(0).open()
        self.sender = server.link_head(0)
        self.sender.open()
        self.pump()
        self._tags = 0

    def pump(self, limit: int | None = None) -> None:
        """Move bytes both ways until none are pending, at most ``limit`` in each step."""
        moved = True
        while moved:
            moved = False
            for (source, _), (sink, _) in (self.engines, self.engines[::-1]):
                pending = source.pending()
                count = min(x for x in (pending, sink.capacity(), limit or pending) if x is not None)
                if count > 0:
                    sink.push(bytes(source.peek(count)))
                    source.pop(count)
                    moved = True

    def begin(self, body: bytes) -> Any:
        self._tags += 1
        delivery = self.sender.delivery(str(self._tags))
        self.sender.stream(body)
        return delivery

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            delivery = self.begin(body)
            self.sender.advance()
            delivery.settle()
        self.pump()


def messages(intake: ReceiveBuffer | HeadBuffer) -> list[bytes]:
    block = intake.block()
    return [bytes(block.buffer[a:b]) for a, b in zip(block.starts, block.ends, strict=True)]


def test_messages_lie_back_to_back() -> None:
    pair, intake = Pair(), ReceiveBuffer(100, 10_000, 10_000)
    bodies = [bytes([n]) * (n + 1) for n in range(50)]
    pair.send(*bodies)
    assert intake.take(pair.receiver._impl) == 50
    assert messages(intake) == bodies
    assert messages_from(intake, 48) == bodies[48:]
    assert intake.holds(b"\x07\x07", 0) and not intake.holds(b"\x07", intake.whole_bytes - 10)
    intake.clear()
    assert (intake.rows, intake.received, messages(intake)) == (0, 0, [])


def messages_from(intake: ReceiveBuffer, first: int) -> list[bytes]:
    block = intake.block(first)
    return [bytes(block.buffer[a:b]) for a, b in zip(block.starts, block.ends, strict=True)]


def test_it_stops_at_its_limits_and_goes_on_after_clear() -> None:
    pair, intake = Pair(), ReceiveBuffer(10, 1_000, 10_000)
    bodies = [b"%03d" % n * 40 for n in range(30)]
    pair.send(*bodies)
    seen = []
    while intake.take(pair.receiver._impl):
        assert intake.rows <= 10 and intake.full == (intake.rows == 10 or intake.whole_bytes >= 1_000)
        seen += messages(intake)
        intake.clear()
    assert seen == bodies


@pytest.mark.parametrize("make", [lambda: ReceiveBuffer(10, 50_000, 10_000), lambda: HeadBuffer(10)])
def test_a_message_in_pieces_is_whole_only_with_its_last_frame(make: Callable[[], Any]) -> None:
    pair, intake = Pair(), make()
    pair.send(b"first")
    delivery = pair.begin(b"a" * 3_000)
    pair.pump()
    assert intake.take(pair.receiver._impl) == 1
    assert intake.take(pair.receiver._impl) == 0
    intake.clear()
    pair.sender.stream(b"b" * 3_000)
    pair.pump()
    assert intake.take(pair.receiver._impl) == 0
    pair.sender.advance()
    delivery.settle()
    pair.send(b"last")
    assert intake.take(pair.receiver._impl) == 2
    whole = b"a" * intakes.HEAD_BYTES if isinstance(intake, HeadBuffer) else b"a" * 3_000 + b"b" * 3_000
    assert messages(intake) == [whole, b"last"]


@pytest.mark.parametrize("make", [lambda: ReceiveBuffer(10, 50_000, 10_000), lambda: HeadBuffer(10)])
def test_an_aborted_delivery_leaves_nothing(make: Callable[[], Any]) -> None:
    pair, intake = Pair(), make()
    pair.send(b"first")
    delivery = pair.begin(b"taken back" * 300)
    pair.pump()
    assert intake.take(pair.receiver._impl) == 1
    delivery.abort()
    pair.send(b"second")
    assert intake.take(pair.receiver._impl) == 1
    assert messages(intake) == [b"first", b"second"]


def test_the_buffer_grows_for_a_message_and_shrinks_again() -> None:
    pair, intake = Pair(16_384), ReceiveBuffer(10, 1_000, 8 << 20)
    large = bytes(range(256)) * 12_000
    before = len(intake._memory)
    pair.send(b"x", large)
    assert intake.take(pair.receiver._impl) == 2
    assert messages(intake) == [b"x", large]
    assert len(intake._memory) > before
    intake.clear()
    assert len(intake._memory) == before
    pair.send(large[:7])
    assert intake.take(pair.receiver._impl) == 1
    assert messages(intake) == [large[:7]]


def test_a_message_that_fills_the_buffer_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intakes, "_SLACK_BYTES", 24)
    for size in (1_023, 1_024, 1_025):
        pair, intake = Pair(), ReceiveBuffer(10, 1_000, 10_000)
        pair.send(b"q" * size, b"r")
        assert intake.take(pair.receiver._impl) == 1
        assert messages(intake) == [b"q" * size]
        intake.clear()
        assert intake.take(pair.receiver._impl) == 1


def test_a_message_above_the_limit_is_an_error() -> None:
    pair, intake = Pair(16_384), ReceiveBuffer(10, 1_000, 2_000_000)
    pair.send(b"x" * 5_000_000)
    with pytest.raises(RemoteProtocolError, match="more than 2000000 bytes"):
        intake.take(pair.receiver._impl)


@pytest.mark.parametrize("make", [lambda: ReceiveBuffer(10, 50_000, 10_000), lambda: HeadBuffer(10)])
def test_an_empty_message_is_an_error(make: Callable[[], Any]) -> None:
    pair, intake = Pair(), make()
    pair.send(b"")
    with pytest.raises(RemoteProtocolError, match="empty message"):
        intake.take(pair.receiver._impl)


@pytest.mark.parametrize("step", [1, 7, 100])
def test_arriving_byte_by_byte(step: int) -> None:
    pair, intake = Pair(), ReceiveBuffer(100, 100_000, 100_000)
    bodies = [b"%d" % n * n for n in range(1, 40)]
    for body in bodies:
        delivery = pair.begin(body)
        pair.sender.advance()
        delivery.settle()
    (source, _), (sink, _) = pair.engines
    taken = 0
    while (pending := source.pending()) > 0:
        count = min(pending, step)
        sink.push(bytes(source.peek(count)))
        source.pop(count)
        taken += intake.take(pair.receiver._impl)
    assert taken == len(bodies)
    assert messages(intake) == bodies
