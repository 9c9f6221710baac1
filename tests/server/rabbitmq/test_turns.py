"""What one connection has to do, and the others meanwhile: much work is cut into turns, or done beside the loop.

Turns are made as short as can be, or work that is done beside the loop is held until others have been answered: so what
is asserted is an order of events, and never a time.
"""

from __future__ import annotations

import gzip
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.log.state_store import StateStore
from spark_streams.server import door as tcp_door
from spark_streams.server import turns
from spark_streams.server.rabbitmq import connection as connections
from spark_streams.server.rabbitmq import dispatch, publish_parts, stored_offsets
from spark_streams.server.rabbitmq.node import RabbitNode
from spark_streams.server.rabbitmq.stored_offsets import MAX_WAITING
from spark_streams.server.rabbitmq.subscription import Subscription
from spark_streams.wire.rabbitmq import fields
from tests.real_rabbitmq.by_hand import (
    CLOSE,
    CREATE,
    CREATE_SUPER_STREAM,
    CREDIT,
    DELETE_SUPER_STREAM,
    FIRST,
    METADATA,
    METADATA_UPDATE,
    NEXT,
    PUBLISH,
    QUERY_OFFSET,
    RESPONSE,
    STORE_OFFSET,
    array,
    data,
    filtered,
    pairs,
    plain,
    sub_batch,
    text,
)
from tests.server.rabbitmq.beside import GUARD_S, frame, gone, until
from tests.server.slow_disk import SlowDisk

FLOOD = 500


class Taken:
    """The frames that the door looks at, in their order, as connection and key.

    Args:
        then: done at the first one, on the loop.
    """

    def __init__(self) -> None:
        self.then: Callable[[Any], None] | None = None
        self.order: list[tuple[Any, int]] = []

    def note(self, connection: Any, key: int) -> None:
        self.order.append((connection, key))
        then, self.then = self.then, None
        if then is not None:
            then(connection)

    def from_now_on(self, then: Callable[[Any], None]) -> None:
        self.order.clear()
        self.then = then

    @property
    def keys(self) -> list[int]:
        return [key for _, key in self.order]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    """What the door looks at, of which it may do one thing in each turn."""
    found = Taken()
    take = connections.RabbitConnection._take

    def noted(connection: Any, frame: Any) -> None:
        found.note(connection, frame.key)
        take(connection, frame)

    monkeypatch.setattr(connections.RabbitConnection, "_take", noted)
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    return found


@pytest.mark.parametrize("subscription", [1, 99])
def test_a_flood_of_credit_leaves_others_their_turn(door: Any, taken: Taken, subscription: int) -> None:
    stream, bad, good = door.stream(), door.peer(), door.peer()
    assert bad.subscribe(1, stream, NEXT) == 1
    question = struct.pack(">I", 77) + array([text(stream)])
    taken.from_now_on(lambda connection: good.send(METADATA, question))
    bad.socket.sendall(frame(CREDIT, bytes([subscription]) + b"\0\1") * FLOOD + frame(METADATA, question))
    assert good.read().correlation == 77
    bad.expect(METADATA | RESPONSE)
    assert len(taken.order) == FLOOD + 2
    assert taken.keys.index(METADATA) < 10


def test_a_filter_that_matches_nothing_leaves_others_their_turn(
    door: Any, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, bad, good = door.stream(), door.peer(), door.peer()
    assert bad.declare(1, stream) == 1
    for number in range(20):
        bad.publish(1, [filtered(number, f"value {number}", b"x")], version=2)
        assert bad.confirmed(1) == [number]
    delivered: list[int] = []
    deliver = Subscription.deliver

    def noted(subscription: Subscription, budget: int, turn: turns.Turn) -> tuple[int, bool]:
        delivered.append(len(taken.order))
        return deliver(subscription, budget, turn)

    monkeypatch.setattr(Subscription, "deliver", noted)
    question = struct.pack(">I", 77) + array([text(stream)])
    taken.from_now_on(lambda connection: good.send(METADATA, question))
    assert bad.subscribe(1, stream, FIRST, properties={"filter.0": "no such value, for sure"}) == 1
    assert good.read().correlation == 77
    bad.ask(METADATA, array([text(stream)]))
    assert len(delivered) > 20, "a look at a stored batch is a turn"
    assert delivered.count(1) < 10 and delivered.count(2) > 10, "the second frame was looked at in between"


def test_filter_values_of_a_subscription_are_limited(doors: Any) -> None:
    door = doors(max_filter_values=3)
    stream, peer = door.stream(), door.peer()
    values = {f"filter.{number}": str(number) for number in range(4)}
    assert peer.subscribe(1, stream, FIRST, properties=values) == 0x11
    del values["filter.3"]
    assert peer.subscribe(1, stream, FIRST, properties=values) == 1


def test_what_came_before_a_connection_was_lost_is_stored_however_many_turns_that_takes(
    door: Any, taken: Taken
) -> None:
    stream, bad = door.stream(), door.peer()
    assert bad.declare(1, stream) == 1
    taken.from_now_on(lambda connection: connection._transport.abort())
    bad.socket.sendall(b"".join(frame(PUBLISH, b"\1" + array([plain(n, b"%d" % n)])) for n in range(FLOOD)))
    with pytest.raises((EOFError, OSError)):
        bad.read()
    gone(door, connections=0)
    # What was read with the first frame; that is not necessarily all that was on its way.
    assert 1 < len(taken.order) == door.partition(stream).next_offset


def create_super(partitions: list[str]) -> bytes:
    keys = [str(number) for number in range(len(partitions))]
    return text("made") + array([text(each) for each in partitions]) + array([text(each) for each in keys]) + pairs({})


def codes(answer: Any) -> list[tuple[str, int]]:
    """The names and codes of a Metadata answer."""
    body = answer.body
    (brokers,) = struct.unpack_from(">I", body)
    at = 4
    for _ in range(brokers):
        at += 2
        at += 2 + struct.unpack_from(">H", body, at)[0] + 4
    (count,) = struct.unpack_from(">I", body, at)
    at += 4
    found = []
    for _ in range(count):
        (size,) = struct.unpack_from(">H", body, at)
        name = body[at + 2 : at + 2 + size].decode()
        at += 2 + size
        found.append((name, struct.unpack_from(">H", body, at)[0]))
        at += 8
    assert at == len(body)
    return found


MANY = 10_000


def test_metadata_of_very_many_names_are_found_beside_the_loop(door: Any, hold: Any) -> None:
    stream, bad, good = door.stream(), door.peer(), door.peer()
    names = [f"n{number}" for number in range(MANY)]
    names[MANY // 2] = stream
    held = hold(fields._Text, "read")
    bad.send(METADATA, struct.pack(">I", 5) + array([text(name) for name in names]))
    held.reached()
    assert door.server.call(lambda: "the loop is free") == "the loop is free"
    held.let_go()
    assert codes(bad.expect(METADATA | RESPONSE)) == [(name, 1 if name == stream else 2) for name in names]
    assert good.stats(stream)[0] == 1


@pytest.mark.parametrize("broken", [b"\0", b"\0\1\xff", b"\x7f\xff"])
def test_metadata_of_very_many_names_that_end_badly_are_an_unknown_frame(door: Any, broken: bytes) -> None:
    peer = door.peer()
    names = [text(f"n{number}") for number in range(MANY)]
    more = 0 if broken == b"\0" else 1
    peer.send(METADATA, struct.pack(">II", 5, len(names) + more) + b"".join(names) + broken)
    assert peer.expect(CLOSE).body[:2] == b"\0\x0d"


def test_metadata_that_name_no_stream_are_answered_with_all(door: Any) -> None:
    made = {door.stream(str(number)) for number in range(3)}
    assert set(codes(door.peer().ask(METADATA, array([])))) == {(name, 1) for name in made}


def test_a_super_stream_is_made_and_removed_beside_the_loop(door: Any, hold: Any) -> None:
    stream, bad, good = door.stream(), door.peer(), door.peer()
    partitions = ["made-0", "another"]
    making = hold(type(door.log), "create_stream")
    bad.send(CREATE_SUPER_STREAM, struct.pack(">I", 7) + create_super(partitions))
    making.reached()
    asked = array([text(name) for name in (stream, *partitions)])
    assert codes(good.ask(METADATA, asked)) == [(stream, 1), ("made-0", 2), ("another", 2)]
    making.let_go()
    assert bad.expect(CREATE_SUPER_STREAM | RESPONSE).code == 1
    assert codes(good.ask(METADATA, asked)) == [(stream, 1), ("made-0", 1), ("another", 1)]
    assert good.declare(1, "another") == 1
    removing = hold(type(door.log), "delete_stream")
    bad.send(DELETE_SUPER_STREAM, struct.pack(">I", 8) + text("made"))
    removing.reached()
    assert good.stats(stream)[0] == 1
    removing.let_go()
    assert bad.expect(DELETE_SUPER_STREAM | RESPONSE).code == 1
    with pytest.raises(EOFError, match="not available"):
        good.expect(METADATA_UPDATE | RESPONSE)
    assert codes(good.ask(METADATA, asked)) == [(stream, 1), ("made-0", 2), ("another", 2)]


def test_a_super_stream_that_is_being_made_is_found_by_no_other_names(door: Any, hold: Any) -> None:
    bad, good = door.peer(), door.peer()
    noting = hold(StateStore, "put")
    bad.send(CREATE_SUPER_STREAM, struct.pack(">I", 7) + create_super(["a", "b"]))
    noting.reached()
    asked = array([text(name) for name in ("made-0", "made-1", "made", "a")])
    assert [code for _, code in codes(good.ask(METADATA, asked))] == [2, 2, 2, 2]
    assert codes(good.ask(METADATA, array([]))) == []
    noting.let_go()
    assert bad.expect(CREATE_SUPER_STREAM | RESPONSE).code == 1
    assert [code for _, code in codes(good.ask(METADATA, asked))] == [2, 2, 2, 1]


def test_changes_of_streams_are_made_one_after_the_other(door: Any, hold: Any) -> None:
    first, second = door.peer(), door.peer()
    making = hold(type(door.log), "create_stream")
    first.send(CREATE_SUPER_STREAM, struct.pack(">I", 7) + create_super(["a", "b"]))
    making.reached()
    second.send(CREATE, struct.pack(">I", 7) + text("a") + pairs({}))
    second.send(DELETE_SUPER_STREAM, struct.pack(">I", 8) + text("made"))
    making.let_go()
    assert first.expect(CREATE_SUPER_STREAM | RESPONSE).code == 1
    assert second.expect(CREATE | RESPONSE).code == 5, "there is such a partition by then"
    assert second.expect(DELETE_SUPER_STREAM | RESPONSE).code == 1


def test_only_a_deletion_looks_for_streams_that_are_gone(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[RabbitNode] = []
    monkeypatch.setattr(tcp_door, "FOLLOW_INTERVAL_S", GUARD_S)
    monkeypatch.setattr(RabbitNode, "follow", lambda node: looked.append(node))
    peer = door.peer()
    assert peer.create("one") == 1
    assert peer.ask(CREATE_SUPER_STREAM, create_super(["a", "b"])).code == 1
    door.taken_in()
    assert looked == []
    assert peer.delete("one") == 1
    door.taken_in()
    assert len(looked) == 1


def test_a_super_stream_is_made_whole_when_who_wanted_it_has_gone(door: Any, hold: Any) -> None:
    bad, good = door.peer(), door.peer()
    making = hold(type(door.log), "create_stream")
    bad.send(CREATE_SUPER_STREAM, struct.pack(">I", 7) + create_super(["a", "b"]))
    making.reached()
    door.server.call(
        lambda: [c.fail(1, "gone") for c in door.server.server.door("rabbitmq-stream").connections if c._work]
    )
    assert bad.expect(CLOSE).body[:2] == b"\0\1"
    making.let_go()
    asked = array([text("a"), text("b")])
    until(lambda: codes(good.ask(METADATA, asked)) == [("a", 1), ("b", 1)])
    assert good.declare(1, "b") == 1


def test_stored_offsets_of_a_deleted_stream_are_removed_beside_the_loop(
    door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, kept, bad, good = door.stream(), door.stream("kept"), door.peer(), door.peer()
    offsets = range(2 * MAX_WAITING + 500)
    for name in (stream, kept):
        bad.socket.sendall(
            b"".join(frame(STORE_OFFSET, text(f"r{n}") + text(name) + struct.pack(">Q", n)) for n in offsets)
        )
        assert bad.ask(QUERY_OFFSET, text("r7") + text(name)).body == struct.pack(">HQ", 1, 7)
    held, delete_some = threading.Event(), StateStore.delete_some
    most: list[int] = []

    def once_let_go(state: StateStore, namespace: str, prefix: str, count: int) -> int:
        assert held.wait(GUARD_S)
        most.append(delete_some(state, namespace, prefix, count))
        return most[-1]

    monkeypatch.setattr(StateStore, "delete_some", once_let_go)
    assert bad.delete(stream) == 1
    assert good.stats(kept)[0] == 1, "while nothing is removed yet"
    held.set()
    until(lambda: good.stats(kept)[0] == 1 and 0 in most)
    assert max(most) <= MAX_WAITING and sum(most) == len(offsets)
    assert bad.ask(QUERY_OFFSET, text("r7") + text(kept)).body == struct.pack(">HQ", 1, 7)


def test_many_stored_offsets_are_written_together(door: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, bad = door.stream(), door.peer()
    written: list[int] = []
    put_all = StateStore.put_all

    def noted(state: StateStore, namespace: str, values: dict[str, bytes]) -> None:
        written.append(len(values))
        put_all(state, namespace, values)

    monkeypatch.setattr(StateStore, "put_all", noted)
    monkeypatch.setattr(stored_offsets, "WRITE_INTERVAL_S", GUARD_S)
    flood = (frame(STORE_OFFSET, text(f"r{n}") + text(stream) + struct.pack(">Q", n)) for n in range(2_500))
    bad.socket.sendall(b"".join(flood))
    bad.barrier(stream)
    assert written == [MAX_WAITING, MAX_WAITING]
    door.server.call(door.server.server.door("rabbitmq-stream").node.offsets.write)
    assert written == [MAX_WAITING, MAX_WAITING, 500]


def test_small_frames_of_two_connections_are_stored_once_whoever_has_a_turn(door: Any, taken: Taken) -> None:
    stream, first, second = door.stream(), door.peer(), door.peer()
    for peer in (first, second):
        assert peer.declare(1, stream, "ref") == 1
    every = b"".join(frame(PUBLISH, b"\1" + array([plain(n, b"x")])) for n in range(1, FLOOD + 1))
    taken.from_now_on(lambda connection: second.socket.sendall(every))
    first.socket.sendall(every)
    for peer in (first, second):
        assert peer.confirmed(FLOOD) == list(range(1, FLOOD + 1))
    assert door.partition(stream).next_offset == FLOOD


def test_who_publishes_what_inflates_to_much_holds_up_nobody_whose_frames_do_not(
    door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_steps, begun, go, size = publish_parts.stored_steps, threading.Event(), threading.Event(), 100_000

    def held(buffer: Any, starts: Any, ends: Any) -> Any:
        """Take as many turns as the other one needs, as a message of millions of values does."""
        while ends[-1] - starts[0] == size and not go.is_set():
            begun.set()
            yield
        return (yield from stored_steps(buffer, starts, ends))

    monkeypatch.setattr(publish_parts, "stored_steps", held)
    stream, hostile, other = door.stream(), door.peer(), door.peer()
    for peer in (hostile, other):
        assert peer.declare(1, stream) == 1
    inflated = data(b"x" * size)
    hostile.publish(1, [sub_batch(1, 1, 1, len(inflated), gzip.compress(inflated))])
    assert begun.wait(GUARD_S)
    for number in range(3):
        other.publish(1, [plain(number, b"y" * 64_000)])
        assert other.confirmed(1) == [number]
    assert door.partition(stream).next_offset == 3
    go.set()
    assert hostile.confirmed(1) == [1]


def test_no_more_is_held_in_small_frames_than_large_ones_hold(
    doors: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of messages that wait for the disk their number alone says little: 50,000 may have as many times 16 KB."""
    from spark_streams.log import LogConfig

    door = doors(log_config=LogConfig(fsync="always"))
    stream, peer = door.stream(), door.peer()
    assert peer.declare(1, stream) == 1
    disk = SlowDisk(monkeypatch, 2 * GUARD_S)
    held = disk.handed_over
    count = 3_000
    flood = threading.Thread(
        target=lambda: [peer.publish(1, [plain(number, b"x" * 15_000)]) for number in range(count)], daemon=True
    )
    flood.start()
    try:
        assert disk.begun.wait(GUARD_S)
        before = -1
        while before != sum(held):  # until no more comes
            before = sum(held)
            flood.join(0.3)
            door.taken_in()
        assert before < 20 << 20
    finally:
        disk.let_go()
    assert sorted(peer.confirmed(count)) == list(range(count))
    flood.join(GUARD_S)


def test_what_comes_behind_a_broken_frame_is_not_looked_at_when_the_connection_is_lost_either(
    door: Any, hold: Any
) -> None:
    peer = door.peer()
    reading = hold(dispatch, "decode")
    peer.socket.sendall(frame(CREATE, b"\xff" * 20_000))
    peer.send(CREATE, struct.pack(">I", 7) + text("behind") + pairs({}))
    reading.reached()
    (connection,) = door.server.server.door("rabbitmq-stream").connections
    door.server.call(lambda: connection._transport.abort())  # as when a heartbeat cannot be written
    until(lambda: connection._transport is None)
    reading.let_go()
    gone(door, 0)
    assert door.peer().create("other") == 1  # one change after the other
    assert door.log.find("behind") is None
