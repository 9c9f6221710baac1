"""The links of one connection, from the peer's attach to its detach, and the object that serves each of them.

``LinkResources`` is what links use of the node; each kind of link is an ``AttachedLink``.
"""

from __future__ import annotations

import abc
import functools
import uuid
from collections.abc import Iterable
from typing import ClassVar

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.log import Stream
from spark_streams.server.activity import Item, Who
from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.amqp.error_conditions import RESOURCE_DELETED, LinkRefused
from spark_streams.server.amqp.link_turns import LinkTurns
from spark_streams.server.amqp.placement import Placement
from spark_streams.server.amqp.transfer_block import BlockReader, TransferBlock
from spark_streams.server.counters import logger
from spark_streams.server.door import DoorNode, TcpConnection
from spark_streams.server.partition_readers import PartitionReaders
from spark_streams.wire.amqp.engine.endpoints import Half
from spark_streams.wire.amqp.engine.links import Link, Session
from spark_streams.wire.amqp.engine.session import DECODE_ERROR, RESOURCE_LIMIT


class LinkConnection(TcpConnection):
    """A connection, as its links use it; see ``AmqpConnection``."""

    node: LinkResources
    config: LinkConfig
    container: str
    turns: LinkTurns
    links: ConnectionLinks

    @abc.abstractmethod
    def close(self, name: str, description: str) -> None:
        """Close it with an error."""


class LinkResources(DoorNode):
    """A node, as its connections and links use it: the objects that all of them share.

    Attributes:
        make_block: prepares stored events for the door's consumers.
        container: the server's container-id.
        readers: the readers of the partitions that consumers read.
        placement: which partitions are served here.
    """

    config: LinkConfig
    make_block: ClassVar[type[TransferBlock]] = TransferBlock

    def __post_init__(self) -> None:
        super().__post_init__()
        self.container = f"spark-streams-{uuid.uuid4().hex}"
        self.readers = PartitionReaders(self.loop, functools.partial(BlockReader, make_block=self.make_block))
        self.placement = Placement()
        self._known: dict[str, tuple[str, int]] = {}

    def attach(self, connection: LinkConnection, link: Link) -> None:
        """Answer a peer's attach: with a link that is served, one that waits, or a refusal."""
        links = connection.links
        try:
            if links.count >= self.config.max_links:
                words = f"the connection has {links.count} links, the most that it may have"
                raise LinkRefused(RESOURCE_LIMIT, words)
            attached = self._consumer(connection, link) if link.sends else self._producer(connection, link)
        except LinkRefused as refusal:
            links.refuse(link, refusal)
        except (RemoteProtocolError, LocalProtocolError) as fault:  # the answer repeats the fields of the attach
            links.refuse(link, LinkRefused(DECODE_ERROR, f"the attach cannot be read: {fault}"))
        else:
            links.serve(attached)

    @abc.abstractmethod
    def _consumer(self, connection: LinkConnection, link: Link) -> AttachedLink:
        """Answer the attach of a link on which the door sends.

        Raises:
            LinkRefused: the attach is refused.
        """

    @abc.abstractmethod
    def _producer(self, connection: LinkConnection, link: Link) -> AttachedLink:
        """Answer the attach of a link on which the peer sends.

        Raises:
            LinkRefused: the attach is refused.
        """

    def is_there(self, stream: str, incarnation: str) -> bool:
        """Return whether a stream is still the one that a link was attached to."""
        found = self.log.find(stream)
        return found is not None and found.incarnation == incarnation

    @property
    def _links(self) -> list[AttachedLink]:
        """The links that are attached to logs."""
        return [link for connection in self.connections for link in connection.links.served if link.stream]

    def follow(self) -> None:
        """Tell links of the partitions that were added to their logs; end the links of logs that were deleted."""
        now: dict[str, tuple[str, int]] = {}
        links = self._links
        for name in {link.stream for link in links}:
            stream = self.log.find(name)  # every change adds partitions
            now[name] = ("", 0) if stream is None else (stream.incarnation, len(stream.partitions))
        for link in links:
            if link.incarnation != now[link.stream][0]:
                deleted = LinkRefused(RESOURCE_DELETED, f"stream '{link.stream}' was deleted")
                link.fail_from_outside(deleted)
            elif self._known.get(link.stream) != now[link.stream]:
                link.connection.guarded(link.follow)
        self._known = now


class ConnectionLinks:
    """The links of one connection: those not detached on both sides.

    Args:
        connection: the connection.
    """

    def __init__(self, connection: LinkConnection) -> None:
        self._connection = connection
        self._served: dict[Link, AttachedLink] = {}
        """All links but the refused ones, until both sides have detached them."""
        self._refused: set[Link] = set()
        """The refused links that the peer has not detached yet."""

    @property
    def served(self) -> list[AttachedLink]:
        """The links that are served, and the attaches that wait."""
        return [attached for attached in self._served.values() if not attached.ended]

    @property
    def count(self) -> int:
        """How many links there are, refused ones not counted."""
        return len(self._served)

    def serve(self, attached: AttachedLink) -> None:
        """Serve a link, or an attach that waits, from now on."""
        self._served[attached.link] = attached
        attached.link.deliveries.owner = attached
        self._connection.turns.make_due(attached)

    def refuse(self, link: Link, refusal: LinkRefused) -> None:
        """Answer an attach without termini, and close the link at once. Spec: AMQP 1.0 part 2 §2.6.3.

        The link's name is free at once. A peer that does not detach refused links loses its connection.
        """
        link.detach(refusal.condition)
        self._served.pop(link, None)
        self._refused.add(link)
        most = self._connection.config.max_links
        if len(self._refused) > most:
            words = f"more than {most} links were refused, and the peer does not detach them"
            self._connection.close(RESOURCE_LIMIT, words)

    def close(self, link: Link, refusal: LinkRefused | None) -> None:
        """Close an attached link, with an error or without; refuse an attach that waits."""
        if link.ours is Half.NEW and refusal is not None:
            self.refuse(link, refusal)
        else:
            link.detach(None if refusal is None else refusal.condition)

    def peer_ends(self, link: Link) -> None:
        """Answer the peer's detach."""
        self._refused.discard(link)
        attached = self._served.pop(link, None)
        if attached is not None:
            attached.end(closed=link.closed)
        link.detach(closed=link.closed)

    def session_ends(self, session: Session) -> None:
        """End the links of a session that the peer has ended."""
        self._refused = {link for link in self._refused if link.session is not session}
        ended = [link for link in self._served if link.session is session]
        self._end([self._served[link] for link in ended])
        for link in ended:
            self._served.pop(link, None)

    def release(self) -> None:
        """Release what the links hold; the connection is closed on one side or both, or lost."""
        self._end(list(self._served.values()))

    def clear(self) -> None:
        """Forget all links of a connection that is lost."""
        self._served.clear()
        self._refused.clear()
        self._connection.turns.clear()

    def take_input(self) -> None:
        """Make each link take all messages that have come in."""
        for attached in list(self._served.values()):
            attached.take_input()

    def _end(self, ended: list[AttachedLink]) -> None:
        """End links without the peer's detach; a fault in one does not keep the others from releasing what they hold.

        Waiting attaches come first: they must not get a partition that one of the other links releases.
        """
        for attached in sorted(ended, key=lambda each: not each.waits):
            try:
                attached.end(closed=False)
            except Exception:
                logger.exception("%s: a link could not be ended in good order", self._connection.peer)


class AttachedLink(abc.ABC):
    """Serves one link.

    Args:
        connection: its connection.
        link: the engine's link.
        log_stream: the log; None for a link without a log.

    Attributes:
        node: the node that it is attached to.
        stream: the name of the log; empty for a link without a log.
        incarnation: the log's incarnation.
        ended: whether it has released what it held, and serves no more.
    """

    waits: ClassVar[bool] = False
    """Whether its attach is not answered yet."""

    def __init__(self, connection: LinkConnection, link: Link, log_stream: Stream | None) -> None:
        self.connection = connection
        self.node = connection.node
        self.link = link
        self.stream = "" if log_stream is None else log_stream.name
        self.incarnation = "" if log_stream is None else log_stream.incarnation
        self.ended = False

    @abc.abstractmethod
    def serve(self) -> bool:
        """Do a bounded part of the work that is due; return whether there is more to do at once."""

    def told(self, who: Who) -> Iterable[Item]:
        """Return what those who look are told of a link of a log; see ``server/activity.py``."""
        return ()

    def follow(self) -> None:  # noqa: B027  only links that events are sent on care
        """Handle a possible change of the log's partitions."""

    def take_input(self) -> None:  # noqa: B027  only producers have input
        """Take all messages that have come in, because the link is about to end."""

    def end(self, *, closed: bool) -> None:
        """Release what the link holds; nothing is sent after this.

        Args:
            closed: whether the peer closed the link, and with it the terminus; False: the link was detached or lost.
        """
        if not self.ended:
            self.ended = True
            self._released(closed=closed)

    def _released(self, *, closed: bool) -> None:
        """Release what the link holds."""
        self.link.deliveries.drop()

    def fail(self, refusal: LinkRefused | None) -> None:
        """Close the link, with an error or without."""
        if not self.ended:
            self.end(closed=False)
            self.connection.links.close(self.link, refusal)
            self.connection.turns.wake()

    def fail_from_outside(self, refusal: LinkRefused | None) -> None:
        """Close the link for a reason from outside its connection: an exception then ends only this connection."""
        self.connection.guarded(lambda: self.fail(refusal))
