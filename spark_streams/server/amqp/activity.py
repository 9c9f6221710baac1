"""Describes the clients of the doors that speak AMQP; see ``server/activity.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from spark_streams.log import ReferenceLog
from spark_streams.server.activity import (
    MOST_TEXT,
    ConnectionInfo,
    Item,
    ReaderInfo,
    StoredOffset,
    WriterInfo,
    in_order,
)
from spark_streams.server.amqp.connection_links import AttachedLink, LinkResources
from spark_streams.server.amqp.consumer_groups import epochs_in
from spark_streams.server.amqp.consumer_link import ConsumerLink
from spark_streams.server.amqp.durable_termini import kept_in
from spark_streams.server.amqp.event_sender import EventSender
from spark_streams.server.amqp.node import PendingAttach
from spark_streams.server.amqp.producer_link import ProducerLink


class Membership(NamedTuple):
    """A reader's place in a consumer group.

    Args:
        group: the group's name, or None.
        owner: the user that it belongs to; empty: it is everybody's.
        epoch: the reader's epoch, or None.
    """

    group: str | None = None
    owner: str = ""
    epoch: int | None = None


def membership(link: AttachedLink) -> Membership:
    """Return the place of a link of the AMQP door."""
    if isinstance(link, PendingAttach):
        return Membership(link.group.name, link.group.user or "")
    claim = link.claim if isinstance(link, ConsumerLink) else None
    return Membership() if claim is None else Membership(claim.group.name, claim.group.user or "", claim.epoch)


def connected(
    door: str, node: LinkResources, membership: Callable[[AttachedLink], Membership] = membership
) -> Iterator[Item]:
    """Yield what is connected to a door.

    Args:
        door: its name.
        node: its node.
        membership: returns the place of a link in a consumer group.
    """
    for connection in in_order(node.connections):
        if not connection.established:
            continue
        who = (door, connection.address, connection.known_as)
        yield ConnectionInfo(*who, connection.client, connection.since_ms)
        for link in connection.links.served:
            if link.ended or not link.stream:
                continue
            name = link.link.name[:MOST_TEXT]
            if isinstance(link, ProducerLink):
                yield WriterInfo(*who, link.stream, link.bound or "", name)
            elif link.waits:
                yield ReaderInfo(*who, link.stream, "", None, name, *membership(link))
            elif isinstance(link, EventSender):
                there = membership(link)
                for part, (partition, position) in enumerate(list(link.positions.items())):
                    yield ReaderInfo(*who, link.stream, partition, position.reached, name, *there, part)


def stored(door: str, log: ReferenceLog) -> Iterator[StoredOffset]:
    """Yield the positions of durable links, and the last epochs of consumer groups; in any thread."""
    streams = {stream.incarnation: stream for stream in log.streams()}
    for user, name, incarnation, positions in kept_in(log):
        stream = streams.get(incarnation)
        if stream is not None:
            for partition, at in positions.items():
                there = stream.partitions.get(partition)  # a filter that lets no event through keeps the highest offset
                reached = at if there is None else min(at, there.next_offset)
                yield StoredOffset(door, user, stream.name, partition, reached, name, user, None, "durable link")
    for group, partition, epoch in epochs_in(log):
        stream = streams.get(group.incarnation)
        if stream is not None:
            user = group.user or ""
            yield StoredOffset(door, user, stream.name, partition, None, group.name, user, epoch, "consumer group")
