"""How links end at the door: by the peer in each state that lasts, and by the door."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import proton
import pytest
from proton import symbol

from spark_streams.server.amqp.connection_links import AttachedLink
from spark_streams.server.amqp.consumer_groups import Group
from tests.server.amqp.raw_peer import Peer
from tests.server.long_timeouts import HOUR_MS

GUARD_S = 120.0
"""Only against hanging."""
GROUP = {symbol("event-streams-consumer-group"): "g"}
ENDS: dict[str, Callable[[Peer, Any], None]] = {
    "the peer detaches": lambda peer, link: link.detach(),
    "the peer closes": lambda peer, link: link.close(),
    "the session ends": lambda peer, link: peer.session.close(),
    "the connection closes": lambda peer, link: peer.connection.close(),
}
"""What a peer does."""


class Door:
    """A node, one connection to it, and what has ended there: each kind of link, and whether its terminus ended too."""

    def __init__(self, nodes: Any, monkeypatch: pytest.MonkeyPatch, wait_ms: int = HOUR_MS) -> None:
        self.ended: list[tuple[str, bool]] = []
        end = AttachedLink.end

        def noted(link: AttachedLink, *, closed: bool) -> None:
            if not link.ended:
                self.ended.append((type(link).__name__, closed))
            end(link, closed=closed)

        monkeypatch.setattr(AttachedLink, "end", noted)
        self.node = nodes(unassigned="wait", unassigned_wait_ms=wait_ms, max_links=2)
        self.node.create()
        self.peer: Peer = self.node.peer()

    def links(self) -> list[tuple[list[AttachedLink], int]]:
        """Of each connection the links that are served, and how many refused ones its peer has not detached."""

        def found() -> list[tuple[list[AttachedLink], int]]:
            connections = self.node.server.server.door("amqp").node.connections
            return [(each.links.served, len(each.links._refused)) for each in connections]

        there: list[tuple[list[AttachedLink], int]] = self.node.server.call(found)
        return there

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + GUARD_S
        while not done():
            assert time.monotonic() < deadline, (self.ended, self.links())
            self.peer._write()
            time.sleep(0.005)

    # --- a link of the peer in each state that lasts

    def attached(self) -> Any:
        return self.peer.receiver("orders", properties=GROUP).link

    def waiting(self) -> Any:
        self.owner = self.node.peer().receiver("orders", properties=GROUP)
        link = self.peer.attach_receiver("orders", properties=GROUP).link
        self.until(lambda: any(each.waits for served, _ in self.links() for each in served))
        return link

    def refused(self) -> Any:
        link = self.peer.attach_receiver("nowhere").link
        self.peer.pump(lambda: link.state & proton.Endpoint.REMOTE_CLOSED, GUARD_S)
        return link

    def closing(self) -> Any:
        link = self.attached()
        self.node.server.call(lambda: self.node.server.server.renegotiate("orders", "g"))
        self.peer.pump(lambda: link.state & proton.Endpoint.REMOTE_CLOSED, GUARD_S)
        return link

    def released(self) -> Any:
        """A link of a connection that the door closes, since its peer does not detach what is refused.

        Nothing is sent before the test goes on: the door reads no more after its close, so that what ends the link has
        to come in the same bytes.
        """
        self.peer.pump(lambda: self.peer.session.state & proton.Endpoint.REMOTE_ACTIVE, GUARD_S)
        links = [self.peer.session.receiver(f"link-{number}") for number in range(4)]
        for link in links:
            link.source.address = "orders" if link is links[0] else "nowhere"
            link.open()
        return links[0]


MADE = {
    "waiting": (Door.waiting, "PendingAttach"),
    "attached": (Door.attached, "ConsumerLink"),
    "refused": (Door.refused, None),
    "closing": (Door.closing, "ConsumerLink"),
    "released": (Door.released, "ConsumerLink"),
}
"""A state, how a link comes into it, and what serves the link."""


@pytest.mark.parametrize(("state", "end"), list(product(MADE, ENDS)))
def test_a_peer_ends_a_link_in_each_state(nodes: Any, monkeypatch: pytest.MonkeyPatch, state: str, end: str) -> None:
    door = Door(nodes, monkeypatch)
    make, kind = MADE[state]
    link = make(door)
    ENDS[end](door.peer, link)
    left = int(state == "waiting")  # the link that has the partition is another peer's
    closed = end == "the peer closes" and state in ("waiting", "attached")  # else the door has ended it before
    ended = [] if kind is None else [(kind, closed)]
    door.until(lambda: door.ended == ended and sum(len(s) + refused for s, refused in door.links()) == left)
    if state == "waiting":
        door.owner.close()
    door.node.peer().receiver("orders", properties=GROUP).check()


def test_the_door_refuses_an_attach_that_has_waited_for_too_long(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(nodes, monkeypatch, wait_ms=1)
    door.owner = door.node.peer().receiver("orders", properties=GROUP)
    late = door.peer.attach_receiver("orders", properties=GROUP).link
    door.peer.pump(lambda: late.state & proton.Endpoint.REMOTE_CLOSED, GUARD_S)
    assert late.remote_condition.name == "amqp:link:detach-forced"
    assert late.remote_source.type == proton.Terminus.UNSPECIFIED
    assert door.ended == [("PendingAttach", False)]


def test_an_attach_that_waits_is_served_when_the_partition_is_free(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(nodes, monkeypatch)
    link = door.waiting()
    door.owner.close()
    door.peer.pump(lambda: link.state & proton.Endpoint.REMOTE_ACTIVE, GUARD_S)
    assert link.remote_source.address == "orders"
    assert door.ended == [("ConsumerLink", True), ("PendingAttach", False)]


@pytest.mark.parametrize("end", ["session", "connection", "socket"])
def test_a_partition_of_a_peer_that_ends_does_not_go_to_its_own_attach_that_waits(nodes: Any, end: str) -> None:
    node = nodes(unassigned="wait", unassigned_wait_ms=HOUR_MS)
    node.create()
    peer = node.peer()
    peer.receiver("orders", properties=GROUP)
    peer.attach_receiver("orders", properties=GROUP)
    peer.sender("orders").send(b"x")  # the door has taken what came before it
    if end == "session":
        peer.session.close()
        peer._write()
    elif end == "connection":
        peer.close()
    else:
        peer.drop()
    node.peer().receiver("orders", properties=GROUP).check()
    served = node.server.server.door("amqp").node
    group = Group(node.log.stream("orders").incarnation, "g", "guest")
    assert served.groups.free(group, ["0"]) == []
    assert len(served._links) == 1
