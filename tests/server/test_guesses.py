"""Guessing leaves a trace at every door: a line, a count, and answers that come later each time; others never wait."""

from __future__ import annotations

import base64
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from spark_streams.log import ReferenceLog
from spark_streams.server import (
    AmqpConfig,
    EventHubsConfig,
    FeedConfig,
    RabbitConfig,
    ServerThread,
    WebConfig,
)
from spark_streams.server.users import FORGOTTEN_S, LONGEST_DELAY_S, MOST_ADDRESSES, Guesses
from spark_streams.testing import eventually
from tests.door_urls import plain_url
from tests.real_rabbitmq.by_hand import data, text
from tests.server.amqp.raw_peer import Ended, Peer
from tests.server.event_hubs.conftest import sas
from tests.server.event_hubs.test_links import SAS_TYPE, asked, put
from tests.server.hostile.doors import Raw, introduction, rabbit_frame
from tests.server.long_timeouts import HOUR_MS, LONG_TIMEOUTS

WAIT_S = 120
WRONG, RIGHT = "not-the-secret", "secret"
KINDS = (AmqpConfig, EventHubsConfig, RabbitConfig, FeedConfig, WebConfig)
DOORS = tuple(kind.protocol for kind in KINDS)


def sasl(password: str) -> bytes:
    response = b"\0ann\0" + password.encode()
    fields = b"\xa3\x05PLAIN" + b"\xa0" + bytes([len(response)]) + response
    body = b"\x00\x53\x41\xc0" + bytes([len(fields) + 1, 2]) + fields
    return b"AMQP\x03\x01\x00\x00" + struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


def rabbit(password: str) -> bytes:
    secret = struct.pack(">I", 3) + text("PLAIN") + data(b"\0ann\0" + password.encode())
    return introduction() + rabbit_frame(0x13, secret)


def http(path: str) -> Callable[..., bytes]:
    def request(password: str, user: str = "ann") -> bytes:
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {basic}\r\n\r\n".encode()

    return request


# What somebody sends who signs in as ann, and what the answers to right and wrong passwords hold.
SAYS: dict[str, tuple[Callable[[str], bytes], bytes, bytes]] = {
    "amqp": (sasl, b"\x00\x53\x44\xc0\x03\x01\x50\x00", b"\x00\x53\x44\xc0\x03\x01\x50\x01"),
    "event-hubs": (sasl, b"\x00\x53\x44\xc0\x03\x01\x50\x00", b"\x00\x53\x44\xc0\x03\x01\x50\x01"),
    "rabbitmq-stream": (rabbit, struct.pack(">HHIH", 0x8013, 1, 3, 1), struct.pack(">HHIH", 0x8013, 1, 3, 8)),
    "feedapi": (http("/"), b"HTTP/1.1 200", b"HTTP/1.1 401"),
    "web": (http("/metrics"), b"HTTP/1.1 200", b"HTTP/1.1 401"),
}


def says(raw: Raw, words: bytes) -> None:
    """Wait until the door has said these words."""

    def said() -> bool:
        raw.look()
        return words in raw.received

    eventually(said, f"{words!r} at {raw.received[:200]!r}", WAIT_S)


Serve = Callable[..., ServerThread]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """A function that opens all doors with one user, and wrong credentials that are answered so much later."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(ReferenceLog(tmp_path))

        def start(delay_ms: int = HOUR_MS, **more: Any) -> ServerThread:
            common = {**LONG_TIMEOUTS, "authentication_delay_ms": delay_ms, "users": {"ann": RIGHT}, **more}
            return stack.enter_context(ServerThread(log, *(kind(port=0, **common) for kind in KINDS)))

        yield start
        Raw.close_all()


def url_of(server: ServerThread, door: str) -> str:
    return plain_url(server.urls[door])


def failures(server: ServerThread, door: str) -> int:
    return int(server.server.door(door).counters.sign_ins_failed)


@pytest.mark.parametrize("door", DOORS)
def test_wrong_ones_leave_a_trace_and_wait_and_right_ones_from_the_same_address_do_not(
    serve: Serve, caplog: pytest.LogCaptureFixture, door: str
) -> None:
    server = serve(max_connections=4, max_handshakes=4)  # guesses that wait keep nobody's place
    said, right, wrong = SAYS[door]
    guessing: list[Raw] = []
    with caplog.at_level(logging.WARNING, "spark_streams.server"):
        for number in range(1, 8):
            guessing.append(Raw(url_of(server, door)))
            guessing[-1].send(said(WRONG))
            eventually(lambda number=number: failures(server, door) == number, "one more wrong password", WAIT_S)
    lines = [line for line in caplog.messages if line.startswith(f"{door}: ") and "wrong credentials" in line]
    ports = {each.socket.getsockname()[1] for each in guessing}
    assert len(lines) == 7 and all(any(f"'127.0.0.1', {port})" in line for line in lines) for port in ports)
    assert WRONG not in caplog.text and base64.b64encode(WRONG.encode()).decode() not in caplog.text
    for _ in range(12):
        honest = Raw(url_of(server, door))
        honest.send(said(RIGHT))
        says(honest, right)
        honest.close()
    for each in guessing:
        each.look()
        assert wrong not in each.received, "an hour is not over"


@pytest.mark.parametrize("door", DOORS)
def test_in_the_end_they_are_answered(serve: Serve, door: str) -> None:
    server = serve(1)
    said, _, wrong = SAYS[door]
    raw = Raw(url_of(server, door))
    raw.send(said(WRONG))
    says(raw, wrong)
    eventually(lambda: raw.look() or raw.ended, "the end of the connection", WAIT_S)


def test_the_delay_grows_over_all_doors(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    def noted(self: Guesses, host: str | None, first_s: float, _of: Any = Guesses.delay_s) -> float:
        delays.append(_of(self, host, 0.5))
        return 0.0

    monkeypatch.setattr(Guesses, "delay_s", noted)
    server = serve()
    for door in DOORS:
        raw = Raw(url_of(server, door))
        raw.send(SAYS[door][0](WRONG))
        says(raw, SAYS[door][2])
    assert delays == [0.5, 1.0, 2.0, 4.0, LONGEST_DELAY_S]


def test_guesses_are_counted_by_address_and_forgotten() -> None:
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    assert [guesses.delay_s("192.0.2.1", 0.5) for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert guesses.delay_s("192.0.2.2", 0.5) == 0.5, "another address"
    assert guesses.delay_s("::ffff:192.0.2.2", 0.5) == 1.0, "the same, over IPv6"
    assert [guesses.delay_s(host, 0.5) for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")] == [0.5, 1.0, 0.5]
    assert [guesses.delay_s(None, 0.5) for _ in range(2)] == [0.5, 1.0]
    now[0] += FORGOTTEN_S
    assert guesses.delay_s("192.0.2.1", 0.5) == 0.5
    assert guesses.delay_s("192.0.2.1", 60.0) == 60.0, "what is set is the least"
    assert guesses.delay_s("192.0.2.1", 0.0) == 0.0
    for number in range(MOST_ADDRESSES):
        guesses.delay_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.5)
    assert len(guesses._recent) == MOST_ADDRESSES and guesses.delay_s("192.0.2.1", 0.5) == 0.5


def test_a_form_of_the_page_that_signs_in_is_a_guess_too(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server, page = serve(0), requests.Session()
    address = f"{server.urls['web']}/sign-in"
    token = page.get(address, timeout=WAIT_S).text.partition('name="csrf_token" value="')[2][:64]
    with caplog.at_level(logging.WARNING, "spark_streams.server"):
        assert (
            page.post(address, {"csrf_token": token, "user": "ann", "password": WRONG}, timeout=WAIT_S).status_code
            == 401
        )
    assert failures(server, "web") == 1 and "web: " in caplog.text and WRONG not in caplog.text
    assert (
        page.post(address, {"csrf_token": token, "user": "ann", "password": RIGHT}, timeout=WAIT_S).status_code == 200
    )


def test_a_page_that_is_refused_counts_once(serve: Serve) -> None:
    server = serve(0)
    assert requests.get(server.urls["web"], auth=("ann", WRONG), timeout=WAIT_S).status_code == 401
    assert failures(server, "web") == 1


def test_no_credentials_are_no_guess(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve()
    for door, path in (("feedapi", "/"), ("web", "/metrics")):
        assert requests.get(server.urls[door] + path, timeout=WAIT_S).status_code == 401
        assert failures(server, door) == 0
    assert "wrong credentials" not in caplog.text


# --- tokens of Event Hubs


@pytest.fixture
def hub_peer(serve: Serve) -> Iterator[Callable[..., tuple[ServerThread, Any]]]:
    with contextlib.ExitStack() as stack:

        def make(delay_ms: int) -> tuple[ServerThread, Any]:
            server = serve(delay_ms)
            peer = Peer(url_of(server, "event-hubs"), username=None, password=None, mechanisms="ANONYMOUS")
            stack.callback(peer.close)
            return server, peer

        yield make


def test_the_third_wrong_token_ends_the_connection(hub_peer: Any) -> None:
    server, peer = hub_peer(0)
    wrong = sas("sb://localhost/orders", "ann", WRONG)
    for _ in range(2):
        assert put(peer, wrong)[0] == 401
    assert put(peer, sas("sb://localhost/orders", "ann", RIGHT))[0] == 202, "a right one between them"
    with pytest.raises(Ended, match="too many wrong tokens"):
        put(peer, wrong)
    assert failures(server, "event-hubs") == 3


def test_a_wrong_token_of_a_question_is_a_guess_too(hub_peer: Any) -> None:
    server, peer = hub_peer(0)
    question = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "orders"}
    assert asked(peer, "$management", None, **question)[0] == 401
    assert failures(server, "event-hubs") == 0, "no token is no guess"
    token = sas("sb://localhost/orders", "ann", WRONG)
    assert asked(peer, "$management", None, **question, security_token=token)[0] == 401
    assert failures(server, "event-hubs") == 1


def test_of_many_wrong_tokens_at_once_three_are_looked_at_and_right_ones_elsewhere_are_taken_meanwhile(
    hub_peer: Any,
) -> None:
    import proton

    server, peer = hub_peer(HOUR_MS)
    replies, requests_ = peer.receiver("$cbs", credit=400), peer.sender("$cbs")
    said = {"operation": "put-token", "type": SAS_TYPE, "name": "sb://localhost/orders"}
    wrong = sas("sb://localhost/orders", "ann", WRONG)
    messages = [
        proton.Message(wrong, id=str(number), reply_to=replies.link.name, properties=said) for number in range(357)
    ]
    requests_.send_all(messages)
    assert failures(server, "event-hubs") == 3
    other = Peer(url_of(server, "event-hubs"), username=None, password=None, mechanisms="ANONYMOUS")
    assert put(other, sas("sb://localhost/orders", "ann", RIGHT))[0] == 202
    other.close()
