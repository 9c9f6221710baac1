"""One HTTP connection of the door, on a transport whose peer does not read."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from uvicorn.server import ServerState

from spark_streams.log import ReferenceLog
from spark_streams.server.counters import DoorCounters
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.http import connection as connection_module
from spark_streams.server.http.connection import HttpConnection, uvicorn_config
from spark_streams.server.thread import ServerThread
from tests.certificate_authority import Authority


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


@pytest.mark.parametrize("secured", [False, True])
def test_what_may_be_tiny_chunks_is_received_a_little_at_a_time_and_a_plain_body_is_not(
    secured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    take = HttpConnection.data_received

    def taken(connection: HttpConnection, data: bytes) -> None:
        received.append(len(data))
        take(connection, data)

    monkeypatch.setattr(HttpConnection, "data_received", taken)
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    files = {"tls_cert": certificate, "tls_key": key} if secured else {}
    line = b"POST /calm HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n\n\r\n" * 60_000 + b"0\r\n\r\n"
    plain = b"Content-Length: 1000000\r\n\r\n" + b"\n" * 1_000_000
    with ReferenceLog() as log, ServerThread(log, FeedConfig(port=0, **files)) as server:
        log.create_stream("calm")
        where = urlsplit(server.server.urls["feedapi"])
        peer = socket.create_connection((where.hostname, where.port or 0), timeout=60)
        if secured:
            context = ssl.create_default_context(cafile=authority.file)
            peer = context.wrap_socket(peer, server_hostname=where.hostname)
        with peer:
            for body, least, most in ((chunks, 0, 4 << 10), (plain, 20 << 10, 64 << 10), (chunks, 0, 4 << 10)):
                received.clear()
                peer.sendall(line + body)
                answer = b""
                while not answer.endswith(b'{"appended":0,"repeated":0}'):
                    answer += peer.recv(1_000)
                # A record of TLS, of 16 KiB, is handed over whole.
                assert least < max(received) <= most + (16 << 10) * secured
