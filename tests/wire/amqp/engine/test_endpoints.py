"""What each side may say of connections, sessions and links, in both roles, and what is said of a peer that may not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.engine.endpoints import TRANSITIONS, Condition, Endpoint, Half, Step
from spark_streams.wire.amqp.engine.engine import Engine, Options
from spark_streams.wire.amqp.engine.links import SETTLED, Attach, Link, Session
from spark_streams.wire.amqp.engine.session import Violation
from spark_streams.wire.amqp.engine.termini import FILTER, Terminus
from spark_streams.wire.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    encode_frame,
    performative_code,
    read_performative,
)
from spark_streams.wire.amqp.sasl import AMQP_HEADER
from spark_streams.wire.amqp.values import Described, Symbol, UByte, UInt, ULong, UShort
from tests.wire.amqp.engine.serving import OPENING, serving

CONFIG = AmqpConfig(max_frame_bytes=512, max_sessions=2)
HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"
CLOSED = encode_frame(0, CLOSE, [])
ENDED = encode_frame(0, END, [])


def opened(**fields: int) -> bytes:
    idle, channels = fields.get("idle_ms"), fields.get("channel_max")
    said = ["peer", None, None, None if channels is None else UShort(channels), None if idle is None else UInt(idle)]
    return AMQP_HEADER + encode_frame(0, OPEN, said)


def begun(channel: int = 0, remote: int | None = None, handle_max: int | None = None) -> bytes:
    most = None if handle_max is None else UInt(handle_max)
    answers = None if remote is None else UShort(remote)
    return encode_frame(channel, BEGIN, [answers, UInt(0), UInt(9), UInt(9), most])


def attached(name: str = "link", handle: int = 0, *, receives: bool = False, source: Any = None) -> bytes:
    return encode_frame(0, ATTACH, [name, UInt(handle), receives, *[None] * 2, source, *[None] * 3, UInt(0)])


def detached(handle: int = 0, *, closed: bool = True) -> bytes:
    return encode_frame(0, DETACH, [UInt(handle), closed])


def client(**options: Any) -> Engine:
    engine = Engine(replace(Options("ours", 512, 1 << 16), **options))
    engine.open()
    return engine


def changed(engine: Engine, *said: bytes) -> list[Endpoint]:
    return [each for each in engine.received(b"".join(said)) if each is not None]


def frames(written: bytes) -> list[tuple[int | None, list[Any]]]:
    """The performatives of frames, with the fields that are numbers or texts."""
    found = []
    while written:
        size = 8 if written[:4] == b"AMQP" else int.from_bytes(written[:4], "big")
        frame, written = written[:size], written[size:]
        code = None if frame[:4] == b"AMQP" else performative_code(frame)
        fields = [] if code is None else read_performative(frame)
        found.append((code, [fields.field(n, object, None) for n in range(len(fields.places))] if code else []))
    return found


def codes(written: bytes) -> list[int | None]:
    return [code for code, _ in frames(written)]


# --- the table


@pytest.mark.parametrize(("state", "step"), list(product(Half, Step)))
def test_each_side_opens_and_closes_once(state: Half, step: Step) -> None:
    endpoint = Endpoint("link 'l'")
    endpoint.ours = endpoint.theirs = state
    following = TRANSITIONS.get((state, step))
    assert endpoint.we(step) == (following is not None)
    assert endpoint.ours is (following or state)
    if following is not None:
        endpoint.they(step)
        assert endpoint.theirs is following and endpoint.ended == (following is Half.CLOSED)
        return
    with pytest.raises(Violation, match=rf"illegal-state: the peer {step.value} link 'l', which is {state.value}"):
        endpoint.they(step)


# --- what a peer may not say

AT_A_DOOR: dict[str, tuple[str, Iterable[bytes]]] = {
    "another header": ("amqp:connection:framing-error: the header is", [b"AMQP\x00\x00\x09\x01"]),
    "a session before open": ("amqp:illegal-state: the first frame is no open", [AMQP_HEADER, begun()]),
    "a close before open": ("amqp:illegal-state: the first frame is no open", [AMQP_HEADER, CLOSED]),
    "open twice": ("amqp:illegal-state: the peer opens the connection", [OPENING, encode_frame(0, OPEN, ["again"])]),
    "no performative": ("amqp:connection:framing-error: 0x19", [OPENING, encode_frame(0, 0x19, [])]),
    "above channel-max": ("amqp:connection:framing-error: channel 2 is above", [OPENING, begun(2)]),
    "above its own channel-max": ("channel-max", [opened(channel_max=0), begun(0), begun(1)]),
    "a channel twice": ("amqp:illegal-state: channel 0 has a session", [OPENING, begun(), begun()]),
    "an answer to nothing": ("amqp:illegal-state: the peer begins", [OPENING, begun(0, remote=0)]),
    "no session to attach in": ("amqp:not-allowed: no such channel: 0", [OPENING, attached()]),
    "no session to end": ("amqp:not-allowed: no such channel: 0", [OPENING, ENDED]),
    "a session that has ended": ("amqp:not-allowed: no such channel: 0", [OPENING, begun(), ENDED, attached()]),
    "a handle twice": ("amqp:session:handle-in-use: handle 0", [OPENING, begun(), attached(), attached("other")]),
    "a name twice": ("amqp:invalid-field: link name already", [OPENING, begun(), attached(), attached(handle=1)]),
    "more links than it takes": (
        "amqp:resource-limit-exceeded: the peer's handle-max is 0",
        [OPENING, begun(handle_max=0), attached(), attached("other", 1)],
    ),
    "detached twice": ("amqp:invalid-field: no such handle: 0", [OPENING, begun(), attached(), detached(), detached()]),
    "a flow of no link": (
        "amqp:invalid-field: no such handle: 7",
        [OPENING, begun(), encode_frame(0, FLOW, [UInt(0), UInt(9), UInt(0), UInt(9), UInt(7)])],
    ),
    "a transfer of no link": (
        "amqp:invalid-field: no such handle: 7",
        [OPENING, begun(), encode_frame(0, TRANSFER, [UInt(7), UInt(0), b"t"])],
    ),
    "a name that is no text": (
        "amqp:decode-error: field 0 of performative 0x12",
        [OPENING, begun(), encode_frame(0, ATTACH, [UInt(1), UInt(0), False])],
    ),
}


@pytest.mark.parametrize("name", AT_A_DOOR)
def test_a_peer_of_a_door_that_may_not_say_it(name: str) -> None:
    words, said = AT_A_DOOR[name]
    for step in (1 << 15, 1):
        engine, whole = serving(CONFIG), b"".join(said)
        with pytest.raises(Violation, match=words):
            for at in range(0, len(whole), step):
                changed(engine, whole[at : at + step])


def test_a_peer_of_a_client_begins_and_attaches_nothing() -> None:
    engine = client()
    changed(engine, OPENING)
    with pytest.raises(Violation, match="illegal-state: the peer begins a session of its own"):
        changed(engine, begun())
    engine = client()
    engine.session()
    changed(engine, OPENING, begun(5, remote=0))
    with pytest.raises(Violation, match="illegal-state: the peer attaches a link of its own"):
        changed(engine, encode_frame(5, ATTACH, ["link", UInt(0), False]))


def test_a_client_attaches_no_more_links_than_its_peer_takes() -> None:
    engine = client()
    session = engine.session()
    changed(engine, OPENING, begun(0, remote=0, handle_max=1))
    assert [session.sender(name).handle for name in "ab"] == [0, 1]
    with pytest.raises(Violation, match="resource-limit-exceeded: the peer's handle-max is 1, and a link needs 2"):
        session.sender("c")


# --- what is said


def test_a_door_answers_in_the_order_of_what_is_said() -> None:
    engine = serving(CONFIG)
    connection, session, link = changed(engine, OPENING, begun(1), attached_on(1))
    assert (connection.name, engine.container) == ("the connection", "peer")
    assert isinstance(session, Session) and isinstance(link, Link) and not link.sends
    link.attach(Attach(properties={"a": 1}))
    written = frames(engine.written())
    assert [code for code, _ in written] == [None, OPEN, BEGIN, ATTACH]
    assert written[2][1][0] == 1, "the channel that it answers"
    assert written[3][1][:3] == ["link", 0, True] and written[3][1][13] == {"a": 1}
    ended = changed(engine, encode_frame(1, END, []))
    assert ended == [session] and session.ended
    session.end()
    (closed,) = changed(engine, CLOSED)
    engine.close()
    assert closed.ended and codes(engine.written()) == [END, CLOSE]
    assert changed(engine, begun(1)) == [], "nothing is read after a close"


def attached_on(channel: int) -> bytes:
    return encode_frame(channel, ATTACH, ["link", UInt(0), False, *[None] * 6, UInt(0)])


def test_an_attach_that_is_not_answered_is_refused_and_its_name_and_handle_are_free_at_once() -> None:
    engine = serving(CONFIG)
    *_, first = changed(engine, OPENING, begun(), attached())
    engine.written()
    for again in range(3):
        assert isinstance(first, Link)
        first.detach(Condition("amqp:not-found", "no", {"why": "so"}))
        (_, attach), (_, detach) = frames(engine.written())
        assert (attach[0], attach[5], attach[6]) == ("link", None, None)
        assert detach[2].value == ["amqp:not-found", "no", {"why": "so"}]
        (first,) = changed(engine, attached(handle=again % 2))


@pytest.mark.parametrize("closed", [False, True])
def test_a_detach_is_answered_as_it_is_and_the_handle_is_used_again(closed: bool) -> None:
    engine = serving(CONFIG)
    *_, session, link = changed(engine, OPENING, begun(), attached())
    assert isinstance(link, Link) and isinstance(session, Session)
    link.attach(Attach())
    assert changed(engine, detached(closed=closed)) == [link] and link.closed is closed
    link.detach(closed=link.closed)
    assert frames(engine.written())[-1] == (DETACH, [0, closed])
    assert session.links == {} and session.heard == {}
    (other,) = changed(engine, attached())
    assert isinstance(other, Link) and other.handle == 0 and other is not link


def test_what_cannot_be_encoded_is_not_said_and_leaves_the_link_as_it_was() -> None:
    engine = serving(CONFIG)
    *_, link = changed(engine, OPENING, begun(), attached())
    engine.written()
    assert isinstance(link, Link)
    with pytest.raises(LocalProtocolError):
        link.attach(Attach(Terminus.source("a", filters={"é": 1})))
    assert engine.written() == b"" and link.ours is Half.NEW


@pytest.mark.parametrize("receives", [False, True])
def test_an_attach_with_numbers_that_are_none_costs_its_link(receives: bool) -> None:
    engine, texts = serving(CONFIG), ["a", "b"]
    odd = encode_frame(0, ATTACH, ["odd", UInt(0), receives, texts, None, None, None, None, None, texts])
    *_, link = changed(engine, OPENING, begun(), odd)
    assert isinstance(link, Link)
    with pytest.raises(RemoteProtocolError, match=r"field [39] of performative 0x12: list, expected"):
        link.attach(Attach(settles=SETTLED))
    link.detach(Condition("amqp:decode-error"))
    assert codes(engine.written())[-2:] == [ATTACH, DETACH]
    (again,) = changed(
        engine, detached(), encode_frame(0, ATTACH, ["odd", UInt(0), receives, texts, *[None] * 5, texts])
    )[1:]
    assert isinstance(again, Link)
    again.detach(Condition("amqp:not-found"))
    assert codes(engine.written()) == [ATTACH, DETACH], "a refusal reads nothing of it"


def test_nothing_follows_a_close_and_one_before_open_has_an_open() -> None:
    engine = Engine(Options("ours", 512, 1 << 16))
    engine.close(Condition("amqp:internal-error"))
    engine.session()
    assert codes(engine.written()) == [None, OPEN, CLOSE] and engine.tick(1.0) == 0.0


# --- time


def test_heartbeats_come_in_half_the_time_that_the_peer_names() -> None:
    engine = client()
    changed(engine, opened(idle_ms=8_000))
    engine.written()
    assert engine.tick(100.0) == 104.0 and engine.tick(103.0) == 104.0 and engine.written() == b""
    assert engine.tick(104.5) == 108.5 and engine.written() == HEARTBEAT
    assert engine.tick(108.5) == 112.5 and engine.written() == HEARTBEAT
    engine.session()
    engine.written()
    assert engine.tick(110.0) == 114.0, "whatever is said tells that we are there"


def test_a_peer_that_is_silent_for_the_idle_time_out_is_told_half_of_it_and_found() -> None:
    engine = client(idle_ms=6_000)
    assert frames(engine.written())[1][1][4] == 3_000
    changed(engine, OPENING)
    assert engine.tick(50.0) == 56.0 and engine.tick(55.0) == 56.0
    changed(engine, HEARTBEAT)
    assert engine.tick(56.5) == 62.5
    with pytest.raises(Violation, match="resource-limit-exceeded: no frame has come for 6 s, the idle time-out"):
        engine.tick(62.5)


# --- termini


def test_a_terminus_keeps_what_is_not_changed() -> None:
    described = Described(ULong(0x28), ["orders", UInt(1), None, None, None, None, None, {Symbol("a"): UByte(1)}])
    source = Terminus.of(described)
    assert source is not None and source.field(FILTER, dict, {}) == {"a": 1}
    assert source.but({FILTER: None}).encoded == Described(ULong(0x28), ["orders", UInt(1)])
    assert encode_value(source.encoded) == encode_value(described)
