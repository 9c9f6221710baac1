"""What the RabbitMQ door tells of its clients; see ``server/activity.py``.

A consumer's name is the name under which its offsets are stored: a consumer group is what has one name on a stream.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_streams.log import ReferenceLog
from spark_streams.server.activity import ConnectionInfo, Item, ReaderInfo, StoredOffset, WriterInfo, in_order
from spark_streams.server.rabbitmq.node import RabbitNode
from spark_streams.server.rabbitmq.stored_offsets import stored_in


def connected(door: str, node: RabbitNode) -> Iterator[Item]:
    """Yield what is connected to a door of this name."""
    for connection in in_order(node.connections):
        if not connection.established:
            continue
        who = (door, connection.address, connection.user)
        yield ConnectionInfo(*who, connection.client, connection.since_ms)
        for publisher in connection.publishers.open:
            served = publisher.served
            yield WriterInfo(*who, served.stream.name, served.partition.id, publisher.reference)
        for each in connection.subscriptions.open:
            at = (each.served.stream.name, each.served.partition.id, each.next_offset)
            yield ReaderInfo(*who, *at, each.name, each.name or None)


def stored(door: str, log: ReferenceLog) -> Iterator[StoredOffset]:
    """Yield the stored offsets, in any thread; a consumer goes on behind its last one."""
    names = {stream.incarnation: stream.name for stream in log.streams()}
    for incarnation, partition, reference, offset, user in stored_in(log):
        if incarnation in names:
            at = (names[incarnation], partition, offset + 1)
            yield StoredOffset(door, user, *at, reference, "", None, "stored offset")
