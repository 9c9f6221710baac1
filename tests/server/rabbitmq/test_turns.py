"""What one connection has to do, and the others meanwhile: much work is cut into turns, or done beside the loop.

Turns are made as short as can be, or work that is done beside the loop is held until others have been answered: so what
is asserted is an order of events, and never a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from spark_streams.server import turns
from spark_streams.server.rabbit import connection as connections
from tests.real_rabbitmq.by_hand import CREDIT, METADATA, NEXT, PUBLISH, RESPONSE, array, plain, text

FLOOD = 500


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
