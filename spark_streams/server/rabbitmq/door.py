"""The RabbitMQ streams door: listens, connects clients to a node, and describes them.

A consumer's name is the name under which its offsets are stored: the consumers with one name on a stream are a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from spark_streams.log import ReferenceLog
from spark_streams.server.activity import StoredOffset
from spark_streams.server.admission import Sockets
from spark_streams.server.door import TcpDoor
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.rabbitmq.connection import RabbitConnection
from spark_streams.server.rabbitmq.node import RabbitNode
from spark_streams.server.rabbitmq.stored_offsets import stored_in


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

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``."""
        node = self.node = RabbitNode(log, self.config, asyncio.get_running_loop(), self.counters)
        await self.listen(sockets, lambda admission: RabbitConnection(node, admission))

    def stored(self) -> Iterator[StoredOffset]:
        """Yield the stored offsets, after which consumers continue; see ``server/activity.py``."""
        if self.node is None:
            return
        log = self.node.log
        names = {stream.incarnation: stream.name for stream in log.streams()}
        for incarnation, partition, reference, offset, user in stored_in(log):
            if incarnation in names:
                at = (names[incarnation], partition, offset + 1)
                yield StoredOffset(self.name, user, *at, reference, "", None, "stored offset")
