"""What our engine makes of transfers, beside proton's own engine: the same messages, and the same error."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import proton
from cproton_ffi import ffi, lib
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.wire.amqp.engine.incoming_deliveries import IncomingDeliveries
from spark_streams.wire.amqp.engine.links import Attach, Link
from spark_streams.wire.amqp.engine.messages import SETTLED
from spark_streams.wire.amqp.engine.session import Violation
from tests.examples import examples
from tests.wire.amqp.engine.serving import serving

CONFIG = AmqpConfig(max_frame_bytes=2_048, max_message_bytes=1 << 20)
LINKS = ((0, 0), (0, 1), (1, 0))
"""Channel and handle of each link."""
Message = tuple[bytes, bool]


class Seen(NamedTuple):
    """What came of some bytes: the messages of each link and whether they were settled, and the error's condition."""

    messages: dict[tuple[int, int], list[Message]]
    condition: str | None


def opening() -> list[bytes]:
    """What a peer says first, in proton's words: header, open, begins and attaches."""
    transport, connection = proton.Transport(proton.Transport.CLIENT), proton.Connection()
    transport.bind(connection)
    connection.container = "peer"
    connection.open()
    sessions = [connection.session() for _ in range(2)]
    for session in sessions:
        session.open()
    for number, (channel, _) in enumerate(LINKS):
        sessions[channel].sender(f"link-{number}").open()
    said = []
    while (pending := transport.pending()) > 0:
        said.append(bytes(transport.peek(pending)))
        transport.pop(pending)
    return said


OPENING = b"".join(opening())


class Reference:
    """Proton's engine, and the calls by which the door read messages out of it."""

    def __init__(self) -> None:
        self.transport, self.connection = proton.Transport(proton.Transport.SERVER), proton.Connection()
        self.transport.max_frame_size = CONFIG.max_frame_bytes
        self.transport.bind(self.connection)
        self.collector = proton.Collector()
        self.connection.collect(self.collector)
        self.connection.open()
        self.links: dict[tuple[int, int], Any] = {}
        self._begun: dict[tuple[int, int], bytes] = {}
        self.messages: dict[tuple[int, int], list[Message]] = {place: [] for place in LINKS}

    def push(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            took = lib.pn_transport_push(self.transport._impl, ffi.from_buffer(data) + at, len(data) - at)
            if took <= 0:
                break
            at += took
        while (event := self.collector.peek()) is not None:
            if event.type == proton.Event.SESSION_REMOTE_OPEN:
                event.session.incoming_capacity = CONFIG.session_bytes
                event.session.open()
            elif event.type == proton.Event.LINK_REMOTE_OPEN:
                self.links[LINKS[len(self.links)]] = event.link
                event.link.open()
                event.link.flow(1_000)
            elif event.type == proton.Event.LINK_REMOTE_CLOSE:
                self.take()
                self.links = {place: link for place, link in self.links.items() if link != event.link}
                event.link.close()
                event.link.free()
            self.collector.pop()
        self.take()
        while (pending := self.transport.pending()) > 0:
            self.transport.pop(pending)

    def take(self) -> None:
        memory = ffi.new("char[]", 4_096)
        for place, wrapped in self.links.items():
            link = wrapped._impl
            while delivery := lib.pn_link_current(link):
                if lib.pn_delivery_aborted(delivery):
                    self._begun.pop(place, None)
                    lib.pn_delivery_settle(delivery)
                    continue
                body = self._begun.pop(place, b"")
                while (count := lib.pn_link_recv(link, memory, len(memory))) > 0:
                    body += bytes(ffi.buffer(memory, count))
                if lib.pn_delivery_partial(delivery):
                    self._begun[place] = body
                    break
                self.messages[place].append((body, bool(lib.pn_delivery_settled(delivery))))
                lib.pn_link_advance(link)

    def seen(self) -> Seen:
        condition = self.transport.condition
        return Seen(self.messages, None if condition is None else condition.name)


class Ours:
    """What our engine does with the same bytes."""

    def __init__(self) -> None:
        self.engine = serving(CONFIG)
        self.links: dict[tuple[int, int], IncomingDeliveries] = {}
        self.messages: dict[tuple[int, int], list[Message]] = {place: [] for place in LINKS}
        self.violation: str | None = None

    def push(self, data: bytes) -> None:
        if self.violation is not None:
            return
        try:
            for changed in self.engine.received(data):
                if not isinstance(changed, Link):
                    continue
                if changed.ended:
                    self._take()
                    changed.detach()
                    continue
                changed.attach(Attach(changed.source, changed.target))
                self.links[LINKS[len(self.links)]] = changed.incoming
                changed.incoming.owner = object()
                changed.incoming.flow(1_000)
        except Violation as fault:
            self.violation = fault.condition
        self._take()

    def _take(self) -> None:
        for place, deliveries in self.links.items():
            memory, starts, ends, ids, _ = deliveries.take(10_000, 1 << 30)
            for start, end, number in zip(starts, ends, ids, strict=True):
                self.messages[place].append((memory[start:end].tobytes(), bool(number == SETTLED)))

    def seen(self) -> Seen:
        return Seen(self.messages, self.violation)


# --- frames by hand, part 1 §1.6, part 2 §2.3 and §2.7


def frame(channel: int, performative: bytes, payload: bytes = b"", extended: bytes = b"") -> bytes:
    size = 8 + len(extended) + len(performative) + len(payload)
    head = struct.pack(">IBBH", size, 2 + len(extended) // 4, 0, channel)
    return head + extended + performative + payload


def performative(code: int, fields: list[bytes], style: int) -> bytes:
    items = b"".join(fields)
    descriptor = (bytes([0x53, code]), b"\x80" + code.to_bytes(8, "big"))[style // 2 % 2]
    if style % 2:
        return b"\x00" + descriptor + b"\xd0" + struct.pack(">II", len(items) + 4, len(fields)) + items
    return b"\x00" + descriptor + b"\xc0" + bytes([len(items) + 1, len(fields)]) + items


def uint(number: int | None, style: int) -> bytes:
    if number is None:
        return b"\x40"
    if style % 3 == 0 and number == 0:
        return b"\x43"
    return b"\x52" + bytes([number]) if style % 3 == 1 and number < 256 else b"\x70" + struct.pack(">I", number)


BOOLEANS = {None: (b"\x40", b"\x40"), False: (b"\x42", b"\x56\x00"), True: (b"\x41", b"\x56\x01")}


class Peer:
    """A sender that writes its frames by hand, and knows what it has begun."""

    def __init__(self) -> None:
        self.next_id = {0: 0xFFFF_FFFE, 1: 7}
        self.begun: dict[tuple[int, int], int] = {}
        self.multiple: set[tuple[int, int]] = set()

    def transfer(self, place: tuple[int, int], what: str, size: int, style: int) -> bytes:
        channel, handle = place
        settled = (None, False, True)[style % 3] if what != "unsettled" else False
        more: bool | None = what in ("begin", "go on", "settle") or (False if style % 2 else None)
        aborted = True if what == "abort" else None
        settled = True if what == "settle" else settled
        number: int | None
        if place not in self.begun:
            number = self.next_id[channel]
            self.next_id[channel] = number + 1 & 0xFFFF_FFFF
            if more:
                self.begun[place] = number
                self.multiple.add(place)
        else:
            number = self.begun[place] if style % 4 else None
            if not more:
                del self.begun[place]
        if what == "wrong id":
            number = self.next_id[channel] + 5 & 0xFFFF_FFFF
        elif what == "no id" and place not in self.multiple:
            # proton 0.40 takes a message without an id for the rest of an earlier one in several frames, and drops it.
            number = None
        elif what == "unknown handle":
            handle = 77
        tag = b"\xa0\x02" + struct.pack(">H", style)
        flags = [BOOLEANS[each][style // 3 % 2] for each in (settled, more)]
        fields = [uint(handle, style), uint(number, style // 2), tag, b"\x43", *flags, b"\x40", b"\x40", b"\x40"]
        fields += [BOOLEANS[aborted][style % 2]] if aborted or style % 5 == 0 else []
        payload = bytes([65 + style % 26]) * size
        return frame(channel, performative(0x14, fields, style // 4), payload, b"\x00" * 4 if style % 11 == 10 else b"")

    def say(self, place: tuple[int, int], what: str, size: int, style: int) -> bytes:
        channel, handle = place
        if what == "whole many":
            return b"".join(self.transfer(place, "whole", size % 50, 12) for _ in range(20 + size % 60))
        if what == "flow":
            session = [uint(0, 0), uint(100, 1), uint(0, 0), uint(100, 1)]
            return frame(channel, performative(0x13, [*session, uint(handle, 0), uint(0, 0), uint(0, 0)], style))
        if what == "empty":
            return frame(channel, b"")
        if what == "detach":
            self.begun.pop(place, None)
            return frame(channel, performative(0x16, [uint(handle, style), b"\x41"], style))
        return self.transfer(place, what, size, style)


STEPS = st.tuples(
    st.sampled_from(LINKS),
    st.sampled_from(
        ["whole"] * 4
        + ["whole many", "whole many", "begin", "begin", "go on", "end", "end", "abort", "settle", "flow", "empty"]
        + ["unsettled", "wrong id", "no id", "unknown handle", "detach"]
    ),
    st.integers(0, 400),
    st.integers(0, 131),
)


@settings(max_examples=examples(500))
@given(st.lists(STEPS, max_size=30), st.sampled_from([1, 7, 100, 1 << 20]))
@example([((0, 0), "detach", 0, 0), ((0, 0), "whole", 0, 0), ((0, 1), "whole", 0, 0)], 100)
def test_the_messages_and_the_error_are_those_of_protons_engine(steps: list[Any], cut: int) -> None:
    peer, ours, reference = Peer(), Ours(), Reference()
    for world in (ours, reference):
        world.push(OPENING)
    data = b"".join(peer.say(*step) for step in steps)
    for at in range(0, len(data), cut):
        ours.push(data[at : at + cut])
        reference.push(data[at : at + cut])
    assert ours.seen() == reference.seen()
