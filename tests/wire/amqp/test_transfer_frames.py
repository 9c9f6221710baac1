"""Transfer frames in columns, beside the specification's bytes and proton's own encoder and decoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import proton
import pytest
from cproton_ffi import ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.wire.amqp.transfer_frames import Transfers, read_transfers, split_frames
from tests.examples import examples

MAX = 16_384


class Seen(NamedTuple):
    """One transfer, as either side sees it."""

    channel: int
    handle: int
    delivery_id: int
    tag: bytes
    settled: bool
    payload: bytes


def frame(performative: bytes, payload: bytes = b"", channel: int = 0, kind: bytes = b"\x02\x00") -> bytes:
    return struct.pack(">I", 8 + len(performative) + len(payload)) + kind + struct.pack(">H", channel) + (
        performative + payload
    )  # fmt: skip


def transfer(*fields: bytes, wide: bool = False) -> bytes:
    """A transfer's performative of encoded fields. Part 1 §1.6.22, part 2 §2.7.5."""
    items = b"".join(fields)
    if wide:
        return b"\x00\x53\x14\xd0" + struct.pack(">II", len(items) + 4, len(fields)) + items
    return b"\x00\x53\x14\xc0" + bytes([len(items) + 1, len(fields)]) + items


def columns(stream: bytes, rows: Sequence[int] | None = None) -> tuple[Transfers, list[Seen | None]]:
    """What the columns say of each frame, None of one that is not usual."""
    frames = split_frames(stream, 0, len(stream), MAX)
    if rows is not None:
        frames = frames._replace(starts=frames.starts[rows], ends=frames.ends[rows])
    found = read_transfers(memoryview(stream), frames)
    seen = [
        Seen(
            int(found.channel[row]),
            int(found.handle[row]),
            int(found.delivery_id[row]),
            stream[found.tag_start[row] : found.tag_end[row]],
            bool(found.settled[row]),
            stream[found.payload_start[row] : frames.ends[row]],
        )
        if found.usual[row]
        else None
        for row in range(len(frames.starts))
    ]
    return found, seen


USUAL = {
    "null message-format, settled": (
        b"\x43\x43\xa0\x01x\x40\x41",
        Seen(0, 0, 0, b"x", True, b"body"),
    ),
    "only what a first transfer has to have": (b"\x52\x07\x52\x09\xa0\x00", Seen(0, 7, 9, b"", False, b"body")),
    "four bytes each": (
        b"\x70\x00\x01\x00\x00\x70\xff\xff\xff\xff\xb0\x00\x00\x00\x02ab\x70\x00\x00\x00\x00\x56\x01\x56\x00",
        Seen(0, 65_536, 0xFFFF_FFFF, b"ab", True, b"body"),
    ),
    "every field": (
        b"\x43\x43\xa0\x01t\x43\x42\x42\x50\x00\x40\x42\x42\x41",
        Seen(0, 0, 0, b"t", False, b"body"),
    ),
    "null fields": (b"\x43\x43\xa0\x01t\x40\x40\x40\x40\x40\x40\x40\x40", Seen(0, 0, 0, b"t", False, b"body")),
}
FIELDS = {"null message-format, settled": 5, "only what a first transfer has to have": 3, "four bytes each": 6}
UNUSUAL = {
    "more": frame(transfer(b"\x43", b"\x43", b"\xa0\x01t", b"\x43", b"\x41", b"\x41")),
    "more in two bytes": frame(transfer(b"\x43", b"\x43", b"\xa0\x01t", b"\x43", b"\x41", b"\x56\x01")),
    "a boolean of two": frame(transfer(b"\x43", b"\x43", b"\xa0\x01t", b"\x43", b"\x56\x02")),
    "no delivery-id": frame(transfer(b"\x43", b"\x40", b"\xa0\x01t")),
    "no tag": frame(transfer(b"\x43", b"\x43", b"\x40")),
    "two fields": frame(transfer(b"\x43", b"\x43"), b"body, so that it is long enough"),
    "a state": frame(transfer(*[b"\x43"] * 2, b"\xa0\x01t", *[b"\x40"] * 4, b"\x00\x53\x24\x45")),
    "resume": frame(transfer(*[b"\x43"] * 2, b"\xa0\x01t", *[b"\x40"] * 5, b"\x41")),
    "aborted": frame(transfer(*[b"\x43"] * 2, b"\xa0\x01t", *[b"\x40"] * 6, b"\x41")),
    "twelve fields": frame(transfer(*[b"\x43"] * 2, b"\xa0\x01t", *[b"\x40"] * 9)),
    "a longer list than the frame": frame(b"\x00\x53\x14\xc0\x40\x03\x43\x43\xa0\x01t" + bytes(8)),
    "a shorter list than its fields": frame(b"\x00\x53\x14\xc0\x05\x03\x43\x43\xa0\x01t" + bytes(8)),
    "a longer list than its fields": frame(b"\x00\x53\x14\xc0\x07\x03\x43\x43\xa0\x01t" + bytes(8)),
    "another performative": frame(b"\x00\x53\x13\xc0\x06\x03\x43\x43\xa0\x01t" + bytes(8)),
    "an extended header": frame(bytes(4) + transfer(b"\x43", b"\x43", b"\xa0\x01t"), bytes(8), kind=b"\x03\x00"),
    "a SASL frame": frame(transfer(b"\x43", b"\x43", b"\xa0\x01t"), bytes(8), kind=b"\x02\x01"),
    "a heartbeat": frame(b""),
}


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("name", USUAL)
def test_usual_transfers_of_the_specification(name: str, copies: int) -> None:
    items, seen = USUAL[name]
    count = FIELDS.get(name, 11)
    for wide in (False, True):
        head = b"\xd0" + struct.pack(">II", len(items) + 4, count) if wide else bytes([0xC0, len(items) + 1, count])
        stream = frame(b"\x00\x53\x14" + head + items, b"body")
        assert columns(stream * copies)[1] == [seen] * copies


@pytest.mark.parametrize("copies", [1, 40])
@pytest.mark.parametrize("name", UNUSUAL)
def test_other_frames_are_left_to_the_caller(name: str, copies: int) -> None:
    items, seen = USUAL["every field"]
    usual = frame(b"\x00\x53\x14" + bytes([0xC0, len(items) + 1, 11]) + items, b"body")
    assert columns((UNUSUAL[name] + usual) * copies)[1] == [None, seen] * copies


# --- what proton writes


class Pair:
    """A sending and a receiving engine of proton's, with links ``senders`` and ``receivers``."""

    def __init__(self, sessions: int, links: int) -> None:
        self.engines = []
        for mode in (proton.Transport.SERVER, proton.Transport.CLIENT):
            engine, connection = proton.Transport(mode), proton.Connection()
            engine.max_frame_size = MAX
            engine.bind(connection)
            connection.open()
            self.engines.append((engine, connection))
        self.receivers = []
        for _ in range(sessions):
            session = self.engines[1][1].session()
            session.open()
            for each in range(links):
                link = session.receiver(f"link {each}")
                link.open()
                link.flow(1_000)
                self.receivers.append(link)
        self.pump()
        sender = self.engines[0][1]
        session = sender.session_head(0)
        while session is not None:
            session.open()
            session = session.next(0)
        self.senders = []
        link = sender.link_head(0)
        while link is not None:
            link.open()
            self.senders.append(link)
            link = link.next(0)
        self.pump()

    def pump(self) -> bytes:
        """Move bytes both ways until none are pending; return what the sender wrote."""
        written = b""
        moved = True
        while moved:
            moved = False
            for (source, _), (sink, _) in (self.engines, self.engines[::-1]):
                if (pending := min(source.pending(), sink.capacity())) > 0:
                    some = bytes(source.peek(pending))
                    sink.push(some)
                    source.pop(len(some))
                    written += some if source is self.engines[0][0] else b""
                    moved = True
        return written

    def push(self, some: bytes) -> None:
        """Let the receiver read bytes."""
        engine = self.engines[1][0]
        engine.push(some)
        assert engine.condition is None, engine.condition

    def take(self) -> Seen | None:
        """Take the one delivery that the receiver has, if it is whole."""
        for number, link in enumerate(self.receivers):
            delivery = lib.pn_link_current(link._impl)
            if delivery and not lib.pn_delivery_partial(delivery) and not lib.pn_delivery_aborted(delivery):
                got = ffi.new("char[]", MAX)
                count = lib.pn_link_recv(link._impl, got, MAX)
                tag = lib.pn_delivery_tag(delivery)
                settled = bool(lib.pn_delivery_settled(delivery))
                seen = Seen(
                    number, 0, 0, ffi.buffer(tag.start, tag.size)[:], settled, ffi.buffer(got, max(0, count))[:]
                )
                lib.pn_delivery_settle(delivery)
                return seen
        return None


tags = st.binary(min_size=1, max_size=32)
bodies = st.binary(max_size=40) | st.integers(1, 600).map(lambda n: b"x" * n)


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(st.integers(0, 3), tags, st.booleans(), bodies), min_size=1, max_size=60)
    | st.integers(1, 700).map(lambda n: [(0, b"%d" % tag, True, b"x" * 100) for tag in range(n)])
)
def test_what_proton_sends_is_usual(sent: list[tuple[int, bytes, bool, bytes]]) -> None:
    pair = Pair(sessions=2, links=2)
    ids = [0, 0]
    expected: list[list[Seen]] = [[], []]
    for number, tag, settled, body in sent:
        link, session = pair.senders[number], number // 2
        delivery = lib.pn_delivery(
            link._impl, ffi.new("pn_bytes_t *", {"size": len(tag), "start": (held := ffi.from_buffer(tag))})[0]
        )
        assert held
        lib.pn_link_send(link._impl, ffi.from_buffer(body), len(body))
        lib.pn_link_advance(link._impl)
        if settled:
            lib.pn_delivery_settle(delivery)
        expected[session].append(Seen(session, number % 2, ids[session], tag, settled, body))
        ids[session] += 1
    seen = [each for each in columns(pair.pump())[1] if each is not None]
    for session in (0, 1):
        assert [each for each in seen if each.channel == session] == expected[session]


# --- what proton reads


def uint(value: int, narrow: bool) -> bytes:
    if narrow and value == 0:
        return b"\x43"
    return bytes([0x52, value]) if narrow and value < 256 else b"\x70" + struct.pack(">I", value)


booleans = st.sampled_from([b"\x41", b"\x42", b"\x40", b"\x56\x00", b"\x56\x01"])
falses = st.sampled_from([b"\x42", b"\x40", b"\x56\x00"])
mostly_false = st.integers(0, 20).flatmap(lambda n: booleans if n == 0 else falses)


@st.composite
def transfers(draw: Any) -> tuple[int, bool, bool, bool, bytes, list[bytes], bytes]:
    """A link's number, three encodings, the tag, the fields behind it, and the payload."""
    tag = draw(tags)
    after = [
        draw(st.sampled_from([b"\x40", b"\x43", b"\x52\x01", b"\x70\x00\x00\x00\x00"])),
        draw(booleans),
        draw(falses),
        draw(st.sampled_from([b"\x40", b"\x40", b"\x50\x00"])),
        draw(st.sampled_from([b"\x40", b"\x40", b"\x40", b"\x00\x53\x24\x45"])),
        draw(falses),
        draw(mostly_false),
        draw(booleans),
    ]
    encodings = [draw(st.booleans()) for _ in range(3)]
    encoded = (b"\xa0" + bytes([len(tag)]) if encodings[2] else b"\xb0" + struct.pack(">I", len(tag))) + tag
    return draw(st.integers(0, 2)), *encodings, encoded, after[: draw(st.integers(0, 8))], draw(bodies)  # type: ignore[return-value]


@settings(max_examples=examples(300))
@given(st.lists(transfers(), min_size=1, max_size=40), st.integers(0, 0xFFFF_FFFF) | st.integers(0, 300))
def test_proton_reads_the_same(sent: list[Any], first: int) -> None:
    pair = Pair(sessions=1, links=3)
    frames, expected = [], []
    for row, (handle, narrow_handle, narrow_id, wide, tag, after, payload) in enumerate(sent):
        number = (first + row) & 0xFFFF_FFFF
        fields = (uint(handle, narrow_handle), uint(number, narrow_id), tag, *after)
        frames.append(frame(transfer(*fields, wide=wide), payload))
        pair.push(frames[-1])
        taken = pair.take()
        expected.append(taken and taken._replace(channel=0, handle=taken.channel, delivery_id=number))
        if taken is None:  # proton has an aborted delivery
            link = pair.receivers[handle]
            lib.pn_delivery_settle(lib.pn_link_current(link._impl))
    stateless = [len(each[5]) < 5 or each[5][4] == b"\x40" for each in sent]
    wanted = [seen if plain else None for seen, plain in zip(expected, stateless, strict=True)]
    assert columns(b"".join(frames))[1] == wanted


# --- any bytes


@settings(max_examples=examples(300))
@given(st.data())
def test_in_columns_and_one_by_one_are_the_same_for_damaged_frames(data: st.DataObject) -> None:
    layouts = data.draw(st.lists(transfers(), min_size=1, max_size=10))
    stream = bytearray()
    for row in range(data.draw(st.integers(1, 100))):
        handle, narrow_handle, narrow_id, wide, tag, after, payload = layouts[row % len(layouts)]
        fields = (uint(handle, narrow_handle), uint(row, narrow_id), tag, *after)
        stream += frame(transfer(*fields, wide=wide), payload)
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(stream) - 1), st.integers(0, 255)), max_size=8)):
        stream[at] = value
    frames = split_frames(bytes(stream), 0, len(stream), MAX)
    every = columns(bytes(stream))[1]
    assert len(every) == len(frames.starts)
    assert every == [each for row in range(len(every)) for each in columns(bytes(stream), [row])[1]]


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.integers(8, 300), st.sampled_from([1, 2, 30, 63, 64, 65, 200])), max_size=8),
    st.integers(0, 40),
    st.sampled_from([b"", b"\x00\x00\x00\x07" + bytes(20), b"\x00\x00\x40\x01" + bytes(20_000), b"\xff" * 9]),
)
def test_frames_follow_one_another(runs: list[tuple[int, int]], cut: int, fault: bytes) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    whole = b"".join(struct.pack(">I", size) + bytes(size - 4) for size in sizes)
    stream = b"start" + whole + fault
    end = len(stream) if fault else len(stream) - min(cut, len(whole))
    bounds = 5 + np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    bounds = bounds[bounds <= end]
    found = split_frames(stream, 5, end, MAX)
    assert found.stop == bounds[-1]
    assert found.starts.tolist() == bounds[:-1].tolist()
    assert found.ends.tolist() == bounds[1:].tolist()
