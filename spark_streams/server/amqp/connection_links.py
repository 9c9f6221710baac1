"""Serves the links of one connection: the state of each, from the peer's attach to its detach, and its work to do.

Each input changes the state by the table of ``link_states``; the states before and after decide what is done to
proton's link. A refused link has a state and no ``AttachedLink``: the engine keeps it until the peer has detached it
too.

``LinkResources`` is what links use of the node, the public methods of ``ConnectionLinks`` what they and the node use of
the connection; each kind of link is an ``AttachedLink``.
"""

from __future__ import annotations

import abc
import asyncio
import functools
import logging
import uuid
from collections.abc import Iterable
from typing import Any, ClassVar

import proton

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.admission import Admission
from spark_streams.server.amqp.config import LinkConfig
from spark_streams.server.amqp.engine import address
from spark_streams.server.amqp.error_conditions import RESOURCE_DELETED, LinkRefused
from spark_streams.server.amqp.incoming_links import IncomingLinks
from spark_streams.server.amqp.link_states import TRANSITIONS, LinkInput, LinkState, next_state
from spark_streams.server.amqp.link_turns import LinkTurns
from spark_streams.server.amqp.outgoing_frames import OutgoingFrames
from spark_streams.server.amqp.placement import Placement
from spark_streams.server.amqp.transfer_block import BlockReader, TransferBlock
from spark_streams.server.counters import DoorCounters
from spark_streams.server.door import DoorNode
from spark_streams.server.partition_readers import PartitionReaders
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT

logger = logging.getLogger("spark_streams.server")


class LinkResources(DoorNode):
    """A node, as its connections and links use it: the objects that all of them share.

    Args:
        log: the served log.
        config: the door's settings.
        loop: the server's.
        counters: the door's.
        placement: which partitions are served here.
        make_block: prepares stored events for the door's consumers.

    Attributes:
        container: the server's container-id.
        readers: the readers of the partitions that consumers read.
        placement: which partitions are served here.
    """

    config: LinkConfig

    def __init__(
        self,
        log: ReferenceLog,
        config: LinkConfig,
        loop: asyncio.AbstractEventLoop,
        counters: DoorCounters,
        placement: Placement,
        make_block: type[TransferBlock] = TransferBlock,
    ) -> None:
        super().__init__(log, config, loop, counters, f"spark-streams-{config.protocol}")
        self.container = f"spark-streams-{uuid.uuid4().hex}"
        self.readers = PartitionReaders(loop, functools.partial(BlockReader, make_block=make_block))
        self.placement = placement
        self._known: dict[str, tuple[str, int]] = {}

    def attach(self, connection: ConnectionLinks, link: Any) -> None:
        """Answer a peer's attach: with a link that is served, one that waits, or a refusal."""
        try:
            if connection.link_count >= self.config.max_links:
                raise LinkRefused(
                    RESOURCE_LIMIT, f"the connection has {connection.link_count} links, the most that it may have"
                )
            attached = self._consumer(connection, link) if link.is_sender else self._producer(connection, link)
        except LinkRefused as refusal:
            connection.refuse(link, refusal)
            return
        connection.serve(attached, LinkInput.NO_PARTITION if attached.waits else LinkInput.ACCEPT)

    @abc.abstractmethod
    def _consumer(self, connection: ConnectionLinks, link: Any) -> AttachedLink:
        """Answer the attach of a link on which the door sends.

        Raises:
            LinkRefused: the attach is refused.
        """

    @abc.abstractmethod
    def _producer(self, connection: ConnectionLinks, link: Any) -> AttachedLink:
        """Answer the attach of a link on which the peer sends.

        Raises:
            LinkRefused: the attach is refused.
        """

    def is_there(self, stream: str, incarnation: str) -> bool:
        """Return whether a stream is still the one that a link was attached to."""
        try:
            return self.log.stream(stream).incarnation == incarnation
        except UnknownStream:
            return False

    @property
    def _links(self) -> list[AttachedLink]:
        """The links that are attached to logs."""
        return [link for connection in self.connections for link in connection.served if link.stream]

    def follow(self) -> None:
        """Tell links of the partitions that were added to their logs; end the links of logs that were deleted."""
        now: dict[str, tuple[str, int]] = {}
        links = self._links
        for name in {link.stream for link in links}:
            try:
                stream = self.log.stream(name)
                now[name] = (stream.incarnation, len(stream.partitions))  # every change adds partitions
            except UnknownStream:
                now[name] = ("", 0)
        for link in links:
            if link.incarnation != now[link.stream][0]:
                deleted = LinkRefused(RESOURCE_DELETED, f"stream '{link.stream}' was deleted")
                link.fail_from_outside(deleted)
            elif self._known.get(link.stream) != now[link.stream]:
                link.connection.guarded(link.follow)
        self._known = now


class ConnectionLinks(LinkTurns):
    """A connection, as its links use it, and its links: those not detached on both sides.

    ``connection.py`` implements it on a socket.

    Args:
        node: links are attached to it.
        admission: the connection's place among those that the door may have.

    Attributes:
        config: the door's settings.
        user: the peer's user, once SASL is over.
        container: the peer's container-id.
        incoming: what the peer sends, once SASL is over.
        outgoing: what is to be written, once SASL is over.
    """

    node: LinkResources
    incoming: IncomingLinks
    outgoing: OutgoingFrames

    def __init__(self, node: LinkResources, admission: Admission) -> None:
        super().__init__(node, admission, node.config)
        self.user = ""
        self.container = ""
        self._served: dict[int, AttachedLink] = {}
        """Address of proton's link to its ``AttachedLink``: all links but the refused ones."""
        self._states: dict[int, LinkState] = {}
        self._sessions: dict[int, int] = {}
        """Address of each link to that of its session."""

    @property
    def known_as(self) -> str:
        """The peer's user, or users, for people."""
        return self.user

    @property
    @abc.abstractmethod
    def client(self) -> str:
        """What the peer says of itself."""

    @property
    def served(self) -> list[AttachedLink]:
        """The links that are served, and the attaches that wait."""
        return [attached for attached in self._served.values() if not attached.ended]

    @property
    def link_count(self) -> int:
        """How many links there are, refused ones not counted."""
        return len(self._served)

    def _receive_attach(self, link: proton.Link) -> None:
        """Note a link that the peer attaches."""
        at = address(link._impl)
        self._states[at] = LinkState.ATTACHING
        self._sessions[at] = address(link.session._impl)

    def serve(self, attached: AttachedLink, link_input: LinkInput) -> None:
        """Serve a link from now on; ``ACCEPT``, or ``NO_PARTITION`` for an attach that waits."""
        at = address(attached.link._impl)
        self._enter(at, link_input)
        self._served[at] = attached
        self._due[attached] = None

    def refuse(self, link: proton.Link, refusal: LinkRefused) -> None:
        """Answer an attach with a null terminus, and close the link at once. Spec: AMQP 1.0 part 2 §2.6.3.

        The link's name is free at once: the engine would end the connection of a peer that attaches it again before it
        has detached it. A peer that does not detach refused links loses its connection.
        """
        if link.is_sender:
            link.target.copy(link.remote_target)
            link.source.type = proton.Terminus.UNSPECIFIED
        else:
            link.source.copy(link.remote_source)
            link.target.type = proton.Terminus.UNSPECIFIED
        link.open()
        link.condition = refusal.condition
        link.close()
        at = address(link._impl)
        self._enter(at, LinkInput.REFUSE)
        self._served.pop(at, None)
        link.free()
        most = self.config.max_links
        if len(self._states) - len(self._served) > most:
            self._close(RESOURCE_LIMIT, f"more than {most} links were refused, and the peer does not detach them")

    def close_link(self, link: proton.Link, refusal: LinkRefused | None) -> None:
        """Close an attached link, with an error or without; refuse an attach that waits."""
        at = address(link._impl)
        if self._states[at] is LinkState.WAITING and refusal is not None:
            self.refuse(link, refusal)
            return
        self._enter(at, LinkInput.DOOR_CLOSES)
        if refusal is not None:
            link.condition = refusal.condition
        link.close()

    def _peer_ends(self, link: proton.Link, link_input: LinkInput) -> None:
        """Answer the peer's detach: ``PEER_DETACHES``, or ``PEER_CLOSES`` where it ends the terminus too."""
        at = address(link._impl)
        before = self._states[at]
        after = self._enter(at, link_input)
        attached = self._served.pop(at, None)
        if attached is None:
            return
        attached.end(closed=after is LinkState.CLOSED)
        if before is LinkState.WAITING:
            link.open()  # an attach has to be answered before it can be detached
        if after is LinkState.CLOSED:
            link.close()
        else:
            link.detach()
        link.free()

    def _session_ends(self, session: proton.Session) -> None:
        """End the links of a session that the peer has ended."""
        ended = address(session._impl)
        links = [at for at, home in self._sessions.items() if home == ended]
        self._end_links(links, LinkInput.SESSION_ENDS)
        for at in links:
            self._served.pop(at, None)

    def _release_links(self) -> None:
        """Release what the links hold; the connection is closed on one side or both, or lost."""
        holding = [at for at, state in self._states.items() if (state, LinkInput.CONNECTION_CLOSES) in TRANSITIONS]
        self._end_links(holding, LinkInput.CONNECTION_CLOSES)

    def _forget_links(self) -> None:
        """Forget all links of a connection that is lost."""
        for kept in (self._served, self._states, self._sessions, self._due, self._blocked):
            kept.clear()

    def _enter(self, at: int, link_input: LinkInput) -> LinkState:
        state = next_state(self._states[at], link_input)
        if state in (LinkState.DETACHED, LinkState.CLOSED):
            del self._states[at], self._sessions[at]
        else:
            self._states[at] = state
        return state

    def _end_links(self, links: Iterable[int], link_input: LinkInput) -> None:
        """End links without the peer's detach; a fault in one does not keep the others from releasing what they hold.

        Waiting attaches come first: they must not get a partition that one of the other links releases.
        """
        for at in sorted(links, key=lambda at: self._states[at] is not LinkState.WAITING):
            try:
                self._enter(at, link_input)
                attached = self._served.get(at)
                if attached is not None:
                    attached.end(closed=False)
            except Exception:
                logger.exception("%s: a link could not be ended in good order", self.peer)

    # --- turns

    def _make_arrived_due(self) -> None:
        """Make the links due for which messages, credit or outcomes have come."""
        for deliveries in self.incoming.arrived:
            if deliveries.owner is not None:
                self._due[deliveries.owner] = None
        self.incoming.arrived.clear()

    def _take_input(self) -> None:
        """Make each link take all messages that have come in."""
        for attached in list(self._served.values()):
            attached.take_input()


class AttachedLink(abc.ABC):
    """Serves one link.

    Args:
        connection: its connection.
        link: the ``proton.Link``, opened on both sides.
        log_stream: the log; None for a link without a log.

    Attributes:
        node: the node that it is attached to.
        stream: the name of the log; empty for a link without a log.
        incarnation: the log's incarnation.
        ended: whether it has released what it held, and serves no more.
    """

    waits: ClassVar[bool] = False
    """Whether its attach is not answered yet."""

    def __init__(self, connection: ConnectionLinks, link: Any, log_stream: Stream | None) -> None:
        self.connection = connection
        self.node = connection.node
        self.link = link
        self.stream = "" if log_stream is None else log_stream.name
        self.incarnation = "" if log_stream is None else log_stream.incarnation
        self.ended = False

    @abc.abstractmethod
    def serve(self) -> bool:
        """Do a bounded part of the work that is due; return whether there is more to do at once."""

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

    @abc.abstractmethod
    def _released(self, *, closed: bool) -> None:
        """Release what the link holds."""

    def fail(self, refusal: LinkRefused | None) -> None:
        """Close the link, with an error or without."""
        if not self.ended:
            self.end(closed=False)
            self.connection.close_link(self.link, refusal)
            self.connection.wake()

    def fail_from_outside(self, refusal: LinkRefused | None) -> None:
        """Close the link for a reason that is none of its connection: an exception ends its connection only."""
        self.connection.guarded(lambda: self.fail(refusal))
