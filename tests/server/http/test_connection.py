"""One HTTP connection of the door, on a transport whose peer does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn.server import ServerState

from spark_streams.server.counters import DoorCounters
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.http import connection as connection_module
from spark_streams.server.http.connection import HttpConnection, uvicorn_config


class FullTransport(asyncio.Transport):
    """A transport that keeps what is written: after ``close`` it is lost only when it is aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = False
        self.aborted = asyncio.Event()

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted.set()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Admitted:
    """An admission."""

    on_late: Callable[[], None] | None = None
    counters = DoorCounters()

    def establish(self) -> bool:
        return True

    def end(self) -> None:
        pass


def connected(application: Any, limits: FeedConfig) -> tuple[HttpConnection, FullTransport]:
    connection = HttpConnection(Admitted(), limits, uvicorn_config(application, limits), ServerState())  # type: ignore[arg-type]
    transport = FullTransport()
    connection.connection_made(transport)
    return connection, transport


def test_a_peer_that_does_not_read_the_answer_to_a_head_too_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unused(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("a request came")

    async def run() -> None:
        connection, transport = connected(unused, FeedConfig(max_head_bytes=1_000))
        connection.data_received(b"GET /" + b"a" * 100_000)
        assert transport.is_closing()
        await asyncio.wait_for(transport.aborted.wait(), 60)

    monkeypatch.setattr(connection_module, "LINGER_MS", 1)
    asyncio.run(run())


def test_a_response_ends_when_its_peer_sends_bytes_that_are_no_request() -> None:
    """The connection is open until the peer has read what was sent, which it need never do."""
    gone: list[bool] = []

    async def run() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def application(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            gone.append(scope["state"]["connection"].gone)
            begun.set()
            await ended.wait()
            gone.append(scope["state"]["connection"].gone)

        connection, transport = connected(application, FeedConfig())
        connection.data_received(b"POST /s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.wait_for(begun.wait(), 60)
        connection.data_received(b"no chunk\r\n")
        assert transport.is_closing() and not transport.aborted.is_set()
        ended.set()
        await asyncio.wait(connection.server_state.tasks, timeout=60)

    asyncio.run(run())
    assert gone == [False, True]


@pytest.mark.parametrize("step", [1, 1_000])
@pytest.mark.parametrize(
    ("sent", "is_request"),
    [
        (b"AMQP\x03\x01\x00\x00", False),
        (b"\x00\x00\x00\x24\x00\x11\x00\x01", False),
        (b"\x16\x03\x01\x02\x00\x01", False),
        (b'"SSH', False),
        (b"GET", True),
        (b"GET /orders HTTP", True),
        (b"A.METHOD-OF-ONES'OWN /\x80", True),
    ],
)
def test_the_first_bytes_of_another_protocol_are_answered_at_once(sent: bytes, is_request: bool, step: int) -> None:
    """Its client waits for an answer, and would wait as long as a head may take."""

    async def unused(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("a request came")

    async def run() -> None:
        connection, transport = connected(unused, FeedConfig())
        written: list[bytes] = []
        transport.write = written.append  # type: ignore[method-assign]
        for start in range(0, len(sent), step):
            connection.data_received(sent[start : start + step])
        assert transport.is_closing() != is_request
        assert b"".join(written).startswith(b"" if is_request else b"HTTP/1.1 400 Bad Request\r\n")
        assert bool(written) != is_request

    asyncio.run(run())
