"""How a connection reads its socket: all that has come, and what came before the end."""

from __future__ import annotations

from typing import Any

import pytest

from spark_streams.client.amqp import connection
from spark_streams.client.amqp.connection import Connection
from spark_streams.wire.amqp.engine.engine import Engine, Options

MUCH = connection._MUCH_BYTES
Come = int | BaseException | None


class Scripted:
    """A socket from which so many bytes come, one entry a read: None for nothing now, an error is raised."""

    def __init__(self, *come: Come) -> None:
        self.come = list(come)

    def recv_into(self, room: Any) -> int:
        step = self.come.pop(0)
        if step is None:
            raise BlockingIOError
        if isinstance(step, BaseException):
            raise step
        assert step <= len(room)
        return step


def reading(*come: Come, much: bool = False, more: bool = False) -> tuple[Any, Scripted, list[float]]:
    """A connection's reading half; ``more`` is whether more comes within a moment."""
    made, socket, waits = Connection.__new__(Connection), Scripted(*come), []
    made._engine = Engine(Options("", connection.MAX_FRAME_BYTES, 1 << 20), connection._READ_BYTES)
    made._much = much
    made._socket = socket  # type: ignore[assignment]

    def poll(wait_s: float, *, write: bool) -> bool:
        waits.append(wait_s)
        assert not write
        return more

    made._poll = poll  # type: ignore[method-assign]
    return made, socket, waits


@pytest.mark.parametrize(
    ("come", "counts"),
    [
        ((None,), [None]),
        ((0,), [0]),
        ((10, 10), [10, 10]),
        ((16_384, 16_384, None), [32_768]),
        ((16_384, 0, 0), [16_384, 0]),
        ((16_384, 100, 5), [16_484, 5]),
        ((100_000, 100_000, None), [200_000]),
    ],
    ids=["nothing", "the end", "little", "records of TLS", "the end after bytes", "little after much", "much"],
)
def test_what_has_come_is_read(come: tuple[Come, ...], counts: list[int | None]) -> None:
    made, socket, waits = reading(*come)
    assert [made._read() for _ in counts] == counts
    assert not socket.come and not waits


def test_bytes_before_an_error_are_read_first() -> None:
    made, _, _ = reading(16_384, ConnectionResetError(), ConnectionResetError())
    assert made._read() == 16_384
    with pytest.raises(ConnectionResetError):
        made._read()


def test_after_much_it_waits_a_moment_for_more() -> None:
    made, socket, waits = reading(MUCH, None, 10, None, 20, None, None)
    assert made._read() == MUCH
    assert not waits
    made._poll = lambda wait_s, *, write: bool(waits.append(wait_s)) or len(waits) < 2
    assert made._read() == 30
    assert len(waits) == 2 and all(0 <= each <= connection._MOMENT_S for each in waits)
    assert made._read() is None and not socket.come
    assert len(waits) == 2


def test_a_full_room_is_enough() -> None:
    made, socket, _ = reading(MUCH, connection._READ_BYTES + connection.MAX_FRAME_BYTES - MUCH, 5)
    assert made._read() == connection._READ_BYTES + connection.MAX_FRAME_BYTES
    assert socket.come == [5]
