"""Serves the links of one connection: the state of each, from the peer's attach to its detach, and its work to do.

Each input changes the state by the table of ``link_states``; the states before and after decide what is done to
proton's link. A refused link has a state and no ``AttachedLink``: the engine keeps it until the peer has detached it
too.

A link that has work to do is due. Each turn of the connection serves the links that are due, each a bounded share;
a link that waits for room in the socket or in memory is blocked, and due again when bytes have been written.

``LinkResources`` is what links use of the node, the public methods of ``ConnectionLinks`` what they and the node use of
the connection; each kind of link is an ``AttachedLink``.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any, Final

import proton

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.admission import Admission
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.consumer_groups import Groups
from spark_streams.server.amqp.durable_termini import Termini
from spark_streams.server.amqp.engine import address
from spark_streams.server.amqp.error_conditions import RESOURCE_LIMIT, LinkRefused
from spark_streams.server.amqp.incoming_frames import IncomingFrames
from spark_streams.server.amqp.link_states import TRANSITIONS, LinkInput, LinkState, next_state
from spark_streams.server.amqp.outgoing_frames import OutgoingFrames
from spark_streams.server.amqp.placement import Placement
from spark_streams.server.amqp.transfer_block import BlockReader
from spark_streams.server.door import DoorNode, TcpConnection
from spark_streams.server.partition_readers import PartitionReaders
from spark_streams.server.turns import Turn

WRITE_BUFFER_BYTES: Final = 256 << 10

logger = logging.getLogger("spark_streams.server")


class LinkResources(DoorNode):
    """The node, as its links use it: the objects that all of them share. ``node.py`` has the rest of it.

    Args:
        log: the served log.
        config: the door's settings.
        loop: the server's.

    Attributes:
        readers: the readers of the partitions that consumers read.
        termini: positions of durable links.
        groups: consumer groups.
        placement: which partitions are served here.
    """

    config: AmqpConfig

    def __init__(self, log: ReferenceLog, config: AmqpConfig, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(log, config, loop, "spark-streams-amqp")
        self.readers = PartitionReaders(loop, BlockReader)
        self.termini = Termini(log, loop, config.max_durable_links)
        self.groups = Groups(log, config.reset_epoch, config.max_groups)
        self.placement = Placement(config)

    def is_there(self, stream: str, incarnation: str) -> bool:
        """Return whether a stream is still the one that a link was attached to."""
        try:
            return self.log.stream(stream).incarnation == incarnation
        except UnknownStream:
            return False

    def close(self) -> None:
        """Finish work that has begun, and write durable state."""
        super().close()
        self.termini.close()


class ConnectionLinks(TcpConnection):
    """A connection, as its links use it, and its links: those not detached on both sides.

    ``connection.py`` implements it on a socket.

    Args:
        node: links are attached to it.
        admission: the connection's place among those that the door may have.

    Attributes:
        config: the door's settings.
        user: the peer's user, once SASL is over.
        container: the peer's container-id.
        write_paused: whether the socket accepts no more bytes.
        incoming: what the peer sends, once SASL is over.
        outgoing: what is to be written, once SASL is over.
    """

    node: LinkResources
    incoming: IncomingFrames
    outgoing: OutgoingFrames

    def __init__(self, node: LinkResources, admission: Admission) -> None:
        super().__init__(node, admission, WRITE_BUFFER_BYTES)
        self.config = node.config
        self.user = ""
        self.container = ""
        self.write_paused = False
        self._closing = False
        self._unfinished_bytes = 0
        self._storing_bytes = 0
        self._served: dict[int, AttachedLink] = {}
        """Address of proton's link to its ``AttachedLink``: all links but the refused ones."""
        self._states: dict[int, LinkState] = {}
        self._sessions: dict[int, int] = {}
        """Address of each link to that of its session."""
        self._due: dict[AttachedLink, None] = {}
        self._blocked: dict[AttachedLink, None] = {}

    @abc.abstractmethod
    def _queue_turn(self) -> None:
        """Queue a turn of this connection."""

    @abc.abstractmethod
    def _close(self, name: str, description: str) -> None:
        """Close the connection with an error."""

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

    def wake(self, attached: AttachedLink | None = None) -> None:
        """Queue a turn of this connection, and make a link due in it."""
        if attached is not None and not attached.ended:
            self._due[attached] = None
        self._queue_turn()

    def _make_arrived_due(self) -> None:
        """Make the links due for which messages, credit or outcomes have come."""
        for deliveries in self.incoming.arrived:
            if deliveries.owner is not None:
                self._due[deliveries.owner] = None
        self.incoming.arrived.clear()

    def block(self, attached: AttachedLink) -> None:
        """Make a link due again when bytes have been written."""
        self._blocked[attached] = None

    def _unblock(self) -> None:
        """Make the blocked links due, if the socket accepts bytes: before those that have had what they wait for."""
        if not self.write_paused:
            self._due = {**self._blocked, **self._due}
            self._blocked.clear()

    def _serve_due(self) -> None:
        """Serve the links that are due, at least one, until the turn is over."""
        waiting, self._due = self._due, {}
        turn = Turn(time.monotonic)  # links read from the disk
        while waiting:
            attached = next(iter(waiting))
            del waiting[attached]
            if not attached.ended and attached.serve():
                self._due[attached] = None
            if turn.over:
                break
        # Links that had no turn come before links that need another one.
        self._due = {**waiting, **self._due}

    def _take_input(self) -> None:
        """Make each link take all messages that have come in."""
        for attached in list(self._served.values()):
            attached.take_input()

    # --- memory

    def unfinished(self, more_bytes: int) -> None:
        """Count bytes of messages of which only some frames have come; with too many the connection is closed."""
        self._unfinished_bytes += more_bytes
        most = self.config.session_bytes
        if self._unfinished_bytes > most and not self._closing:
            self._close(RESOURCE_LIMIT, f"unfinished messages of the connection have more than {most} bytes")

    def storing(self, more_bytes: int) -> None:
        """Count bytes of messages that are being stored; links that were ``full`` are served when there is room."""
        before = self.full
        self._storing_bytes += more_bytes
        if before and not self.full:
            self._unblock()
            self._queue_turn()

    @property
    def full(self) -> bool:
        """Whether links must accept no more messages: the engine holds up to ``session_bytes`` of the next ones."""
        return self._storing_bytes >= self.config.session_bytes


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

    def follow(self) -> None:  # noqa: B027  only agnostic consumers care
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
