"""A sending link's deliveries, received by proton's engine, which also writes the flows and dispositions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import proton
import pytest
from cproton_ffi import ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.client.amqp.sent_messages import Refusal, SentMessages
from spark_streams.wire.amqp.engine.engine import Engine, Options
from spark_streams.wire.amqp.engine.links import Attach
from spark_streams.wire.amqp.engine.termini import Terminus
from tests.client.amqp.joined_engines import drained, push
from tests.examples import examples

MAX_FRAME = 512
WINDOW = 8
"""Transfer frames that the receiver lets be under way."""
NO = proton.Condition("amqp:not-allowed", "no")
OUTCOMES = {
    "accept": None,
    "reject": Refusal("rejected", "amqp:not-allowed", "no"),
    "release": Refusal("released", "", ""),
    "modify": Refusal("modified", "", ""),
    "settle": Refusal("settled without an outcome", "", ""),
}


class Joined:
    """Our sender, and a receiver that is all proton's; bytes move only in ``pump``."""

    def __init__(self, max_frame: int = MAX_FRAME, window: int = WINDOW) -> None:
        self.ours = Engine(Options("ours", 16_384, 64 << 20), 1 << 16)
        self.ours.open()
        sender = self.ours.session().sender("link")
        sender.attach(Attach(Terminus.source("link"), Terminus.target("address")))
        self.outgoing = SentMessages(sender)
        self.theirs, self.connection = proton.Transport(proton.Transport.SERVER), proton.Connection()
        self.theirs.max_frame_size = max_frame
        self.theirs.bind(self.connection)
        self.connection.container = "theirs"
        self.connection.open()
        self.held: list[Any] = []
        self.bodies: list[bytes] = []
        self._begun = b""
        self._window = window
        self.link: Any = None
        self.pump()
        self.session = self.connection.session_head(proton.Endpoint.LOCAL_UNINIT)
        self.session.incoming_capacity = window * max_frame
        self.session.open()
        self.link = self.connection.link_head(proton.Endpoint.LOCAL_UNINIT)
        self.link.open()
        self.pump()

    def pump(self, step: int = 1 << 15) -> None:
        moved = True
        while moved:
            ours = b"".join(iter(self.ours.written, b""))
            push(self.theirs, ours)
            if self.link is not None:
                self._take()
            theirs = drained(self.theirs)
            for at in range(0, len(theirs), step):
                part = theirs[at : at + step]
                self.ours.room[: len(part)] = part
                self.ours.received_into(len(part))
            moved = bool(ours or theirs)

    def _take(self) -> None:
        memory = ffi.new("char[]", 4_096)
        while delivery := lib.pn_link_current(self.link._impl):
            while (count := lib.pn_link_recv(self.link._impl, memory, len(memory))) > 0:
                self._begun += bytes(ffi.buffer(memory, count))
            if lib.pn_delivery_partial(delivery):
                return
            assert not lib.pn_delivery_settled(delivery)
            self.bodies.append(self._begun)
            self._begun = b""
            self.held.append(proton.Delivery.wrap(delivery))
            lib.pn_link_advance(self.link._impl)

    def send(self, sizes: list[int], first: int) -> list[bytes]:
        """Send as many messages of these sizes as there is room for; return them."""
        bodies = [bytes([65 + (first + n) % 26]) * size for n, size in enumerate(sizes[: self.outgoing.room])]
        memory = np.frombuffer(b"".join(bodies) + b"\x00", np.uint8)
        ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
        starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
        before = self.outgoing.sent
        if bodies:
            self.outgoing.send(memory, starts, ends)
        return bodies[: self.outgoing.sent - before]

    def decide(self, delivery: Any, what: str) -> None:
        if what == "reject":
            delivery.local.condition = NO
        states = {"accept": delivery.ACCEPTED, "reject": delivery.REJECTED, "release": delivery.RELEASED}
        if what != "settle":
            delivery.update(states.get(what, delivery.MODIFIED))
        delivery.settle()


STEPS = st.one_of(
    st.tuples(st.just("grant"), st.integers(1, 30)),
    st.tuples(
        st.just("send"), st.lists(st.one_of(st.integers(0, 400), st.integers(0, 9_000)), min_size=1, max_size=30)
    ),
    st.tuples(st.just("accept all"), st.none()),
    st.tuples(st.sampled_from(sorted({*OUTCOMES} | {"accept"})), st.integers(0, 40)),
    st.tuples(st.just("accept"), st.integers(0, 5)),
)


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=25), st.sampled_from([1 << 15, 100, 1]))
def test_protons_engine_receives_what_was_sent_and_its_outcomes_are_heard(steps: list[Any], step: int) -> None:
    joined = Joined()
    sent: list[bytes] = []
    outcomes: dict[int, str] = {}
    for what, value in steps:
        if what == "grant":
            joined.link.flow(value)
        elif what == "send":
            sent += joined.send(value, len(sent))
        else:
            open_ones = [n for n in range(len(joined.held)) if n not in outcomes]
            chosen = open_ones if what == "accept all" else open_ones[value : value + 1]
            for number in chosen:
                outcomes[number] = what.split()[0]
                joined.decide(joined.held[number], outcomes[number])
        joined.pump(step)
        done = next(n for n in itertools.count() if outcomes.get(n) != "accept")
        assert joined.bodies == sent
        assert (joined.outgoing.sent, joined.outgoing.done) == (len(sent), done)
        assert joined.outgoing.refusal == OUTCOMES.get(outcomes.get(done, ""))
        assert not joined.outgoing.pending
        assert joined.outgoing.room <= WINDOW


def test_protons_engine_reads_messages_of_another_format() -> None:
    joined = Joined()
    joined.link.flow(30)
    joined.pump()
    memory = np.frombuffer(b"abc" * 900, np.uint8)
    edges = np.array([0, 100, 575, 1_050, 1_530, 2_700])
    formats = np.array([0x8001_3700, 0, 0x8001_3700, 0, 0x8001_3700], np.uint32)
    at = 0
    while at < len(formats):
        before = joined.outgoing.sent
        joined.outgoing.send(memory, edges[at:-1], edges[at + 1 :], formats[at:])
        at += joined.outgoing.sent - before
        joined.pump()
    assert joined.bodies == [memory[a:b].tobytes() for a, b in itertools.pairwise(edges)]


def test_no_more_is_sent_than_credit_and_window_allow() -> None:
    joined = Joined()
    assert joined.outgoing.room == 0
    joined.link.flow(5)
    joined.pump()
    assert joined.outgoing.room == 5
    joined.send([10] * 3, 0)
    assert joined.outgoing.room == 2
    joined.link.flow(100)
    joined.pump()
    assert joined.outgoing.room == WINDOW


def test_an_accepted_delivery_that_the_peer_has_not_settled_is_settled() -> None:
    joined = Joined()
    joined.link.flow(2)
    joined.pump()
    joined.send([10, 10], 0)
    joined.pump()
    for delivery in joined.held:
        delivery.update(delivery.ACCEPTED)
    joined.pump()
    assert joined.outgoing.done == 2
    assert all(delivery.settled for delivery in joined.held)


def test_nothing_is_written_after_the_peer_has_detached() -> None:
    joined = Joined()
    joined.link.flow(2)
    joined.pump()
    joined.link.close()
    joined.pump()
    assert joined.outgoing.room == 0
    assert not joined.ours.written()


@pytest.mark.parametrize("first", [0xFFFF_FFF0, 0x7FFF_FFF0])
def test_delivery_ids_begin_again_after_the_largest_one(first: int) -> None:
    joined = Joined(window=64)
    joined.link.flow(40)
    joined.pump()
    # As after so many messages; the receiver takes the first id as it comes.
    deliveries = joined.outgoing._deliveries
    session = deliveries.session
    deliveries.sent = deliveries.delivery_count = session.next_id = session.next_transfer = joined.outgoing.done = first
    joined.send([10] * 40, 0)
    joined.pump()
    assert len(joined.bodies) == 40
    for delivery in joined.held:
        delivery.update(delivery.ACCEPTED)
        delivery.settle()
    joined.pump()
    assert joined.outgoing.done == first + 40
