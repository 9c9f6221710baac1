"""The states of links at the door: every row of the table is reached by a peer, and what has no row is a defect."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import proton
import pytest
from proton import symbol

from spark_streams.server.amqp import connection_links
from spark_streams.server.amqp.consumer_groups import Group
from spark_streams.server.amqp.link_states import TRANSITIONS, LinkInput, LinkState, next_state
from tests.server.amqp.raw_peer import Peer
from tests.server.long_timeouts import HOUR_MS

GUARD_S = 120.0
"""Only against hanging."""
GROUP = {symbol("event-streams-consumer-group"): "g"}
ENDS: dict[LinkInput, Callable[[Peer, Any], None]] = {
    LinkInput.PEER_DETACHES: lambda peer, link: link.detach(),
    LinkInput.PEER_CLOSES: lambda peer, link: link.close(),
    LinkInput.SESSION_ENDS: lambda peer, link: peer.session.close(),
    LinkInput.CONNECTION_CLOSES: lambda peer, link: peer.connection.close(),
}
"""What a peer does for an input."""


class Door:
    """A node and the rows of the table that its links have gone through."""

    def __init__(self, nodes: Any, monkeypatch: pytest.MonkeyPatch, wait_ms: int = HOUR_MS) -> None:
        self.seen: list[tuple[LinkState, LinkInput]] = []

        def noted(state: LinkState, happened: LinkInput) -> LinkState:
            following = next_state(state, happened)
            self.seen.append((state, happened))
            return following

        monkeypatch.setattr(connection_links, "next_state", noted)
        self.node = nodes(unassigned="wait", unassigned_wait_ms=wait_ms, max_links=2)
        self.node.create()
        self.peer: Peer = self.node.peer()

    def reached(self, row: tuple[LinkState, LinkInput], times: int = 1) -> None:
        """Wait until a link has gone through a row."""
        deadline = time.monotonic() + GUARD_S
        while self.seen.count(row) < times:
            assert time.monotonic() < deadline, f"{row} was not reached, but {self.seen}"
            self.peer._write()
            time.sleep(0.005)

    # --- a link of the peer in each state that lasts

    def attached(self) -> Any:
        return self.peer.receiver("orders", properties=GROUP).link

    def waiting(self) -> Any:
        self.owner = self.node.peer().receiver("orders", properties=GROUP)
        link = self.peer.attach_receiver("orders", properties=GROUP).link
        self.reached((LinkState.ATTACHING, LinkInput.NO_PARTITION))
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
    LinkState.WAITING: Door.waiting,
    LinkState.ATTACHED: Door.attached,
    LinkState.REFUSED: Door.refused,
    LinkState.CLOSING: Door.closing,
    LinkState.RELEASED: Door.released,
}
BY_PEER = [row for row in TRANSITIONS if row[1] in ENDS]
BY_DOOR = [row for row in TRANSITIONS if row[1] not in ENDS]


def words(row: tuple[LinkState, LinkInput]) -> str:
    return f"{row[0].name}-{row[1].name}"


@pytest.fixture
def door(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(nodes, monkeypatch)


@pytest.mark.parametrize("row", BY_PEER, ids=words)
def test_a_peer_ends_a_link_in_each_state(door: Door, row: tuple[LinkState, LinkInput]) -> None:
    state, happened = row
    link = MADE[state](door)
    assert row not in door.seen
    ENDS[happened](door.peer, link)
    door.reached(row)


@pytest.mark.parametrize("row", BY_DOOR, ids=words)
def test_the_door_decides_about_a_link(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, row: tuple[LinkState, LinkInput]
) -> None:
    door = Door(nodes, monkeypatch, wait_ms=1 if row[1] is LinkInput.REFUSE else HOUR_MS)
    if row == (LinkState.ATTACHED, LinkInput.DOOR_CLOSES):
        door.closing()
    elif row == (LinkState.ATTACHING, LinkInput.REFUSE):
        door.refused()
    elif row == (LinkState.ATTACHING, LinkInput.ACCEPT):
        door.attached()
    else:
        door.waiting()
    if row == (LinkState.WAITING, LinkInput.ACCEPT):
        door.owner.close()
    door.reached(row)


@pytest.mark.parametrize(
    ("state", "happened"),
    [row for row in itertools.product(LinkState, LinkInput) if row not in TRANSITIONS],
)
def test_an_input_without_a_row_is_a_defect_and_names_both(state: LinkState, happened: LinkInput) -> None:
    with pytest.raises(RuntimeError) as fault:
        next_state(state, happened)
    assert state.value in str(fault.value) and happened.value in str(fault.value)


def test_every_state_is_reached_and_those_that_last_are_left() -> None:
    before, after = {state for state, _ in TRANSITIONS}, set(TRANSITIONS.values())
    assert before | after == set(LinkState) and after | {LinkState.ATTACHING} == set(LinkState)
    assert set(LinkState) - before == {LinkState.DETACHED, LinkState.CLOSED}
    assert {happened for _, happened in TRANSITIONS} == set(LinkInput)


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
