"""The AMQP door: listens, and attaches the links of its connections to a node."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection

from spark_streams.log import ReferenceLog
from spark_streams.server.admission import Sockets
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.connection import AmqpConnection
from spark_streams.server.amqp.node import Node
from spark_streams.server.door import TcpDoor


class AmqpDoor(TcpDoor):
    """The AMQP door.

    Args:
        config: its settings.

    Attributes:
        node: the node that links are attached to; None while the door is not open.
    """

    config: AmqpConfig

    def __init__(self, config: AmqpConfig) -> None:
        super().__init__(config)
        self.node: Node | None = None
        self._connections: set[AmqpConnection] = set()
        self._container = f"spark-streams-{uuid.uuid4().hex}"

    @property
    def connections(self) -> Collection[AmqpConnection]:
        """The open connections. Call it on the server's loop."""
        return self._connections

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``."""
        node = self.node = Node(log, self.config, asyncio.get_running_loop())
        await self.listen(
            sockets, lambda admission: AmqpConnection(node, self._connections, self._container, admission)
        )

    async def close(self) -> None:
        """Send a close frame to each peer, and write the state of the termini."""
        await self.end_connections()
        node, self.node = self.node, None
        if node is not None:
            node.close()

    def renegotiate(self, stream: str, group: str) -> int:
        """Gracefully close all receivers of a consumer group, so that its partitions are distributed again.

        Returns:
            How many links were closed.

        Raises:
            UnknownStream: there is no such stream.

        Spec: Event Stream Extensions §4.5.1 (ES-107, ES-207). Call it on the server's loop.
        """
        return self.node.renegotiate(stream, group) if self.node is not None else 0
