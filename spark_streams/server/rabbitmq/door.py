"""The RabbitMQ streams door: listens, and connects clients to a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from spark_streams.log import ReferenceLog
from spark_streams.server.activity import Item, StoredOffset
from spark_streams.server.admission import Sockets
from spark_streams.server.door import TcpDoor
from spark_streams.server.rabbitmq.activity import connected, stored
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.rabbitmq.connection import RabbitConnection
from spark_streams.server.rabbitmq.node import RabbitNode


class RabbitDoor(TcpDoor):
    """The RabbitMQ streams door.

    Args:
        config: its settings.

    Attributes:
        node: the node that its connections share; None while the door is not open.
    """

    config: RabbitConfig
    node: RabbitNode | None

    def __init__(self, config: RabbitConfig) -> None:
        super().__init__(config)
        # Without TLS a connection writes past its transport, with a second descriptor.
        self.descriptors = 2 if config.tls_cert is None else 1

    def activity(self) -> Iterator[Item]:
        """Yield what is connected; see ``server/activity.py``."""
        return iter(()) if self.node is None else connected(self.name, self.node)

    def stored(self) -> Iterator[StoredOffset]:
        """Yield what the log keeps of consumers; see ``server/activity.py``."""
        return iter(()) if self.node is None else stored(self.name, self.node.log)

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``."""
        node = self.node = RabbitNode(log, self.config, asyncio.get_running_loop(), self.counters)
        await self.listen(sockets, lambda admission: RabbitConnection(node, admission))
