"""Opening a connection: what the door and a real broker answer to each step, in and out of turn."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.real_rabbitmq.by_hand import (
    CLOSE,
    EXCHANGE_COMMAND_VERSIONS,
    HEARTBEAT,
    METADATA,
    OPEN,
    PEER_PROPERTIES,
    RESPONSE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TUNE,
    Peer,
    array,
    data,
    pairs,
    text,
)
from tests.server.rabbitmq.beside import GUARD_S

STEPS = ("connected", "introduced", "mechanisms", "authenticated", "tuned")
COMMANDS: dict[str, tuple[int, bytes]] = {
    "peer-properties": (PEER_PROPERTIES, struct.pack(">I", 9) + pairs({"product": "test"})),
    "sasl-handshake": (SASL_HANDSHAKE, struct.pack(">I", 9)),
    "open": (OPEN, struct.pack(">I", 9) + text("/")),
    "metadata": (METADATA, struct.pack(">I", 9) + array([])),
    "close": (CLOSE, struct.pack(">IH", 9, 1) + text("bye")),
    "unknown": (0x55, b""),
}
STAYS = {
    ("connected", "peer-properties"),
    ("introduced", "peer-properties"),
    ("introduced", "sasl-handshake"),
    ("mechanisms", "sasl-handshake"),
    ("authenticated", "open"),
    ("tuned", "open"),
}
"""Where the connection goes on; everywhere else it is closed, and the peer is told nothing but what it asked for."""
ANSWERED = {"peer-properties", "sasl-handshake"}


def brought_to(peer: Peer, step: str) -> None:
    """Take the first steps, up to and with ``step``."""
    done = STEPS.index(step)
    if done >= 1:
        assert peer.ask(PEER_PROPERTIES, pairs({})).code == 1
    if done >= 2:
        assert peer.ask(SASL_HANDSHAKE).code == 1
    if done >= 3:
        assert peer.authenticate().code == 1
        peer.expect(TUNE)
    if done >= 4:
        peer.send(TUNE | RESPONSE, struct.pack(">II", 1 << 20, 60))


def ended(peer: Peer) -> list[int]:
    """Read to the end of the connection; return the keys of the frames before it."""
    keys = []
    while True:
        try:
            keys.append(peer.read().key)
        except (EOFError, ConnectionError):
            return keys


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("step", STEPS)
def test_a_command_at_each_step(broker: Any, step: str, command: str) -> None:
    peer = broker.connect()
    brought_to(peer, step)
    key, body = COMMANDS[command]
    peer.send(key, body)
    if (step, command) in STAYS:
        assert peer.expect(key | RESPONSE).code == 1
    else:
        assert ended(peer) == ([key | RESPONSE] if command in ANSWERED else [])


def test_a_peer_that_sends_no_more_still_gets_the_answer_that_ends_the_connection(door: Any) -> None:
    peer = door.connect()
    brought_to(peer, "tuned")
    begun, go = threading.Event(), threading.Event()
    held = threading.Thread(target=door.server.call, args=(lambda: begun.set() or go.wait(GUARD_S),))
    held.start()
    assert begun.wait(GUARD_S)
    key, body = COMMANDS["sasl-handshake"]
    peer.send(key, body)
    peer.socket.shutdown(socket.SHUT_WR)
    go.set()  # the server reads the request, and then at once the end
    held.join()
    assert ended(peer) == [key | RESPONSE]


@pytest.mark.parametrize("step", STEPS)
def test_heartbeats_are_taken_at_any_step(broker: Any, step: str) -> None:
    peer = broker.connect()
    brought_to(peer, step)
    peer.send(HEARTBEAT)
    following = ("peer-properties", "sasl-handshake", "sasl-handshake", "open", "open")[STEPS.index(step)]
    key, body = COMMANDS[following]
    peer.send(key, body)
    assert peer.expect(key | RESPONSE).code == 1


@pytest.mark.parametrize("step", ["connected", "mechanisms", "tuned"])
def test_frames_before_open_have_a_ceiling(broker: Any, step: str) -> None:
    peer = broker.connect()
    brought_to(peer, step)
    peer.send(PEER_PROPERTIES, struct.pack(">I", 9) + pairs({"product": "x" * 9_000}))
    assert ended(peer) == []


def test_a_frame_below_the_ceiling_is_taken(broker: Any) -> None:
    assert broker.connect().ask(PEER_PROPERTIES, pairs({"product": "x" * 8_100})).code == 1


def test_what_the_server_says_of_itself(broker: Any) -> None:
    peer = broker.connect()
    body = peer.ask(PEER_PROPERTIES, pairs({})).body
    for name in ("product", "version", "platform", "cluster_name", "copyright", "information"):
        assert text(name) in body
    assert text("PLAIN") in peer.ask(SASL_HANDSHAKE).body


@pytest.mark.parametrize("key", [TUNE, TUNE | RESPONSE])
def test_both_keys_answer_tune(broker: Any, key: int) -> None:
    peer = broker.connect()
    brought_to(peer, "authenticated")
    peer.send(key, struct.pack(">II", 0, 0))
    assert peer.ask(OPEN, text("/")).code == 1


@pytest.mark.parametrize("key", [TUNE, TUNE | RESPONSE])
def test_tune_is_not_answered_after_open(broker: Any, key: int) -> None:
    peer = broker.connect()
    brought_to(peer, "authenticated")
    assert peer.ask(OPEN, text("/")).code == 1
    peer.send(key, struct.pack(">II", 0, 0))
    assert peer.expect(CLOSE).code == 0x0D


def test_what_a_client_of_rabbitmq_asks_the_server_for(broker: Any) -> None:
    """rstream's own suite wants the product, clients read from the version what they may use."""
    words = broker.connect().ask(PEER_PROPERTIES, pairs({})).body
    assert text("product") + text("RabbitMQ") in words
    assert (text("implementation") + text("spark-streams") in words) == hasattr(broker, "log")


def test_tune_comes_unasked_and_proposes(broker: Any) -> None:
    peer = broker.connect()
    brought_to(peer, "mechanisms")
    assert peer.authenticate().code == 1
    assert struct.unpack(">II", peer.expect(TUNE).body) == (1 << 20, 60)


def test_open_tells_where_to_connect(broker: Any) -> None:
    peer = broker.connect()
    brought_to(peer, "tuned")
    answer = peer.ask(OPEN, text("/"))
    port = str(peer.socket.getpeername()[1])
    assert answer.code == 1 and text("advertised_host") in answer.body
    assert text("advertised_port") + text(port) in answer.body


def test_versions_begin_as_clients_expect(broker: Any) -> None:
    peer = broker.peer(versions=())
    answer = peer.ask(EXCHANGE_COMMAND_VERSIONS, array([struct.pack(">HHH", 2, 1, 2)]))
    count = struct.unpack_from(">I", answer.body, 2)[0]
    listed = [struct.unpack_from(">HHH", answer.body, 6 + 6 * n) for n in range(count)]
    # Clients exist that take the entry at the key's place for the key's.
    assert listed[:2] == [(1, 1, 1), (2, 1, 2)]
    keys = (5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 22, 23, 24, 25, 28, 29, 30, 31)
    assert listed[2:] == [(key, 1, 1) for key in keys]


@pytest.mark.parametrize("secret", [b"guest", b"\0guest", b"guest\0guest\0guest", b"", None])
def test_garbage_for_plain(broker: Any, secret: bytes | None) -> None:
    peer = broker.connect()
    brought_to(peer, "mechanisms")
    assert peer.authenticate(secret=secret).code == 9
    assert ended(peer) == []


# A real broker takes three seconds to refuse a login or a virtual host, so it is asked on many connections at once.


def said(peers: Sequence[Peer], requests: Sequence[tuple[int, bytes]]) -> list[int]:
    """What each peer is answered with; then it is disconnected."""
    for peer, (key, body) in zip(peers, requests, strict=True):
        peer.send(key, struct.pack(">I", 9) + body)
    codes = [peer.expect(key | RESPONSE).code for peer, (key, _) in zip(peers, requests, strict=True)]
    assert [ended(peer) for peer in peers] == [[]] * len(peers)
    return codes


def login(mechanism: str, secret: bytes) -> tuple[int, bytes]:
    return SASL_AUTHENTICATE, text(mechanism) + data(secret)


def test_wrong_credentials(broker: Any) -> None:
    wrong = [("guest", "wrong"), ("nobody", "guest"), ("", ""), ("guest", "gäst")]
    peers = [broker.connect() for _ in wrong]
    for peer in peers:
        brought_to(peer, "mechanisms")
    logins = [login("PLAIN", f"\0{user}\0{password}".encode()) for user, password in wrong]
    assert said(peers, logins) == [8, 8, 8, 8]


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "NOT-KNOWN", ""])
def test_mechanisms_that_are_not_offered(broker: Any, mechanism: str) -> None:
    peer = broker.connect()
    brought_to(peer, "mechanisms")
    assert peer.authenticate(mechanism, b"").code == 7
    assert ended(peer) == []


def test_a_virtual_host_that_is_not_there(broker: Any) -> None:
    peers = [broker.connect(), broker.connect()]
    for peer in peers:
        brought_to(peer, "tuned")
    assert said(peers, [(OPEN, text("nowhere")), (OPEN, text(""))]) == [0x0C, 0x0C]


def test_a_login_is_renewed(broker: Any) -> None:
    peer = broker.peer()
    assert peer.authenticate().code == 1
    assert peer.ask(METADATA, array([])).body == struct.pack(">II", 0, 0), "it goes on"


def test_a_login_is_not_renewed(broker: Any) -> None:
    cases = {
        login("EXTERNAL", b""): 0x14,
        login("NOT-KNOWN", b""): 0x14,
        login("PLAIN", b"\0guest\0wrong"): 8,
        login("PLAIN", b"\0nobody\0wrong"): 8,
        login("PLAIN", b"x"): 9,
    }
    assert said([broker.peer() for _ in cases], list(cases)) == list(cases.values())


def test_another_user_cannot_take_over(doors: Callable[..., Any]) -> None:
    peer = doors(users={"guest": "guest", "bob": "secret"}, authentication_delay_ms=10).peer()
    assert peer.authenticate(secret=b"\0bob\0secret").code == 0x15
    assert ended(peer) == []


def test_a_step_that_does_not_come_in_time(doors: Callable[..., Any]) -> None:
    door = doors(handshake_timeout_ms=500)
    deadline = time.monotonic() + 120

    def in_time(arrive: Callable[[], Peer]) -> Peer:
        """On a machine that pauses, the time may be over before."""
        while True:
            try:
                return arrive()
            except (EOFError, ConnectionError):
                assert time.monotonic() < deadline

    def at(step: str) -> Peer:
        peer: Peer = door.connect()
        brought_to(peer, step)
        return peer

    opened = in_time(door.peer)
    for peer in [in_time(lambda step=step: at(step)) for step in STEPS]:
        assert ended(peer) == []
    # Its time is over too, but it is open: it may be silent as long as its heartbeats allow.
    assert opened.ask(METADATA, array([])).body == struct.pack(">II", 0, 0)


def test_frames_in_pieces(door: Any) -> None:
    """Every byte on its own, and the whole handshake in one write."""
    peer = door.connect()
    frames = b""
    for key, body in (COMMANDS["peer-properties"], COMMANDS["sasl-handshake"]):
        frames += struct.pack(">IHH", len(body) + 4, key, 1) + body
    for at in range(len(frames)):
        peer.socket.sendall(frames[at : at + 1])
    assert peer.expect(PEER_PROPERTIES | RESPONSE).code == peer.expect(SASL_HANDSHAKE | RESPONSE).code == 1
    whole = door.connect()
    secret = struct.pack(">I", 9) + text("PLAIN") + data(b"\0guest\0guest")
    for key, body in (
        (SASL_AUTHENTICATE, secret),
        (TUNE, struct.pack(">II", 0, 0)),
        COMMANDS["open"],
        COMMANDS["metadata"],
    ):
        frames += struct.pack(">IHH", len(body) + 4, key, 1) + body
    whole.socket.sendall(frames)
    assert whole.expect(OPEN | RESPONSE).code == 1
    assert whole.expect(METADATA | RESPONSE).body == struct.pack(">II", 0, 0)


def test_connections_beyond_the_limit(doors: Callable[..., Any]) -> None:
    door = doors(max_connections=2, max_user_connections=2)
    peers = [door.peer(), door.peer()]
    third = door.connect()
    third.open(versions=())
    assert b"serves 2 connections" in third.expect(CLOSE).body
    peers[0].close()
    for _ in range(200):
        try:
            door.peer()
            return
        except (EOFError, ConnectionError):
            continue
    raise AssertionError("a place that became free is not given to the next one")
