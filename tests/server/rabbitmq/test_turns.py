"""What one connection has to do, and the others meanwhile: much work is cut into turns, or done beside the loop.

Turns are made as short as can be, or work that is done beside the loop is held until others have been answered: so what
is asserted is an order of events, and never a time.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.log.state import StateStore
from spark_streams.server import turns
from spark_streams.server.rabbit import connection as connections
from spark_streams.server.rabbit import stored_offsets
from spark_streams.server.rabbit.stored_offsets import MAX_WAITING
from tests.real_rabbitmq.by_hand import (
    CREDIT,
    METADATA,
    NEXT,
    PUBLISH,
    QUERY_OFFSET,
    RESPONSE,
    STORE_OFFSET,
    array,
    plain,
    text,
)

FLOOD = 500
GUARD_S = 60.0
"""Only against hanging."""


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


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


def gone(door: Any, connections: int) -> None:
    """Return when the door has only so many connections left."""
    while door.server.call(lambda: len(door.server.server.rabbit_connections)) > connections:
        pass


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
    while 0 not in most:
        good.stats(kept)
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
    door.server.call(door.server.server._rabbit_node.offsets.write)
    assert written == [MAX_WAITING, MAX_WAITING, 500]
