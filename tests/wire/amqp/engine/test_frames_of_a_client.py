"""Single frames of a peer, well formed and not, split anywhere: what a link of ours makes of them, and what proton."""

from __future__ import annotations

import struct
from collections.abc import Callable

import proton
import pytest
from cproton_ffi import ffi, lib
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from tests.client.amqp.joined_engines import Ours, Sender, drained, engine, exchange, push
from tests.examples import examples

MAX_FRAME = 512
WINDOW = 8
Answer = list[bytes] | str


def frame(performative: bytes, payload: bytes = b"", *, channel: int = 0, head: bytes = b"\x02\x00") -> bytes:
    """A frame. Part 2 §2.3.1."""
    size = 8 + len(performative) + len(payload)
    return struct.pack(">I", size) + head + struct.pack(">H", channel) + performative + payload


def listed(*fields: bytes, code: bytes = b"\x00\x53\x14") -> bytes:
    """A performative, of a transfer if nothing else is said. Part 1 §1.6.22, part 2 §2.7.5."""
    items = b"".join(fields)
    return code + b"\xc0" + bytes([len(items) + 1, len(fields)]) + items


H, ID, TAG, NULL, TRUE, FALSE = b"\x43", b"\x43", b"\xa0\x01t", b"\x40", b"\x41", b"\x42"


def number(value: int) -> bytes:
    return b"\x52" + bytes([value])


def whole(number_: int, payload: bytes = b"x" * 30) -> bytes:
    """A usual transfer."""
    return frame(listed(H, number(number_), TAG, NULL, TRUE), payload)


BEGIN_PART = listed(H, ID, TAG, NULL, FALSE, TRUE)
GOOD: dict[str, tuple[bytes, list[bytes]]] = {
    "whole": (whole(0, b"one") + whole(1, b"two"), [b"one", b"two"]),
    "parts": (frame(BEGIN_PART, b"on") + frame(listed(H, NULL, NULL, NULL, TRUE), b"e"), [b"one"]),
    "parts that repeat the number": (frame(BEGIN_PART, b"on") + whole(0, b"e"), [b"one"]),
    "parts, then others": (frame(BEGIN_PART, b"on") + whole(0, b"e") + whole(1, b"two"), [b"one", b"two"]),
    "the last part is empty": (frame(BEGIN_PART, b"one") + frame(listed(H)), [b"one"]),
    "aborted at once": (frame(listed(H, ID, TAG, NULL, TRUE, *[NULL] * 4, TRUE)) + whole(1, b"two"), [b"two"]),
    "aborted later": (
        frame(BEGIN_PART, b"on") + frame(listed(H, *[NULL] * 8, TRUE)) + whole(1, b"two"),
        [b"two"],
    ),
    "heartbeats": (frame(b"") + whole(0, b"one") + frame(b"") * 2 + whole(1, b"two"), [b"one", b"two"]),
    "an extended header": (frame(bytes(4) + listed(H, ID, TAG, NULL, TRUE), b"one", head=b"\x03\x00"), [b"one"]),
    "the descriptor in nine bytes": (
        frame(listed(H, ID, TAG, NULL, TRUE, code=b"\x00\x80" + bytes(7) + b"\x14"), b"one"),
        [b"one"],
    ),
    "a wide list": (
        frame(b"\x00\x53\x14\xd0\x00\x00\x00\x0b\x00\x00\x00\x05" + H + ID + TAG + NULL + TRUE, b"one"),
        [b"one"],
    ),
    "settled in two bytes": (frame(listed(H, ID, TAG, NULL, b"\x56\x01"), b"one"), [b"one"]),
    "wide numbers": (frame(listed(b"\x70" + bytes(4), b"\x70" + bytes(4), TAG, NULL, TRUE), b"one"), [b"one"]),
    "a state": (frame(listed(H, ID, TAG, NULL, TRUE, NULL, NULL, b"\x00\x53\x24\x45"), b"one"), [b"one"]),
    "a flow between": (
        whole(0, b"one")
        + frame(listed(number(0), number(9), number(1), number(9), H, number(1), number(9), code=b"\x00\x53\x13"))
        + whole(1, b"two"),
        [b"one", b"two"],
    ),
    "a disposition of the sender": (
        whole(0, b"one") + frame(listed(FALSE, number(0), NULL, TRUE, code=b"\x00\x53\x15")) + whole(1, b"two"),
        [b"one", b"two"],
    ),
    "a flow of the session only": (
        frame(listed(number(0), number(9), number(0), number(9), code=b"\x00\x53\x13")) + whole(0, b"one"),
        [b"one"],
    ),
    "as many as the window": (b"".join(whole(n, b"%d" % n) for n in range(WINDOW)), [b"%d" % n for n in range(WINDOW)]),
}
BROKEN = {
    "a number is missing": frame(listed(H, NULL, TAG, NULL, TRUE), b"one"),
    "a number out of sequence": whole(0) + whole(2),
    "a number again": whole(0) + whole(0),
    "another number in the middle": frame(BEGIN_PART, b"on") + whole(1, b"e"),
    "another link": frame(listed(number(7), ID, TAG, NULL, TRUE), b"one"),
    "another session": whole(0).replace(b"\x02\x00\x00\x00", b"\x02\x00\x00\x09"),
    "more than the window": b"".join(whole(n) for n in range(WINDOW + 1)),
    "larger than allowed": whole(0, bytes(MAX_FRAME)),
    "far larger than allowed": b"\xff\xff\xff\xff\x02\x00\x00\x00" + bytes(40),
    "smaller than its head": b"\x00\x00\x00\x07\x02\x00\x00" + whole(0),
    "no size": bytes(8) + whole(0),
    "a header in the head": frame(listed(H, ID, TAG), b"one", head=b"\x01\x00"),
    "a header beyond the frame": frame(listed(H, ID, TAG), b"one", head=b"\xff\x00"),
    "no performative": frame(b"garbage, no performative at all"),
    "not even a descriptor": frame(b"\x00"),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}
TOLERATED = {
    "no list": frame(b"\x00\x53\x14\xa1\x03abc" + bytes(20)),
    "a list that ends in a field": frame(b"\x00\x53\x14\xc0\x04\x05\x43\x43\xa0\x09" + bytes(4)),
    "a list beyond the frame": frame(b"\x00\x53\x14\xc0\xff\x05\x43\x43\xa0\x01t" + bytes(4)),
    "a list with more fields than it has": frame(b"\x00\x53\x14\xc0\x06\x09\x43\x43\xa0\x01t" + bytes(4)),
    "settled is a number": frame(listed(H, ID, TAG, NULL, number(1)), b"one"),
    "the number is a text": frame(listed(H, b"\xa1\x01x", TAG, NULL, TRUE), b"one"),
    "the handle is a text": frame(listed(b"\xa1\x01x", ID, TAG, NULL, TRUE), b"one"),
    "an unknown type": frame(listed(H, ID, TAG, b"\x01", TRUE), b"one"),
}
"""Frames that break the specification, which proton may read as something else; a link of ours refuses them."""


def ours_of(stream: bytes, step: int = 1 << 15) -> Answer:
    """What a link of ours makes of frames after its attach: the messages, or why not."""
    sender, receiver = Sender(MAX_FRAME), Ours(MAX_FRAME, WINDOW)
    deliveries = receiver.attach("link")
    exchange(sender, receiver.written, receiver.push)
    deliveries.flow(20)
    exchange(sender, receiver.written, receiver.push)
    try:
        for at in range(0, len(stream), step):
            receiver.push(stream[at : at + step])
    except (RemoteProtocolError, AssertionError):
        return "refused"
    seen: list[bytes] = []
    while (run := deliveries.next_run()) is not None:
        seen += [run.memory[a:b].tobytes() for a, b in zip(run.starts, run.ends, strict=True)]
        deliveries.taken(len(run.starts))
    return seen


def protons_of(stream: bytes) -> Answer:
    """What proton's engine makes of them."""
    sender = Sender(MAX_FRAME)
    transport, connection = engine(proton.Transport.CLIENT, MAX_FRAME)
    session = connection.session()
    session.incoming_capacity = WINDOW * MAX_FRAME
    session.open()
    link = session.receiver("link")
    link.snd_settle_mode = proton.Link.SND_SETTLED
    link.open()
    pushed: Callable[[bytes], None] = lambda data: push(transport, data)  # noqa: E731
    exchange(sender, lambda: drained(transport), pushed)
    link.flow(20)
    exchange(sender, lambda: drained(transport), pushed)
    try:
        push(transport, stream)
    except AssertionError:
        return "refused"
    if transport.capacity() < 0:
        return "refused"
    seen, memory = [], ffi.new("char[]", 65_536)
    while (delivery := lib.pn_link_current(link._impl)) and not lib.pn_delivery_partial(delivery):
        count = lib.pn_link_recv(link._impl, memory, len(memory))
        if count >= 0 or count == lib.PN_EOS:
            seen.append(bytes(ffi.buffer(memory, max(count, 0))))
        lib.pn_delivery_settle(delivery)
    return seen


@pytest.mark.parametrize("name", GOOD)
def test_frames_of_the_specification(name: str) -> None:
    stream, messages = GOOD[name]
    assert protons_of(stream) == messages
    for step in (1 << 15, 1, 7):
        assert ours_of(stream, step) == messages


@pytest.mark.parametrize("name", BROKEN)
def test_frames_that_break_a_rule_are_refused_as_proton_refuses_them(name: str) -> None:
    assert protons_of(BROKEN[name]) == "refused"
    for step in (1 << 15, 1, 7):
        assert ours_of(BROKEN[name], step) == "refused"


@pytest.mark.parametrize("name", TOLERATED)
def test_frames_with_malformed_performatives_are_refused(name: str) -> None:
    for step in (1 << 15, 1):
        assert ours_of(TOLERATED[name], step) == "refused"


BYTES = st.binary(min_size=1, max_size=3)


@settings(max_examples=examples(600))
@given(st.sampled_from([*GOOD]), st.integers(0, 10_000), BYTES, st.booleans(), st.integers(1, 100))
def test_changed_bytes_are_refused_or_mean_what_they_mean_to_proton(
    name: str, at: int, put: bytes, inserts: bool, step: int
) -> None:
    stream = GOOD[name][0]
    at %= len(stream)
    changed = stream[:at] + put + stream[at + (0 if inserts else len(put)) :]
    answer = ours_of(changed, step)
    assert answer in ("refused", protons_of(changed))
    assert ours_of(changed) == answer


def test_an_incomplete_frame_moves_to_the_beginning() -> None:
    sender, receiver = Sender(MAX_FRAME), Ours(MAX_FRAME, WINDOW)
    deliveries = receiver.attach("link")
    exchange(sender, receiver.written, receiver.push)
    deliveries.flow(200)
    stream = b"".join(whole(n, b"%d" % n * 100) for n in range(WINDOW))
    for at in range(0, len(stream), 97):
        receiver.push(stream[at : at + 97])
        assert len(receiver.engine.room) > 1 << 16
    taken = deliveries.take(WINDOW, 1 << 20)
    assert [bytes(taken.memory[a:b]) for a, b in zip(taken.starts, taken.ends, strict=True)] == [
        b"%d" % n * 100 for n in range(WINDOW)
    ]
