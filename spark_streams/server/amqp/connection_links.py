"""Keeps the links of one connection: the state of each, from the peer's attach to its detach, and its work to do.

Each input changes the state by the table of ``link_states``; the states before and after decide what is done to
proton's link. A refused link has a state and no ``AttachedLink``: the engine keeps it until the peer has detached it
too.

A link that has work to do is due. Each turn of the connection serves the links that are due, each a bounded share;
a link that waits for room in the socket or in memory is blocked, and due again when bytes have been written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import proton
from cproton_ffi import lib

from spark_streams.server.amqp.attached_link import AttachedLink
from spark_streams.server.amqp.engine import address
from spark_streams.server.amqp.error_conditions import LinkRefused
from spark_streams.server.amqp.link_states import TRANSITIONS, LinkInput, LinkState, next_state

logger = logging.getLogger("spark_streams.server")


class ConnectionLinks:
    """The links that a peer has attached and that are not detached on both sides.

    Attributes:
        peer: the peer's address, for the log.
    """

    def __init__(self) -> None:
        self.peer = "?"
        self._served: dict[int, AttachedLink] = {}
        """Address of proton's link to its ``AttachedLink``: all links but the refused ones."""
        self._states: dict[int, LinkState] = {}
        self._sessions: dict[int, int] = {}
        """Address of each link to that of its session."""
        self._due: dict[AttachedLink, None] = {}
        self._blocked: dict[AttachedLink, None] = {}

    @property
    def count(self) -> int:
        """How many links there are, refused ones not counted."""
        return len(self._served)

    @property
    def refused(self) -> int:
        """How many links are refused and not detached by the peer."""
        return len(self._states) - len(self._served)

    def receive_attach(self, link: proton.Link) -> None:
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
        has detached it.
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

    def close(self, link: proton.Link, refusal: LinkRefused | None) -> None:
        """Close an attached link, with an error or without."""
        self._enter(address(link._impl), LinkInput.DOOR_CLOSES)
        if refusal is not None:
            link.condition = refusal.condition
        link.close()

    def peer_ends(self, link: proton.Link, link_input: LinkInput) -> None:
        """Answer the peer's detach: ``PEER_DETACHES``, or ``PEER_CLOSES`` where it ends the terminus too."""
        at = address(link._impl)
        before = self._states[at]
        after = self._enter(at, link_input)
        attached = self._served.pop(at, None)
        if attached is None:
            _drop_input(link)  # messages that came although a refused link has no credit
            return
        attached.end(closed=after is LinkState.CLOSED)
        if before is LinkState.WAITING:
            link.open()  # an attach has to be answered before it can be detached
        if after is LinkState.CLOSED:
            link.close()
        else:
            link.detach()
        link.free()

    def session_ends(self, session: proton.Session) -> None:
        """End the links of a session that the peer has ended."""
        ended = address(session._impl)
        links = [at for at, home in self._sessions.items() if home == ended]
        self._end(links, LinkInput.SESSION_ENDS)
        for at in links:
            self._served.pop(at, None)

    def connection_closes(self) -> None:
        """Release what the links hold; the connection is closed on one side or both, or lost."""
        holding = [at for at, state in self._states.items() if (state, LinkInput.CONNECTION_CLOSES) in TRANSITIONS]
        self._end(holding, LinkInput.CONNECTION_CLOSES)

    def clear(self) -> None:
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

    def _end(self, links: Iterable[int], link_input: LinkInput) -> None:
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

    @property
    def due(self) -> bool:
        """Whether a link is due."""
        return bool(self._due)

    def wake(self, attached: AttachedLink) -> None:
        """Make a link due."""
        if not attached.ended:
            self._due[attached] = None

    def touch(self, links: Iterable[int]) -> None:
        """Make the links at these addresses due."""
        for at in links:
            attached = self._served.get(at)
            if attached is not None:
                self._due[attached] = None

    def block(self, attached: AttachedLink) -> None:
        """Make a link due when ``unblock`` is called."""
        self._blocked[attached] = None

    def unblock(self) -> None:
        """Make the blocked links due."""
        if self._blocked:
            self._due.update(self._blocked)
            self._blocked.clear()

    def have_turn(self, clock: Callable[[], float], turn_s: float) -> None:
        """Serve the links that are due, at least one, for up to ``turn_s`` seconds of the clock."""
        waiting, self._due = self._due, {}
        end = clock() + turn_s
        while waiting:
            attached = next(iter(waiting))
            del waiting[attached]
            if not attached.ended and attached.serve():
                self._due[attached] = None
            if clock() >= end:
                break
        # Links that had no turn come before links that need another one.
        self._due = {**waiting, **self._due}

    def update(self, deliveries: Iterable[Any]) -> None:
        """Pass on outgoing deliveries (C pointers) whose state the peer has changed."""
        for delivery in deliveries:
            attached = self._served.get(address(lib.pn_delivery_link(delivery)))
            if attached is not None:
                attached.updated(delivery)

    def take_input(self) -> None:
        """Make each link take all messages that have come in."""
        for attached in list(self._served.values()):
            attached.take_input()


def _drop_input(link: proton.Link) -> None:
    """Settle the unread messages of a link, so that they no longer count against the session's window."""
    while delivery := lib.pn_link_current(link._impl):
        lib.pn_delivery_settle(delivery)
