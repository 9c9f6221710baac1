"""The rules that a peer can break, memory that stays bounded, and parts of messages of several links."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from spark_streams.errors import RemoteProtocolError
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.engine.session import IncomingSession, Violation
from spark_streams.wire.amqp.performatives import ATTACH, BEGIN, DETACH, FLOW, TRANSFER, encode_frame, read_performative
from spark_streams.wire.amqp.transfer_encode import Sender, split_message
from spark_streams.wire.amqp.values import UInt
from tests.wire.amqp.engine.serving import OPENING, serving

MAX_FRAME = 512
CONFIG = AmqpConfig(max_frame_bytes=MAX_FRAME, session_bytes=8 * MAX_FRAME, max_message_bytes=100_000)


class Links:
    """A peer with links at a door; each gets the next handle."""

    def __init__(self, count: int, config: AmqpConfig = CONFIG) -> None:
        self.engine = serving(config)
        self.links: list[IncomingDeliveries] = []
        self._attached: Link | None = None
        self.said(OPENING, encode_frame(0, BEGIN, [None, UInt(0), UInt(9), UInt(9)]))
        self.session = self.engine._sessions[0].counts
        for handle in range(count):
            self.attach(handle)

    def attach(self, handle: int) -> None:
        self.said(encode_frame(0, ATTACH, [f"link {handle}", UInt(handle), False, *[None] * 6, UInt(0)]))
        assert self._attached is not None
        deliveries = self._attached.incoming
        deliveries.owner = self
        self.links.append(deliveries)

    def said(self, *frames: bytes) -> None:
        for changed in self.engine.received(b"".join(frames)):
            if isinstance(changed, Link):
                self._attached = changed

    def taken(self, link: int) -> list[bytes]:
        messages = self.links[link].take(1_000, 1 << 30)
        return [messages.memory[a:b].tobytes() for a, b in zip(messages.starts, messages.ends, strict=True)]


def parts(number: int, body: bytes, handle: int = 0) -> list[bytes]:
    frames = split_message(memoryview(body), sender=Sender(0, handle), delivery_id=number, max_frame_bytes=MAX_FRAME)
    return [bytes(frame) for frame in frames]


def transfer(*fields: Any) -> bytes:
    return encode_frame(0, TRANSFER, [UInt(0), *fields])


BROKEN = {
    "more than the window": (
        [part for number in range(9) for part in parts(number, b"x")],
        "amqp:session:window-violation: incoming session window exceeded",
    ),
    "a number that does not follow": (
        [*parts(3, b"x"), *parts(5, b"x")],
        "amqp:session:invalid-field: sequencing error, expected delivery-id 4, got 5",
    ),
    "no number at first": (
        [transfer(None, b"t")],
        "amqp:invalid-field: delivery-id required on initial transfer of session",
    ),
    "no number of a message in parts": (
        [*parts(0, b"x"), transfer(None, b"t", None, None, True)],
        "amqp:invalid-field: delivery-id required for transfer",
    ),
    "another number in the middle": (
        [parts(0, b"x" * 900)[0], transfer(UInt(1), b"t")],
        "amqp:invalid-field: invalid delivery-id for a continuation transfer",
    ),
    "settled no longer": (
        [transfer(UInt(0), b"t", None, True, True), transfer(None, None, None, False)],
        "amqp:invalid-field: invalid transition from settled to unsettled",
    ),
    "a field of a wrong type": (
        [transfer(UInt(0), "no tag")],
        "amqp:decode-error: field 2 of performative 0x14: str, expected bytes",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told_with_its_condition(name: str) -> None:
    frames, words = BROKEN[name]
    with pytest.raises(Violation) as broken:
        Links(1).said(*frames)
    assert str(broken.value) == words == f"{broken.value.condition}: {broken.value.description}"
    assert isinstance(broken.value, RemoteProtocolError)


def test_what_came_before_a_fault_is_there() -> None:
    peer = Links(1)
    with pytest.raises(Violation):
        peer.said(*parts(0, b"one"), *parts(1, b"two"), *parts(7, b"wrong"), *parts(2, b"after it"))
    assert peer.taken(0) == [b"one", b"two"]


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_parts_of_two_links_between_each_other(cut: int) -> None:
    peer = Links(2, AmqpConfig(max_frame_bytes=MAX_FRAME, session_bytes=1 << 20))
    bodies = [[bytes([65 + number + 7 * handle]) * 2_000 for number in range(5)] for handle in range(2)]
    both = [[parts(2 * number + handle, bodies[handle][number], handle) for handle in range(2)] for number in range(5)]
    data = b"".join(b"".join(pair) for two in both for pair in itertools.zip_longest(*two, fillvalue=b""))
    for at in range(0, len(data), cut):
        peer.said(data[at : at + cut])
    assert [peer.taken(0), peer.taken(1)] == bodies


def test_a_link_that_is_attached_again_in_the_middle_of_a_message_begins_anew() -> None:
    peer = Links(1)
    first, second = parts(0, b"a" * 1_200), parts(1, b"b" * 1_200)
    peer.said(*first[:2], encode_frame(0, DETACH, [UInt(0), True]))
    peer.links[0].drop()
    peer.attach(0)
    peer.said(*second)
    assert peer.taken(1) == [b"b" * 1_200]
    # Its memory counts no more: as much can be under way again.
    peer.said(*parts(2, b"c" * 900)[:1])
    assert peer.taken(1) == []


def test_unfinished_messages_of_all_links_are_bounded_together() -> None:
    peer = Links(6, AmqpConfig(max_frame_bytes=MAX_FRAME, session_bytes=4 * MAX_FRAME, max_message_bytes=1 << 20))
    peer.session._window = 1_000
    with pytest.raises(Violation, match="unfinished messages of the connection have more than 2048 bytes") as broken:
        for number in range(6):
            peer.said(parts(number, b"x" * 900, number)[0])
    assert broken.value.condition == "amqp:resource-limit-exceeded"


def test_a_message_in_parts_is_not_changed_by_the_next_one() -> None:
    peer = Links(1)
    peer.said(*parts(0, b"a" * 1_200))
    peer.said(*parts(1, b"b" * 1_200))
    assert peer.taken(0) == [b"a" * 1_200, b"b" * 1_200]


def flow_of(session: IncomingSession) -> list[int | None]:
    """The first seven fields of the only flow that is due."""
    flow = read_performative(session.frames())
    assert flow.code == FLOW
    return [flow.number(field, None) for field in range(7)]


def test_the_window_shrinks_by_what_waits_and_never_below_what_was_announced() -> None:
    peer = Links(1)
    link, session = peer.links[0], peer.session
    link.handle = 3
    link.flow(10)
    assert flow_of(session) == [0, 8, 0, 0x7FFF_FFFF, 3, 0, 10]
    peer.said(*[part for number in range(5) for part in parts(number, b"x" * 400)])
    # Three frames of eight are left, and the waiting messages take the place of more than four others.
    assert not session.flow_due
    link.flow(0)
    assert flow_of(session) == [5, 3, 0, 0x7FFF_FFFF, 3, 5, 5]
    peer.taken(0)
    assert flow_of(session) == [5, 8, 0, 0x7FFF_FFFF, None, None, None]
    assert not session.due


def test_one_disposition_tells_a_run() -> None:
    session = IncomingSession(1 << 20, MAX_FRAME)
    link = IncomingDeliveries(session, 1 << 20)
    session.outgoing.channel, link.handle = 2, 0
    link.settle(np.array([0xFFFF_FFFE, 0xFFFF_FFFF, 0, -1, 5]))
    written, told = session.frames(), []
    while written:
        size = int.from_bytes(written[:4], "big")
        said = read_performative(written[:size])
        told.append((said.number(1, None), said.number(2, None)))
        written = written[size:]
    assert told == [(0xFFFF_FFFE, 0), (5, 5)]
    link.end()
    link.settle(np.array([6]))
    assert session.frames() == b"", "the peer has ended the link"
