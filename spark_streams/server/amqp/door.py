"""The AMQP door: listens, and attaches the links of its connections to a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from spark_streams.log import ReferenceLog
from spark_streams.server.activity import StoredOffset
from spark_streams.server.admission import Sockets
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.connection import AmqpConnection
from spark_streams.server.amqp.consumer_groups import epochs_in
from spark_streams.server.amqp.durable_termini import kept_in
from spark_streams.server.amqp.handshake import Handshake
from spark_streams.server.amqp.node import Node
from spark_streams.server.door import TcpDoor
from spark_streams.wire.amqp.engine.engine import Options
from spark_streams.wire.amqp.event_streams import CAPABILITY, SQL_CAPABILITY


class NodeConnection(AmqpConnection):
    """One connection of the AMQP door."""

    config: AmqpConfig

    def _shake_hands(self, certificate: Mapping[str, Any] | None) -> Handshake:
        anonymous = self.config.allow_anonymous
        mechanisms = ["ANONYMOUS"] if anonymous else []
        return Handshake(self.config, self.peer_host, certificate, anonymous=mechanisms, skippable=anonymous)

    def _options(self) -> Options:
        capabilities = CAPABILITY, SQL_CAPABILITY
        return replace(super()._options(), offered=capabilities, properties={"product": "spark-streams"})


class AmqpDoor(TcpDoor):
    """The AMQP door.

    Args:
        config: its settings.

    Attributes:
        node: the node that links are attached to; None while the door is not open.
    """

    config: AmqpConfig
    node: Node | None

    def stored(self) -> Iterator[StoredOffset]:
        """Yield what the log keeps of receivers; see ``server/activity.py``."""
        if self.node is None:
            return
        log = self.node.log
        streams = {stream.incarnation: stream for stream in log.streams()}
        for user, name, incarnation, positions in kept_in(log):
            stream = streams.get(incarnation)
            if stream is not None:
                for partition, reached in positions.items():
                    # A filter that lets no event through keeps the highest offset.
                    there = stream.partitions.get(partition)
                    at = (stream.name, partition, reached if there is None else min(reached, there.next_offset))
                    yield StoredOffset(self.name, user, *at, name, user, None, "durable link")
        for group, partition, epoch in epochs_in(log):
            stream = streams.get(group.incarnation)
            if stream is not None:
                name, user = group.name, group.user or ""
                yield StoredOffset(self.name, user, stream.name, partition, None, name, user, epoch, "consumer group")

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen; see ``Door.open``."""
        node = self.node = Node(log, self.config, asyncio.get_running_loop(), self.counters)
        await self.listen(sockets, lambda admission: NodeConnection(node, admission))

    def renegotiate(self, stream: str, group: str) -> int:
        """Gracefully close all receivers of a consumer group, so that its partitions are distributed again.

        Returns:
            How many links were closed.

        Raises:
            UnknownStream: there is no such stream.

        Spec: Event Stream Extensions §4.5.1 (ES-107, ES-207). Call it on the server's loop.
        """
        if self.node is None:
            return 0
        return self.node.groups.renegotiate(self.node.log.stream(stream).incarnation, group)
