"""What takes long on one link holds up no other: it is done beside the loop, or a little at a time."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Delivery, Described, Message, symbol

from spark_streams.server.amqp.consumer_link import ConsumerLink
from spark_streams.server.amqp.link_position import LinkPosition
from spark_streams.server.amqp.producer_link import ProducerLink
from spark_streams.wire.amqp.engine.session import ranges
from tests.server.amqp.raw_peer import EARLIEST, PARTITION
from tests.server.amqp.raw_words import encode
from tests.server.slow_disk import SlowDisk

GUARD_S = 60.0
"""Only against hanging."""
LARGE = b"L" * 3_000_000


class Held:
    """Reading a large block of messages, which waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    from spark_streams.server.amqp import producer_link

    incoming_steps = producer_link.incoming_steps
    held = Held()

    def read(block: Any, **options: Any) -> Any:
        if len(block.buffer) > len(LARGE):
            held.begun.release()
            assert held.go.acquire(timeout=2 * GUARD_S)
        return incoming_steps(block, **options)

    monkeypatch.setattr(producer_link, "incoming_steps", read)
    yield held
    held.go.release(100)


def sent(node: Any, *bodies: bytes | bytearray, stream: str = "orders") -> tuple[Any, Any, list[Any]]:
    """Messages under way on one link; its peer, the link, the deliveries."""
    peer = node.peer()
    sender = peer.sender(stream)
    deliveries = [sender.put(body) for body in bodies]
    peer.pause(0.001)
    return peer, sender, deliveries


def test_a_large_message_holds_up_no_other_link(node: Any, held: Held) -> None:
    node.log.create_stream("orders")
    peer, _, (large, small) = sent(node, LARGE, b"behind")
    assert held.begun.acquire(timeout=GUARD_S)
    other = node.peer()
    sender = other.sender("orders")
    for number in range(3):
        sender.send(b"%d" % number)
    peer.pause()
    assert not large.settled and not small.settled
    held.go.release()
    peer.pump(lambda: large.settled and small.settled, GUARD_S)
    # What its own link sent after it is stored after it.
    assert [event.body for event in node.receive("orders", 5)] == [b"0", b"1", b"2", LARGE, b"behind"]


def test_a_message_of_many_values_is_read_beside_the_loop(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.server.amqp import producer_link

    threads: list[int] = []
    incoming_steps = producer_link.incoming_steps

    def read(block: Any, **options: Any) -> Iterator[None]:
        steps = incoming_steps(block, **options)
        while True:
            threads.append(threading.get_ident())
            try:
                yield next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    monkeypatch.setattr(producer_link, "incoming_steps", read)
    node.log.create_stream("orders")
    nulls = 500_000
    message = b"\x00\x53\x77\xd0" + struct.pack(">II", nulls + 4, nulls) + b"\x40" * nulls
    peer, _, (delivery,) = sent(node, bytearray(message))
    peer.pump(lambda: delivery.settled, GUARD_S)
    loop, beside = threads[0], threads[-1]
    assert loop != beside and threads.count(loop) < threads.count(beside), "what takes more than a turn is"


@pytest.mark.parametrize("end", ["detach", "close", "hang up"])
def test_what_was_sent_before_a_link_ended_is_stored_all_the_same(node: Any, held: Held, end: str) -> None:
    node.log.create_stream("orders")
    peer, sender, _ = sent(node, LARGE, b"behind")
    assert held.begun.acquire(timeout=GUARD_S)
    if end == "detach":
        sender.close()
        peer.sender("orders").send(b"by another link")
    elif end == "close":
        peer.close()
    else:
        peer.socket.close()
    node.peer().sender("orders").send(b"by another peer")
    held.go.release()
    others = [b"by another link", b"by another peer"] if end == "detach" else [b"by another peer"]
    stored = [event.body for event in node.receive("orders", len(others) + 2)]
    assert stored == [*others, LARGE, b"behind"]


def test_each_large_message_is_acknowledged_in_its_turn(node: Any) -> None:
    node.log.create_stream("orders", 2)
    bodies = [LARGE + b"1", b"2", LARGE + b"3", LARGE + b"4", b"5"]
    peer, _, deliveries = sent(node, *bodies)
    peer.pump(lambda: all(each.settled for each in deliveries), GUARD_S)
    found = [event.body[-1:] for event in node.receive("orders", 5)]
    assert sorted(found) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("settled", [False, True])
def test_no_more_is_taken_than_may_be_under_way_while_the_disk_is_slow(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    most, messages = 2 * len(LARGE), 20
    node = nodes(session_bytes=most)
    node.log.create_stream("orders")
    disk = SlowDisk(monkeypatch, 2 * GUARD_S)
    taken = disk.handed_over
    try:
        peer = node.peer()
        sender = peer.sender("orders")
        deliveries = [sender.put(b"%d" % number + LARGE) for number in range(messages)]
        for delivery in deliveries if settled else ():
            delivery.settle()
        peer.pump(disk.begun.is_set, GUARD_S)
        for _ in range(50):
            peer.pause(0.01)
            node.server.call(lambda: None)
        assert sum(taken) <= most + 2 * len(LARGE)
    finally:
        disk.let_go()
    peer.pump(lambda: len(taken) == messages, GUARD_S)
    if not settled:
        peer.pump(lambda: all(each.settled for each in deliveries), GUARD_S)
    assert [event.body[:2] for event in node.receive("orders", messages)] == [
        (b"%d" % number + LARGE)[:2] for number in range(messages)
    ]


def test_a_message_of_many_frames_is_put_together_once(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_streams.wire.amqp.engine import incoming_deliveries

    made: dict[int, int] = {}
    messages = incoming_deliveries.Messages

    def noted(memory: Any, *places: Any) -> Any:
        if len(memory):
            made[memory.ctypes.data] = len(memory)
        return messages(memory, *places)

    monkeypatch.setattr(incoming_deliveries, "Messages", noted)
    node.log.create_stream("orders")
    body = bytes(range(256)) * 48_000
    peer, _, (delivery,) = sent(node, body)
    peer.pump(lambda: delivery.settled, GUARD_S)
    # When it is whole; with what had come it would be moved again with each frame.
    assert [size > len(body) for size in made.values()] == [True]
    assert node.receive("orders", 1)[0].body == body


def test_a_connection_with_many_links_serves_them_over_several_turns(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.server import turns as of_the_server
    from spark_streams.server.amqp import connection
    from spark_streams.server.amqp.info_link import InfoLink

    turns: list[int] = []
    turn, serve = connection.AmqpConnection._turn, InfoLink.serve

    def counted_turn(self: Any) -> None:
        turns.append(0)
        turn(self)

    def counted(self: Any) -> bool:
        turns[-1] += 1
        return serve(self)

    monkeypatch.setattr(of_the_server, "TURN_S", 0.0)  # every link takes as long
    monkeypatch.setattr(connection.AmqpConnection, "_turn", counted_turn)
    monkeypatch.setattr(InfoLink, "serve", counted)
    node.log.create_stream("orders", 50)
    peer = node.peer()
    receivers = [peer.receiver("orders/$info") for _ in range(30)]
    for receiver in receivers:
        receiver.link.flow(1)
    told = [receiver.take(1, credit=False, timeout_s=GUARD_S)[0].body for receiver in receivers]
    assert all(len(each["partitions"]) == 50 for each in told)
    assert max(turns) == 1


def test_a_filter_that_skips_has_its_turn_by_the_clock_also_while_the_disk_is_slow(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    serve, advance = ConsumerLink.serve, LinkPosition.advance

    def counted_turn(self: Any) -> bool:
        turns.append(0)
        return serve(self)

    def slow(self: Any) -> bool:
        advanced = advance(self)
        if advanced:
            turns[-1] += 1
            time.sleep(0.01)  # more than a turn, and no processor time
        return advanced

    monkeypatch.setattr(ConsumerLink, "serve", counted_turn)
    monkeypatch.setattr(LinkPosition, "advance", slow)
    (partition,) = node.log.create_stream("orders", 1).partitions.values()
    for _ in range(3):
        partition.append([b"\0Su\xb0" + len(LARGE).to_bytes(4, "big") + LARGE])
    node.peer().sender("orders").send(Message(b"last", subject="wanted"))
    wanted = Described(symbol("amqp:sql-filter"), "p.subject = 'wanted'")
    receiver = node.peer().receiver("orders", filter=[EARLIEST, wanted])
    assert [message.body for message in receiver.take(1, timeout_s=GUARD_S)] == [b"last"]
    assert max(turns) == 1


def test_links_of_a_connection_share_a_turn_by_the_clock_while_the_disk_is_slow(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.server.amqp import connection

    turns: list[int] = []
    turn, advance = connection.AmqpConnection._turn, LinkPosition.advance

    def counted_turn(self: Any) -> None:
        turns.append(0)
        turn(self)

    def slow(self: Any) -> bool:
        advanced = advance(self)
        if advanced:
            turns[-1] += 1
            time.sleep(0.01)  # more than a turn, and no processor time
        return advanced

    monkeypatch.setattr(connection.AmqpConnection, "_turn", counted_turn)
    monkeypatch.setattr(LinkPosition, "advance", slow)
    partitions = node.log.create_stream("orders", 8).partitions
    peer = node.peer()
    receivers = [peer.receiver("orders", properties={PARTITION: symbol(name)}) for name in partitions]
    for receiver in receivers:
        receiver.link.flow(1)
    peer.pause(0.001)

    def append() -> None:  # all links are due before one of them is served
        for partition in partitions.values():
            partition.append([b"\0Su\xa0\x01x"])

    node.server.call(append)
    for receiver in receivers:
        assert [message.body for message in receiver.take(1, credit=False, timeout_s=GUARD_S)] == [b"x"]
    assert sum(turns) >= 8 and max(turns) == 1


def test_what_an_information_source_remembers_is_what_is_there(node: Any) -> None:
    node.log.create_stream("orders", 3)
    asked = {"x-opt-positions": {"0": "@earliest", "2": "@latest"}}

    def told(**options: Any) -> list[dict[str, Any]]:
        return [dict(each) for each in node.info("orders", **options)["partitions"]]

    def remaining() -> list[Any]:
        return [each.get("x-opt-remaining") for each in told(properties={symbol(k): v for k, v in asked.items()})]

    assert [each["latest-offset"] for each in told()] == [None] * 3 and remaining() == [0, None, 0]
    partitions = node.log.stream("orders").partitions
    partitions["0"].append([b"a", b"b"])
    assert remaining() == [2, None, 0]
    assert told()[0]["latest-offset"].endswith("01") and told()[1]["latest-offset"] is None
    node.log.split_partition("orders", "1")
    assert [each.get("x-opt-closed") for each in told()] == [None, True, None, None, None]
    assert [each.get("x-opt-starts-after") for each in told()] == [None, None, None, "1", "1"]


@pytest.mark.parametrize("end", ["detach", "hang up"])
def test_what_is_read_frame_by_frame_is_read_in_turns(nodes: Any, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    from spark_streams.server import turns
    from spark_streams.server.amqp.connection import AmqpConnection

    rested = 0
    read_on = AmqpConnection._read_on

    def noted(self: Any) -> None:
        nonlocal rested
        read_on(self)
        rested += self._parts is not None

    monkeypatch.setattr(AmqpConnection, "_read_on", noted)
    monkeypatch.setattr(turns, "TURN_S", -1.0)
    node = nodes(max_frame_bytes=512)
    node.log.create_stream("orders")
    bodies = [b"%d" % number * 60_000 for number in range(8)]
    peer, sender, _ = sent(node, *bodies)
    if end == "detach":
        sender.link.close()
        peer.pump(lambda: sender.closed, GUARD_S)
    else:
        peer.socket.shutdown(socket.SHUT_WR)
    # All of it, in its order: what came before the end is dealt with.
    assert [event.body for event in node.receive("orders", 8)] == bodies
    assert rested > 5


def test_events_that_came_together_are_accepted_together(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[list[tuple[int, int]]] = []
    accept = ProducerLink._accept

    def counted(link: ProducerLink, ids: Any) -> None:
        accepted.append(ranges(ids))
        accept(link, ids)

    monkeypatch.setattr(ProducerLink, "_accept", counted)
    node.create("orders", 4)
    peer = node.peer()
    sender = peer.sender("orders")
    peer.pump(lambda: sender.link.credit >= 200)
    deliveries = []
    for number in range(200):  # in turn to the four partitions, and all in one write
        deliveries.append(sender.link.delivery(f"tag-{number}"))
        sender.link.stream(encode(b"%d" % number))
        sender.link.advance()
    peer.pump(lambda: all(delivery.settled for delivery in deliveries))
    assert {delivery.remote_state for delivery in deliveries} == {Delivery.ACCEPTED}
    # The bytes may have come in a few pieces; each is told in one run, not in one for each event.
    assert sum(map(len, accepted)) <= 20
    assert sorted(event.body for event in node.receive("orders", 200)) == sorted(b"%d" % n for n in range(200))
