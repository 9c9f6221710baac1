"""What the door answers to a flow, frame by frame: a drain always, and an echo (AMQP 1.0 part 2 §2.6.7, §2.7.4).

The flows are written beside proton's engine, and the door's are read from the socket: engines hide what is missing.
go-amqp's ``DrainCredit`` sends a drain whatever credit is left, and waits for a flow with it.
"""

from __future__ import annotations

from typing import Any

import proton
import pytest
from proton import Described, ulong

from tests.server.amqp.raw_peer import EARLIEST, GROUP, PARTITION, sql_filter

FLOW, TRANSFER = 0x13, 0x14


class Tap:
    """A socket that keeps what comes."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.seen = b""

    def recv(self, size: int) -> bytes:
        received: bytes = self._socket.recv(size)
        self.seen += received
        return received

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class Wire:
    """The frames of one connection of the raw peer, from now on."""

    def __init__(self, peer: Any) -> None:
        self.peer, self.tap = peer, Tap(peer.socket)
        peer.socket = self.tap

    def flow(self, handle: int | None, count: int = 0, credit: int | None = 0, **flags: bool) -> None:
        """Write a flow of the peer's first session, with a window without end."""
        uint = proton.uint
        fields = [uint(0), uint(0x7FFFFFFF), uint(0), uint(0x7FFFFFFF)]
        if handle is not None:
            numbers = (handle, count, credit)
            fields += [None if n is None else uint(n) for n in numbers] + [None, flags.get("drain", False)]
        else:
            fields += [None] * 5
        data = proton.Data()
        data.put_object(Described(ulong(FLOW), [*fields, flags.get("echo", False)]))
        performative = data.encode()
        self.peer._write()
        self.peer.socket.sendall((8 + len(performative)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + performative)

    def frames(self, code: int) -> list[list[Any]]:
        """The fields of the whole frames that have come, by their code."""
        found, at = [], 0
        while at + 4 <= len(self.tap.seen):
            size = int.from_bytes(self.tap.seen[at : at + 4], "big")
            if at + size > len(self.tap.seen):
                break
            frame = self.tap.seen[at + 8 : at + size]
            at += size
            if frame:
                data = proton.Data()
                data.decode(frame)
                data.rewind()
                data.next()
                described = data.get_object()
                if int(described.descriptor) == code:
                    found.append([*described.value, *[None] * (11 - len(described.value))])
        return found

    @property
    def of_link(self) -> list[dict[str, Any]]:
        """What the door's flows of links say of them."""
        names = {"handle": 4, "delivery_count": 5, "credit": 6, "available": 7, "drain": 8}
        return [{name: flow[at] for name, at in names.items()} for flow in self.frames(FLOW) if flow[4] is not None]

    @property
    def of_session(self) -> int:
        """How many flows of the session alone have come."""
        return sum(flow[4] is None for flow in self.frames(FLOW))

    def answers(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many flows of links."""
        self.peer.pump(lambda: len(self.of_link) >= count)
        return self.of_link


def drained(count: int, available: int) -> dict[str, Any]:
    return {"handle": 0, "delivery_count": count, "credit": 0, "available": available, "drain": True}


@pytest.fixture
def wire(node: Any) -> Wire:
    """A connection with a receiver of three events, without credit, as handle 0."""
    node.create()
    node.send("orders", b"a", b"b", b"c")
    peer = node.peer()
    peer.receiver("orders", filter=EARLIEST)
    return Wire(peer)


@pytest.mark.parametrize(
    ("credit", "sent", "answer"),
    [(0, 0, drained(0, 3)), (2, 2, drained(2, 1)), (3, 3, drained(3, 0)), (8, 3, drained(8, 0))],
)
def test_a_drain_is_answered_whatever_the_credit_is(wire: Wire, credit: int, sent: int, answer: Any) -> None:
    wire.flow(0, 0, credit, drain=True)
    assert wire.answers() == [answer]
    assert len(wire.frames(TRANSFER)) == sent
    wire.flow(0, answer["delivery_count"], 0, drain=True)
    assert wire.answers(2)[1] == {**answer, "delivery_count": answer["delivery_count"]}, "and again"


def test_a_drain_after_the_credit_was_used_up(wire: Wire) -> None:
    wire.flow(0, 0, 3)
    wire.peer.pump(lambda: len(wire.frames(TRANSFER)) == 3)
    wire.flow(0, 3, 0, drain=True)
    assert wire.answers() == [drained(3, 0)]


def test_a_drain_ends_where_the_filter_does(node: Any) -> None:
    node.create()
    node.send("orders", *[b"%d" % n for n in range(9)])
    peer = node.peer()
    third = node.receive("orders")[2].offset
    peer.receiver("orders", filter=sql_filter(f"d.[event-streams-offset] <= '{third}'"))
    wire = Wire(peer)
    wire.flow(0, 0, 0, drain=True)
    assert wire.answers() == [drained(0, 3)]
    wire.flow(0, 0, 5, drain=True)
    assert wire.answers(2)[1] == drained(5, 0)
    assert len(wire.frames(TRANSFER)) == 3


def test_credit_is_not_given_back_while_outcomes_are_missing(nodes: Any) -> None:
    """A receiver may take what comes back for the end of the log (ADR 4)."""
    node = nodes(max_unsettled=2)
    node.create()
    node.send("orders", b"a", b"b", b"c")
    peer = node.peer()
    receiver = peer.receiver("orders", filter=EARLIEST)
    wire = Wire(peer)
    wire.flow(0, 0, 5, drain=True)
    peer.pump(lambda: len(wire.frames(TRANSFER)) == 2)
    node.peer().receiver("orders/$info").take(1)  # the door has had a turn
    assert not wire.of_link
    receiver.arrived()
    assert wire.answers() == [drained(5, 0)]
    assert len(wire.frames(TRANSFER)) == 3


@pytest.mark.parametrize("address", ["orders/$info", "$management"])
def test_a_drain_of_a_link_that_is_asked(node: Any, address: str) -> None:
    node.create()
    peer = node.peer()
    peer.receiver(address)
    wire = Wire(peer)
    wire.flow(0, 0, 0, drain=True)
    assert wire.answers() == [drained(0, 0)]


def test_a_drain_of_a_link_that_waits_is_answered_after_its_attach(nodes: Any) -> None:
    node = nodes(unassigned="wait", unassigned_wait_ms=600_000)
    node.create()
    owner = node.peer().receiver("orders", properties={GROUP: "g"}, filter=EARLIEST)
    assert owner.properties[PARTITION] == "0"
    peer = node.peer()
    waiting = peer.attach_receiver("orders", properties={GROUP: "g"}, filter=EARLIEST)
    wire = Wire(peer)
    wire.flow(0, 0, 0, drain=True)
    peer.receiver("orders/$info")  # the door has read what came before
    assert waiting.pending and not wire.of_link
    owner.close()
    waiting.answered()
    assert [{**answer, "handle": 0} for answer in wire.answers()] == [drained(0, 0)]


def test_an_echo_is_answered(wire: Wire) -> None:
    wire.flow(0, 0, 0, echo=True)
    assert wire.answers() == [{**drained(0, 3), "drain": False}]
    wire.flow(0, 0, 1, echo=True)
    assert wire.answers(2)[1] == {**drained(1, 2), "drain": False}
    wire.flow(0, 1, 1, echo=True, drain=True)
    assert wire.answers(3)[2:] == [drained(2, 1)], "one answer does for both"
    assert wire.of_session == 0
    wire.flow(None, echo=True)
    wire.peer.pump(lambda: wire.of_session == 1)


def test_an_echo_of_a_sender_tells_its_credit(node: Any) -> None:
    node.create()
    peer = node.peer()
    sender = peer.sender("orders")
    peer.pump(lambda: sender.link.credit > 0)
    wire = Wire(peer)
    wire.flow(0, 0, None, echo=True)
    (answer,) = wire.answers()
    assert (answer["handle"], answer["delivery_count"], answer["credit"]) == (0, 0, sender.link.credit)
