"""What our engine sends, received by proton's engine, which also grants, drains and settles."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import proton
import pytest
from cproton_ffi import ffi, lib
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proton import symbol

from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.wire.amqp.engine.endpoints import Condition
from spark_streams.wire.amqp.engine.links import Attach, Link
from spark_streams.wire.amqp.engine.outgoing_deliveries import OutgoingDeliveries
from spark_streams.wire.amqp.engine.outgoing_frames import OutgoingFrames
from spark_streams.wire.amqp.engine.outgoing_session import ACCEPTED, Outcome, OutgoingSession
from spark_streams.wire.amqp.engine.session import Violation
from spark_streams.wire.amqp.performatives import CLOSE, TRANSFER, performative_code
from spark_streams.wire.columnar.interleave import Ranges
from tests.client.amqp.joined_engines import drained, push
from tests.examples import examples
from tests.server.amqp.raw_peer import EARLIEST, PARTITION
from tests.wire.amqp.engine.serving import serving

CONFIG = AmqpConfig(max_frame_bytes=2_048, max_message_bytes=1 << 20)
MAX_FRAME = 512
WINDOW = 6
"""Transfer frames that the receiver lets be under way on a session."""
LINKS = 4
"""The first two are on one session, the others on another; every other one is presettled."""
DONE, AGAIN, FAILED = (False, False), (True, False), (True, True)
"""Whether it is to be sent again, and counts as failed."""
GUARD_S = 120
OUTCOMES = {"accept": DONE, "reject": DONE, "release": AGAIN, "modify": AGAIN, "fail": FAILED, "settle": DONE}


class Door:
    """The door's side of a connection, with links that send what the test gives them."""

    def __init__(self) -> None:
        self.engine = serving(CONFIG)
        self.links: dict[str, OutgoingDeliveries] = {}
        self.queues: dict[str, list[tuple[int, bytes]]] = {}
        self.outcomes: dict[str, dict[int, tuple[bool, bool]]] = {}
        self.consumed = 0

    def push(self, data: bytes) -> None:
        for changed in self.engine.received(data):
            if not isinstance(changed, Link):
                continue
            if changed.ended:
                self.links.pop(changed.name).end()
                changed.detach()
            elif changed.sends:
                self._attached(changed)
            else:
                changed.attach(Attach(changed.source, changed.target))
                changed.incoming.owner = self
                changed.incoming.flow(1_000)

    def _attached(self, link: Link) -> None:
        deliveries = link.outgoing
        deliveries.owner, outcomes = self, self.outcomes.setdefault(link.name, {})

        def settled(origin: Any, offsets: Any, outcome: Outcome) -> None:
            assert origin == "here"
            for offset in offsets.tolist():
                assert offset not in outcomes
                outcomes[offset] = outcome.again, outcome.failed

        deliveries.settled = settled
        link.attach(Attach(link.source, link.target, link.settles, link.receiver_settles))
        self.links[link.name] = deliveries
        self.queues[link.name] = []

    def serve(self) -> None:
        for deliveries in list(self.engine.incoming.arrived):
            if not isinstance(deliveries, OutgoingDeliveries):
                self.consumed += len(deliveries.take(10_000, 1 << 30).ids)
        self.engine.incoming.arrived.clear()
        for name, link in self.links.items():
            queue = self.queues[name]
            link.go_on(1 << 20)
            while queue and link.room:
                taken = queue[: link.room]
                bodies = [body for _, body in taken]
                memory = np.frombuffer(b"".join(bodies) + b"\x00", np.uint8)
                ends = np.cumsum([len(body) for body in bodies], dtype=np.int64)
                starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
                middles = starts + (ends - starts) // 3
                pieces = Ranges(memory, starts, middles), Ranges(memory, middles, ends)
                count = link.send(*pieces, offsets=np.array([offset for offset, _ in taken]), origin="here")
                del queue[:count]
                link.go_on(1 << 20)
            if link.drain and not queue and not link.is_begun:
                link.give_back()

    def output(self) -> bytes:
        return b"".join(iter(self.engine.written, b""))


class Joined:
    """The door, and a peer that is all proton's; bytes move only in ``pump``."""

    def __init__(self) -> None:
        self.door = Door()
        self.transport, self.connection = proton.Transport(proton.Transport.CLIENT), proton.Connection()
        self.transport.max_frame_size = MAX_FRAME
        self.transport.bind(self.connection)
        self.connection.container = "peer"
        self.connection.open()
        self.sessions = [self.connection.session() for _ in range(2)]
        for session in self.sessions:
            session.incoming_capacity = WINDOW * MAX_FRAME
            session.open()
        self.sender = self.sessions[0].sender("sender")
        self.sender.open()
        self.links: list[Any] = []
        self.held: list[dict[int, Any]] = [{} for _ in range(LINKS)]
        self.bodies: list[list[bytes]] = [[] for _ in range(LINKS)]
        self._begun = [b""] * LINKS
        self._names = itertools.count()
        for number in range(LINKS):
            self.links.append(self._link(number))
        self.pump()

    def _link(self, number: int) -> Any:
        link = self.sessions[number // 2].receiver(f"link-{next(self._names)}")
        link.snd_settle_mode = proton.Link.SND_SETTLED if number % 2 else proton.Link.SND_UNSETTLED
        link.rcv_settle_mode = proton.Link.RCV_SECOND if number == 2 else proton.Link.RCV_FIRST
        link.open()
        return link

    def attach_again(self, number: int) -> None:
        self.links[number].close()
        self.pump()
        self.links[number].free()
        self.links[number] = self._link(number)
        self.held[number], self.bodies[number], self._begun[number] = {}, [], b""
        self.pump()

    def pump(self, step: int = 1 << 15) -> None:
        moved = True
        while moved:
            theirs = drained(self.transport)
            for at in range(0, len(theirs), step):
                self.door.push(theirs[at : at + step])
            self.door.serve()
            ours = self.door.output()
            push(self.transport, ours)
            assert self.transport.condition is None, self.transport.condition
            for number in range(len(self.links)):
                self._take(number)
            moved = bool(ours or theirs)

    def _take(self, number: int) -> None:
        memory, link = ffi.new("char[]", 4_096), self.links[number]._impl
        while delivery := lib.pn_link_current(link):
            while (count := lib.pn_link_recv(link, memory, len(memory))) > 0:
                self._begun[number] += bytes(ffi.buffer(memory, count))
            if lib.pn_delivery_partial(delivery):
                return
            wrapped = proton.Delivery.wrap(delivery)
            assert wrapped.settled == bool(number % 2)
            self.held[number][len(self.bodies[number])] = wrapped
            self.bodies[number].append(self._begun[number])
            self._begun[number] = b""
            lib.pn_link_advance(link)
            if number % 2:
                wrapped.settle()

    def decide(self, delivery: Any, what: str, *, settle: bool) -> None:
        if what == "fail":
            delivery.local.failed = True
        states = {"accept": delivery.ACCEPTED, "reject": delivery.REJECTED, "release": delivery.RELEASED}
        if what != "settle":
            delivery.update(states.get(what, delivery.MODIFIED))
        if settle or what == "settle":
            delivery.settle()


LINK = st.integers(0, LINKS - 1)
STEPS = st.one_of(
    st.tuples(st.just("grant"), LINK, st.integers(1, 30)),
    st.tuples(st.just("drain"), LINK, st.integers(1, 30)),
    st.tuples(
        st.just("send"), LINK, st.lists(st.one_of(st.integers(0, 400), st.integers(0, 5_000)), min_size=1, max_size=30)
    ),
    st.tuples(st.just("accept all"), LINK, st.none()),
    st.tuples(st.sampled_from(sorted(OUTCOMES)), LINK, st.lists(st.integers(0, 40), min_size=1, max_size=12)),
    st.tuples(st.just("produce"), LINK, st.integers(0, 900)),
    st.tuples(st.just("attach again"), LINK, st.none()),
)


@settings(max_examples=examples(300))
@given(st.lists(STEPS, max_size=25), st.sampled_from([1 << 15, 100, 1]))
@example(
    [("grant", 0, 30), ("send", 0, [5_000]), ("attach again", 0, None), ("grant", 0, 3), ("send", 0, [1])], 1 << 15
)
@example([("grant", 2, 1), ("send", 2, [0]), ("settle", 2, [0])], 1 << 15)
@example([("grant", 2, 30), ("send", 2, [1] * 20), ("accept all", 2, None), ("drain", 2, 5)], 1 << 15)
def test_protons_engine_receives_what_is_sent_and_what_becomes_of_it_is_heard(steps: list[Any], step: int) -> None:
    joined = Joined()
    door = joined.door
    given_to: list[list[bytes]] = [[] for _ in range(LINKS)]
    credit = [0] * LINKS
    outcomes: list[dict[int, tuple[bool, bool]]] = [{} for _ in range(LINKS)]
    unheard: set[int] = set()
    produced = 0
    for what, number, value in steps:
        link = joined.links[number]
        if what in ("grant", "drain"):
            credit[number] += value
            link.drain(value) if what == "drain" else link.flow(value)
            if what == "drain":
                joined.pump(step)
                assert joined.bodies[number] == given_to[number][: len(joined.bodies[number])]
                assert not link.draining()
                credit[number] -= credit[number] - len(joined.bodies[number])
                link.drained()
                link.drain_mode = False
        elif what == "send":
            bodies = [bytes([65 + n % 26]) * size for n, size in enumerate(value, len(given_to[number]))]
            door.queues[link.name] += list(enumerate(bodies, len(given_to[number])))
            given_to[number] += bodies
        elif what == "attach again":
            joined.attach_again(number)
            given_to[number], credit[number], outcomes[number] = [], 0, {}
            if number == 2:
                unheard.clear()
        elif what == "produce":
            joined.sender.delivery(str(produced))
            joined.sender.send(bytes(value))
            joined.sender.advance()
            produced += 1
        elif number % 2 == 0:
            left = [n for n in joined.held[number] if n not in outcomes[number]]
            chosen = left if value is None else [n for n in left if n in value]
            for n in chosen:
                outcome = what.split()[0]
                outcomes[number][n] = OUTCOMES[outcome]
                if outcome == "settle" and number == 2:
                    unheard.add(n)  # the peer has settled it itself
                joined.decide(joined.held[number][n], outcome, settle=number != 2)
        joined.pump(step)
        for n, each in enumerate(joined.links):
            sent = given_to[n][: credit[n]]
            assert joined.bodies[n] == sent
            assert door.outcomes[each.name] == outcomes[n]
            assert door.links[each.name].unsettled == (0 if n % 2 else len(sent) - len(outcomes[n]))
        settled = outcomes[2].keys() - unheard
        assert all(joined.held[2][n].settled for n in settled), "the peer hears that its outcomes are known"
        assert door.consumed == produced


def codes(data: bytes) -> list[int | None]:
    """The performatives of some frames."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(performative_code(data[:size]))
        data = data[size:]
    return found


def test_nothing_follows_the_close_for_a_fault() -> None:
    joined = Joined()
    door, link = joined.door, joined.links[0]
    link.flow(10)
    joined.pump()
    door.queues[link.name] += [(0, b"first")]
    door.serve()
    link.flow(10)
    too_small = bytes.fromhex("00000004 02 00 0000")
    with pytest.raises(Violation) as fault:
        door.push(drained(joined.transport) + too_small)
    door.engine.close(Condition(fault.value.condition, fault.value.description))
    door.queues[link.name] += [(1, b"second")]
    door.serve()
    written = codes(door.output())
    assert written[0] == TRANSFER and written[-1] == CLOSE
    assert written.count(TRANSFER) == 1


def test_links_that_share_a_window_both_get_on(node: Any) -> None:
    partitions = node.log.create_stream("orders", 2).partitions
    for partition in partitions.values():
        partition.append([b"\0Su\xb0" + (3_000).to_bytes(4, "big") + bytes(3_000)] * 200)
    peer = node.peer(max_frame_bytes=512)
    peer.session.incoming_capacity = 4 * 512
    receivers = [
        peer.receiver("orders", filter=[EARLIEST], properties={PARTITION: symbol(name)}) for name in partitions
    ]
    for receiver in receivers:
        receiver.link.flow(200)
    got = [0, 0]

    def enough() -> bool:
        for number, receiver in enumerate(receivers):
            while (delivery := receiver.link.current) is not None:
                receiver.link.recv(10_000)
                if delivery.partial:
                    break
                got[number] += 1
                delivery.settle()
        return min(got) >= 50

    peer.pump(enough, GUARD_S)
    assert max(got) < 200, "neither had to wait for the end of the other"


@pytest.mark.parametrize("first", [0, 0xFFFF_FF00])
def test_ranges_of_outcomes_are_those_of_serial_numbers(first: int) -> None:
    session = OutgoingSession()
    session.window = 1_000
    session.channel, session.next_id = 0, first
    heard: list[int] = []
    link = OutgoingDeliveries(session)
    link.open(0, OutgoingFrames(all_fields=False), presettled=False)
    link.settled = lambda origin, offsets, outcome: heard.extend(offsets.tolist())
    none = Ranges(np.zeros(1, np.uint8), np.zeros(300, np.int64), np.zeros(300, np.int64))
    link.credit = 300
    assert link.send(none, offsets=np.arange(300)) == 300

    def settle(low: int, high: int) -> list[int]:
        heard.clear()
        session.settle(first + low & 0xFFFF_FFFF, first + high & 0xFFFF_FFFF, ACCEPTED)
        return heard

    assert settle(10, 19) == list(range(10, 20))
    assert settle(15, 21) == [20, 21]
    assert settle(-5, 1) == [0, 1]
    assert settle(400, 500) == settle(300, 300) == settle(-9, -5) == []
    assert settle(30, 295) == list(range(30, 296)), "what is left is kept one by one from here on"
    assert [each.unsettled_offsets.tolist() for each in session.of(link)] == [
        [*range(2, 10), *range(22, 30), *range(296, 300)]
    ]
    assert settle(2, 25) == [*range(2, 10), *range(22, 26)]
    assert [each.unsettled_offsets.tolist() for each in session.of(link)] == [
        [n] for n in (*range(26, 30), *range(296, 300))
    ]
    assert settle(299, 400) == [299]
    assert settle(27, 27) == [27] and settle(27, 27) == []
    assert settle(9, 5) == [], "as proton reads it: the last one only"
    assert link.unsettled == 6
    session.forget(link)
    assert settle(0, 299) == []
