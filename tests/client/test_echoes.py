"""Peers that echo what they were sent, and begin lines of a log: no error, log line or traceback has a secret."""

from __future__ import annotations

import base64
import contextlib
import logging
import pickle
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest

from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.client.rabbitmq import cluster
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.endpoint import Endpoint, Secret
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    PeerError,
    Refused,
    RemoteProtocolError,
    SparkStreamsError,
)
from spark_streams.redaction import remember
from tests.client.amqp.fake_node import FakeNode, info, refuse
from tests.client.amqp.fake_node import Script as NodeScript
from tests.client.amqp.test_connect import listener
from tests.client.feed.scripted import client_of
from tests.client.rabbitmq.scripted import OK, Scripted, Wire
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import array, pairs, text

PASSWORD = "geheim/pass=word+7"
TOKEN = "geheim-token." + "abcdefghijklmnop" * 30
QUERY = "geheim-query-7"
FORGED = "\n2026-01-01 00:00:00 ERROR all is lost"
BASIC = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
SASL = base64.b64encode(f"\0ann\0{PASSWORD}".encode()).decode()

PARTS = ("geheim", "abcdefghijklmnop", "Z2VoZWlt", "dlaGVpb", "nZWhlaW", BASIC[-8:], quote(PASSWORD, safe=""))
"""What is in a secret, or in base64 of it with anything before."""


def holds_none(fault: BaseException | None, *more: str) -> None:
    """Assert that nothing that anybody shows of an error has a part of a secret, or a line that a peer began."""
    assert fault is not None
    again = pickle.loads(pickle.dumps(fault))
    for said in (str(fault), repr(fault), str(again), "".join(traceback.format_exception(fault)), *more):
        for secret in PARTS:
            assert secret not in said, (secret, said)
        assert not any(line.startswith("2026-01-01") for line in said.splitlines()), said


# --- feeds


@contextlib.contextmanager
def echoing(reply: Callable[[bytes, str], bytes]) -> Iterator[str]:
    """Serve answers as raw bytes, made of the request's bytes and its header Authorization."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer, contextlib.suppress(OSError):
                    asked = b""
                    while b"\r\n\r\n" not in asked and (piece := peer.recv(65_536)):
                        asked += piece
                    shown = next((each for each in asked.split(b"\r\n") if each.startswith(b"Authorization")), b"")
                    peer.sendall(reply(asked, shown.decode()))

    threading.Thread(target=run, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x?key={QUERY}"
    finally:
        server.close()


def page(body: bytes, status: str = "200 OK", kind: str = "text/plain") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


ECHOES: dict[str, Callable[[bytes, str], bytes]] = {
    **{
        f"status {code}": lambda asked, _, code=code: page(asked, f"{code} No")
        for code in (400, 401, 403, 404, 409, 503)
    },
    "one line": lambda asked, _: page(asked.replace(b"\r\n", b" "), "403 No"),
    "json": lambda asked, shown: page(f'{{"detail": "{asked.decode()!r} {shown}"}}'.encode(), "403 No"),
    "url": lambda asked, shown: page(quote(asked.decode(), safe="").encode(), "403 No"),
    "reason": lambda _, shown: page(b"", f"403 {shown}"),
    "a document": lambda asked, _: page(asked, kind="application/json"),
    "members": lambda asked, shown: page(f'{{"partitions": [{{"id": "{shown}"}}]}}'.encode()),
    "html": lambda asked, _: page(b"<pre>" + asked, kind="text/html"),
    "a redirect": lambda _, shown: f"HTTP/1.1 302 x\r\nLocation: http://{quote(shown[-8:])}.x/{shown}\r\n\r\n".encode(),
    "no status line": lambda _, shown: f"{shown}\r\n\r\n".encode(),
    "no header": lambda asked, shown: f"HTTP/1.1 200 OK\r\nno header {shown}\r\n{asked.decode()}X: y\r\n\r\n".encode(),
    "no chunk": lambda _, shown: f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{shown}\r\n".encode(),
    "a media type": lambda _, shown: page(b"{}", kind=f"application/zeh-{shown}"),
    "long before": lambda asked, shown: page(b"x" * 280 + shown.encode() * 50, "403 No"),
    "cut": lambda asked, shown: page(b" " * 7_960 + shown.encode() * 50, "403 No"),
}


@pytest.mark.parametrize("who", ["token", "password"])
@pytest.mark.parametrize("echo", ECHOES)
def test_a_feed(echo: str, who: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"token": TOKEN} if who == "token" else {"password": PASSWORD}

    with echoing(ECHOES[echo]) as url, client_of(url, partitions=1, **secret) as client:  # type: ignore[arg-type]
        with contextlib.suppress(SparkStreamsError):
            client.discover()
        with pytest.raises(SparkStreamsError) as caught:
            for _ in client.lines(0, "_first"):
                pass
    holds_none(caught.value, caplog.text)


def test_lines_of_a_feed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        echoing(lambda asked, shown: page(b'{"oops": ' + shown.encode() + b'}\n{"cursor": "c"}\n')) as url,
        client_of(url, "v2a", token=TOKEN) as client,
        pytest.raises(RemoteProtocolError) as caught,
    ):
        list(client.lines(0, "_first"))
    holds_none(caught.value, caplog.text)


# --- AMQP


def test_an_amqp_peer_while_signing_in() -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(100)
        body = b"\x00\x53\x40\xc0\x08\x01\xa3\x05PLAIN"  # sasl-mechanisms (AMQP 1.0 part 5 §5.3.3.1)
        peer.sendall(b"AMQP\x03\x01\x00\x00" + struct.pack(">IBBH", len(body) + 8, 2, 1, 0) + body)
        peer.recv(65_536)
        name = SASL.encode() + b" " + PASSWORD.encode() + FORGED.encode()
        body = b"\x00\xa3" + bytes([min(len(name), 255)]) + name[:255] + b"\x45"
        peer.sendall(struct.pack(">IBBH", len(body) + 8, 2, 1, 0) + body)
        peer.recv(1)

    with listener(serve) as port:
        endpoint = Endpoint("amqp", "127.0.0.1", port, "ann", Secret(PASSWORD))
        with AmqpClient(endpoint, timeout_ms=120_000) as client, pytest.raises(RemoteProtocolError) as caught:
            client.describe("orders")
    assert "is none of SASL" in str(caught.value)
    holds_none(caught.value)


def test_an_amqp_peer_that_is_none() -> None:
    remember(PASSWORD, "ann")  # as of the connection before: this peer has been sent none yet

    def serve(peer: socket.socket) -> None:
        peer.recv(100)
        peer.sendall(b"no AMQP " + PASSWORD.encode() + b" in the first line\nabc")
        peer.recv(1)

    with listener(serve) as port:
        endpoint = Endpoint("amqp", "127.0.0.1", port, "ann", Secret(PASSWORD))
        with AmqpClient(endpoint, timeout_ms=120_000) as client, pytest.raises(SparkStreamsError) as caught:
            client.describe("orders")
    assert "it answered 'no AMQP *** in the first line'" in str(caught.value)
    holds_none(caught.value)


@pytest.mark.parametrize(
    "condition", ["amqp:not-found", "amqp:link:stolen", "amqp:link:redirect", "x:geheim/pass=word+7"]
)
def test_a_link_that_an_amqp_peer_refuses(condition: str) -> None:
    remember(PASSWORD, "ann")  # as of the connection before
    said = f"ann:{PASSWORD} {BASIC}{FORGED}" + "x" * 10_000
    more = {"network-host": f"{PASSWORD}{FORGED}", "port": 5672}
    script = NodeScript(
        info={"orders": info(**{"0": (None, None)})}, on_attach=lambda link, _: refuse(link, condition, said, more)
    )
    with FakeNode(script) as node:
        endpoint = Endpoint("amqp", "127.0.0.1", node.port)
        with AmqpClient(endpoint, timeout_ms=120_000) as client, pytest.raises(PeerError) as caught:
            client.describe("orders")
    assert len(str(caught.value)) < 2_000
    assert r"\n2026-01-01" in caught.value.description
    holds_none(caught.value)


def test_a_partition_whose_name_would_begin_a_line() -> None:
    script = NodeScript(info={"orders": info(**{f"0{FORGED}": (None, None)})})
    with (
        FakeNode(script) as node,
        AmqpClient(Endpoint("amqp", "127.0.0.1", node.port)) as client,
        pytest.raises(RemoteProtocolError, match="expected printable characters") as caught,
    ):
        client.describe("orders")
    holds_none(caught.value)


# --- RabbitMQ


def broker(kind: int, handle: Callable[[Wire, int, bytes, bytes], None]) -> Scripted:
    """Return a broker that does something of its own at a request, told what it was signed in with."""
    given: list[bytes] = []

    def signed_in(wire: Wire, number: int, body: bytes) -> None:
        given.append(body)
        if kind == key.SASL_AUTHENTICATE:
            handle(wire, number, body, body)
        else:
            wire.answer(key.SASL_AUTHENTICATE, number)
            wire.send(key.TUNE, struct.pack(">II", 1 << 20, 0))

    handlers = {kind: lambda wire, number, body: handle(wire, number, body, given[-1])}
    return Scripted({**handlers, key.SASL_AUTHENTICATE: signed_in})


def signing_in(at: Scripted) -> Endpoint:
    return replace(at.endpoint, username="ann", password=Secret(PASSWORD))


@pytest.mark.parametrize("code", [OK, 0x10, 0x0C, 0x77])
def test_a_close_of_a_broker(code: int) -> None:
    def close(wire: Wire, number: int, body: bytes, given: bytes) -> None:
        reason = given.decode("latin-1") + f" {BASIC} {SASL}{FORGED}"
        wire.send(key.CLOSE, struct.pack(">IH", 1, code) + text(reason))

    with (
        broker(key.OPEN, close) as at,
        pytest.raises(Refused) as caught,
        open_connection(signing_in(at), timeout_ms=120_000),
    ):
        pass
    assert r"\n2026-01-01" in caught.value.description
    holds_none(caught.value)


def test_mechanisms_of_a_broker() -> None:
    remember(PASSWORD, "ann")  # as of the connection before

    def offer(wire: Wire, number: int, body: bytes) -> None:
        wire.answer(key.SASL_HANDSHAKE, number, OK, array([text(f"{BASIC}{FORGED}")]))

    with (
        Scripted({key.SASL_HANDSHAKE: offer}) as at,
        pytest.raises(AuthenticationFailed) as caught,
        open_connection(signing_in(at), timeout_ms=120_000),
    ):
        pass
    holds_none(caught.value)


def test_properties_of_a_broker() -> None:
    def opened(wire: Wire, number: int, body: bytes, given: bytes) -> None:
        wire.answer(key.OPEN, number, OK, pairs({"cluster": f"{BASIC}{FORGED}", "advertised_host": "127.0.0.1"}))

    with broker(key.OPEN, opened) as at, open_connection(signing_in(at), timeout_ms=120_000) as connection:
        assert connection.properties["cluster"] == r"***\n2026-01-01 00:00:00 ERROR all is lost"
        assert connection.properties["advertised_host"] == "127.0.0.1"


@pytest.mark.parametrize("load_balancer", [False, True])
def test_nodes_that_a_broker_names(
    load_balancer: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "LOAD_BALANCED_TRIES", 2)
    node = text(f"{PASSWORD}{FORGED}.{BASIC}.invalid") + struct.pack(">I", 7)

    def placed(wire: Wire, number: int, body: bytes) -> None:
        nodes = array([struct.pack(">H", 1) + node, struct.pack(">H", 2) + node])
        members = struct.pack(">HH", OK, 1) + array([struct.pack(">H", 2)])
        wire.send(key.METADATA | key.RESPONSE, struct.pack(">I", number) + nodes + array([text("orders") + members]))

    def opened(wire: Wire, number: int, body: bytes) -> None:
        wire.answer(key.OPEN, number, OK, pairs({"advertised_host": f"not-{PASSWORD}", "advertised_port": "7"}))

    with Scripted({key.OPEN: opened, key.METADATA: placed}) as at:
        endpoint = replace(signing_in(at), load_balancer=load_balancer)
        with RabbitClient(endpoint, timeout_ms=120_000) as client, pytest.raises(ConnectFailed) as caught:
            client._cluster.at_leader("orders", lambda *_: None)
    assert "***" in str(caught.value)
    holds_none(caught.value, caplog.text)
