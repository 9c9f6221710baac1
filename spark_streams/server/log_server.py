"""The server of a reference log: its doors, on one asyncio loop."""

from __future__ import annotations

import asyncio
import uuid

from spark_streams.log import ReferenceLog
from spark_streams.server.config import AmqpConfig
from spark_streams.server.connection import AmqpConnection
from spark_streams.server.node import Node
from spark_streams.server.tls import server_context

__all__ = ["LogServer"]

STOP_TIMEOUT_S = 2.0
"""How long peers may take to read what they are told at the end."""


class LogServer:
    """Serves a log.

    Args:
        log: the log; it stays open when the server stops.
        amqp: settings of the AMQP door; None leaves it shut.

    Attributes:
        urls: door to where it listens, without credentials; filled by ``start``.

    """

    def __init__(self, log: ReferenceLog, amqp: AmqpConfig | None) -> None:
        self.log = log
        self.urls: dict[str, str] = {}
        self._amqp = amqp
        self._node: Node | None = None
        self._listener: asyncio.Server | None = None
        self._connections: set[AmqpConnection] = set()
        self._container = f"spark-streams-{uuid.uuid4().hex}"

    async def start(self) -> None:
        """Open the doors.

        Raises:
            OSError: a port is taken, or a TLS file cannot be read. Nothing listens then.

        """
        if self._amqp is None:
            return
        loop = asyncio.get_running_loop()
        config = self._amqp
        context = server_context(config)
        node = Node(self.log, config, loop)
        self._listener = await loop.create_server(
            lambda: AmqpConnection(node, self._connections, self._container), config.host, config.port, ssl=context
        )
        self._node = node
        port = self._listener.sockets[0].getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.urls["amqp"] = f"{'amqp' if context is None else 'amqps'}://{host}:{port}"

    async def stop(self) -> None:
        """Close the doors: no new connections, a close frame to each peer, durable state written down."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.shut_down()
        deadline = asyncio.get_running_loop().time() + STOP_TIMEOUT_S
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.drop()
        if self._connections:
            await asyncio.sleep(0)
        if self._node is not None:
            self._node.close()
            self._node = None
        self.urls.clear()

    def renegotiate(self, stream: str, group: str) -> int:
        """Gracefully close all receivers of a consumer group, for its partitions to be distributed anew.

        Returns:
            How many links were closed.

        Raises:
            UnknownStream: there is no such stream.

        Spec: Event Stream Extensions §4.5.1 (ES-107, ES-207). To be called on the server's loop.

        """
        return self._node.renegotiate(stream, group) if self._node is not None else 0
