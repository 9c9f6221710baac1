"""Runs the FeedAPI door's HTTP server: uvicorn on the server's loop and a bound socket, without signals and logging."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import Scope

from spark_streams.server.admission import BACKLOG, AdmissionControl
from spark_streams.server.feed.application import FeedDoor
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.http_connection import HttpConnection
from spark_streams.server.write_timeout import throw_away_unsent


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket.

    Raises:
        OSError: the address cannot be resolved, or is taken.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


END_S = 1
"""How long clients may take to read the last line, in seconds."""


class _Guest(uvicorn.Server):
    """A server that does not handle signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """The door's HTTP server.

    Args:
        door: the application.
        listener: a bound socket, which the server owns from now on.
        control: the admission control, which admits connections with TLS or without.
        config: the door's settings.
    """

    def __init__(self, door: FeedDoor, listener: socket.socket, control: AdmissionControl, config: FeedConfig) -> None:
        def connection(**options: Any) -> asyncio.Protocol:
            return control.protocol(lambda peer: HttpConnection(peer, config, **options))

        settings = uvicorn.Config(
            door.application,
            http=cast(type[asyncio.Protocol], connection),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=config.max_head_bytes,
            timeout_keep_alive=config.idle_timeout_ms // 1000 + 1,  # the door's own timeout comes first, and is exact
            timeout_graceful_shutdown=2 * END_S,
        )
        settings.load()
        door.drop = self._drop
        self._door = door
        self._listener = listener
        self._server = _Guest(settings)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the system refused.
        """
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError("the HTTP server has ended before it listened")
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Stop: open responses get their last line, and clients that do not read it are dropped."""
        self._door.shut_down()
        if self._task is None:
            self._listener.close()
            return
        self._server.should_exit = True
        # uvicorn would look ten times a second whether it is to end, and again whether connections have.
        for server in self._server.servers:
            server.close()
        await asyncio.sleep(0)
        await asyncio.wait({self._task}, timeout=END_S)
        for connection in list(self._server.server_state.connections):
            _abort(connection)
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        self._door.close()

    def _drop(self, scope: Scope) -> None:
        for connection in list(self._server.server_state.connections):
            if scope.get("client") and getattr(connection, "client", None) == scope["client"]:
                _abort(connection)


def _abort(connection: object) -> None:
    transport = getattr(connection, "transport", None)
    if isinstance(transport, asyncio.Transport):
        throw_away_unsent(transport)
        transport.abort()
