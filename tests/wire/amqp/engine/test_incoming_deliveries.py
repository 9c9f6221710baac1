"""A receiving link's deliveries, beside a receiver that is all proton's: the same for a reader, and for the sender."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import proton
from cproton_ffi import ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.wire.amqp.engine.messages import SETTLED
from spark_streams.wire.amqp.values import Described, ULong
from tests.client.amqp.joined_engines import WINDOW, Ours, Sender, drained, engine, exchange, push
from tests.examples import examples

MAX_FRAME = 512
LINKS = {"settled": True, "unsettled": False}
OUTCOMES = {"none": None, "accepted": 0x24, "released": 0x26}


class Link(NamedTuple):
    """What a reader sees of a link."""

    credit: int
    draining: bool
    returned: int


class Receiver(Protocol):
    """A receiver of several links."""

    def attach(self, name: str, *, settled: bool) -> Any: ...
    def push(self, data: bytes) -> None: ...
    def written(self) -> bytes: ...
    def flow(self, name: str, credit: int) -> None: ...
    def drain(self, name: str, on: bool) -> None: ...
    def take(self, name: str) -> list[bytes]: ...
    def settle(self, name: str, outcome: str) -> None: ...
    def seen(self, name: str) -> Link: ...


class Protons:
    """Proton's engine, and the calls by which the client read messages out of it."""

    def __init__(self) -> None:
        self.transport, self.connection = engine(proton.Transport.CLIENT, MAX_FRAME)
        self.links: dict[str, Any] = {}
        self._begun: dict[str, bytes] = {}
        self._held: dict[str, list[Any]] = {}

    def attach(self, name: str, *, settled: bool) -> None:
        session = self.connection.session()
        session.incoming_capacity = WINDOW * MAX_FRAME
        session.open()
        self.links[name] = link = session.receiver(name)
        link.snd_settle_mode = proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED
        link.open()
        self._begun[name], self._held[name] = b"", []

    def push(self, data: bytes) -> None:
        push(self.transport, data)

    def written(self) -> bytes:
        return drained(self.transport)

    def flow(self, name: str, credit: int) -> None:
        self.links[name].flow(credit)

    def drain(self, name: str, on: bool) -> None:
        self.links[name].drain_mode = on

    def take(self, name: str) -> list[bytes]:
        link, memory, taken = self.links[name]._impl, ffi.new("char[]", 4_096), []
        while delivery := lib.pn_link_current(link):
            count = 0
            while (count := lib.pn_link_recv(link, memory, len(memory))) > 0:
                self._begun[name] += bytes(ffi.buffer(memory, count))
            if count < 0 and count != lib.PN_EOS:
                lib.pn_delivery_settle(delivery)
            elif lib.pn_delivery_partial(delivery):
                break
            else:
                taken.append(self._begun[name])
                if LINKS[name]:
                    lib.pn_delivery_settle(delivery)
                else:
                    self._held[name].append(delivery)
                    lib.pn_link_advance(link)
            self._begun[name] = b""
        return taken

    def settle(self, name: str, outcome: str) -> None:
        for delivery in self._held[name]:
            if OUTCOMES[outcome] is not None:
                lib.pn_delivery_update(delivery, OUTCOMES[outcome])
            lib.pn_delivery_settle(delivery)
        self._held[name] = []

    def seen(self, name: str) -> Link:
        link = self.links[name]
        return Link(link.credit, link.draining(), link.drained())


class OursTaken(Ours):
    """Our receiver, for ``Receiver``."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAME)
        self._held: dict[str, list[Any]] = {name: [] for name in LINKS}

    def flow(self, name: str, credit: int) -> None:
        self.deliveries[name].flow(credit)

    def drain(self, name: str, on: bool) -> None:
        self.deliveries[name].drain = on

    def take(self, name: str) -> list[bytes]:
        deliveries, taken = self.deliveries[name], []
        while (run := deliveries.next_run()) is not None:
            taken += [run.memory[a:b].tobytes() for a, b in zip(run.starts, run.ends, strict=True)]
            assert ((run.ids == SETTLED) == LINKS[name]).all()
            self._held[name].append(run.ids)
            deliveries.taken(len(run.starts))
        return taken

    def settle(self, name: str, outcome: str) -> None:
        code = OUTCOMES[outcome]
        for ids in self._held[name]:
            self.deliveries[name].settle(ids, None if code is None else Described(ULong(code), []))
        self._held[name] = []

    def seen(self, name: str) -> Link:
        deliveries = self.deliveries[name]
        return Link(deliveries.granted, deliveries.draining, deliveries.take_returned())


class World:
    """A sender and a receiver, and what came."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver, self.sender = receiver, Sender(MAX_FRAME)
        for name, settled in LINKS.items():
            receiver.attach(name, settled=settled)
        self.came: dict[str, list[bytes]] = {name: [] for name in LINKS}
        self.pump(1 << 15)

    def pump(self, step: int) -> None:
        """Move bytes and take messages until nothing moves any more."""
        while True:
            exchange(self.sender, self.receiver.written, self.receiver.push, step)
            before = sum(map(len, self.came.values()))
            for name in LINKS:
                self.came[name] += self.receiver.take(name)
            back = self.receiver.written()
            if not back and sum(map(len, self.came.values())) == before:
                return
            push(self.sender.transport, back)

    def do(self, what: str, name: str, size: int, step: int) -> None:
        sender = self.sender
        if what == "send":
            sender.send(name, bytes([65 + size % 26]) * (1 + size), settled=LINKS[name])
        elif what == "send many":
            sender.send(name, *[b"%05d" % n * 30 for n in range(size % 30)], settled=LINKS[name])
        elif what == "begin" and sender.links[name].credit > 0:
            sender.begin(name, bytes([97 + size % 26]) * (1 + size))
        elif what == "finish" and name in sender.begun:
            sender.finish(name, settled=LINKS[name])
        elif what == "abort" and name in sender.begun:
            sender.abort(name)
        elif what == "give back" and not sender.links[name].queued and name not in sender.begun:
            sender.links[name].drained()
        elif what == "grant":
            self.receiver.flow(name, size % 40)
        elif what in ("drain", "end drain"):
            self.receiver.drain(name, what == "drain")
        elif what in OUTCOMES:
            self.receiver.settle(name, what)
        self.pump(step)

    def seen(self) -> dict[str, Any]:
        """Return what both sides know, at rest."""
        return {
            name: (self.came[name], self.receiver.seen(name), link.credit, link.queued, self.sender.outcomes(name))
            for name, link in self.sender.links.items()
        }


STEPS = st.tuples(
    st.sampled_from(
        [
            *["send", "begin", "grant"] * 2,
            "send many",
            "finish",
            "abort",
            "give back",
            "drain",
            "drain no more",
            *OUTCOMES,
        ]
    ),
    st.sampled_from([*LINKS]),
    st.one_of(st.integers(0, 300), st.integers(0, 10_000)),
    st.sampled_from([1 << 15, 1 << 15, 511, 37, 1]),
)


@settings(max_examples=examples(400))
@given(st.lists(STEPS, max_size=25))
def test_a_reader_and_the_sender_see_what_they_see_with_a_receiver_of_protons(
    steps: list[tuple[str, str, int, int]],
) -> None:
    ours, protons = World(OursTaken()), World(Protons())
    for step in steps:
        for world in (ours, protons):
            world.do(*step)
        assert ours.seen() == protons.seen(), step
