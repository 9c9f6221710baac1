"""Each url on the port of each other protocol: what answers there by its first bytes, and which url to write."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_streams.client import AmqpClient, RabbitClient, retry, what_answers
from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.endpoint import HTTP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, Secret, Tls
from spark_streams.errors import ConnectFailed, SparkStreamsError
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.client.listening import listening
from tests.door_urls import plain_url
from tests.real_rabbitmq.conftest import kept, shared
from tests.real_rabbitmq.conftest import rabbitmq_amqp_url as rabbitmq_amqp_url
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

URLS = ("amqp", "amqps", "ws", "wss", "rabbitmq-stream", "rabbitmq-stream+tls", "http", "https")
"""The ways to a port; ``ws`` and ``wss`` are AMQP 1.0 over WebSockets."""
PLAIN = {"amqps": "amqp", "wss": "ws", "rabbitmq-stream+tls": "rabbitmq-stream", "https": "http"}
TITLES = {
    "amqp": "AMQP 1.0",
    "ws": "AMQP 1.0 over WebSockets",
    "rabbitmq-stream": "RabbitMQ's stream protocol",
    "http": "HTTP",
}
FORMATS = {"amqp": "amqp-events", "rabbitmq-stream": "rabbitmq-stream", "http": "feedapi"}

# --- the first bytes


@pytest.mark.parametrize(
    ("first", "said"),
    [
        # RabbitMQ 4.3.6: what it said to SASL, to PeerProperties, to a GET without TLS, to a GET, to AMQP 0-9-1.
        (b"AMQP\x03\x01\x00\x00\x00\x00\x00'\x02\x01", "AMQP 1.0 answers there"),
        (b"\x00\x00\x00\xfc\x80\x11\x00\x01\x00\x00\x00\x01\x00\x01", "RabbitMQ's stream protocol answers there"),
        (b"\x15\x03\x01\x00\x02\x02\n", "the port speaks TLS"),
        (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", "HTTP answers there"),
        (b"\x01\x00\x00\x00\x00\x01\xf8\x00\n\x00\n\x00\t\x00", "does not speak"),
        # The specifications' own: AMQP 1.0 without SASL (§2.2) and with TLS (§5.2), AMQP 0-9-1 §4.2.2, RFC 8446 §5.1.
        (b"AMQP\x00\x01\x00\x00", "AMQP 1.0 answers there"),
        (b"AMQP\x02\x01\x00\x00", "AMQP 1.0 answers there"),
        (b"AMQP\x00\x00\x09\x01", "does not speak"),
        (b"\x16\x03\x03\x00\x7a\x02", "the port speaks TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak"),
        (b"J\x00\x00\x00\x0a8.0.36\x00", "does not speak"),
        (b"AMQP\x03\x01\x00", "does not speak"),
        (b"HTT", "does not speak"),
    ],
)
def test_the_first_bytes_tell(first: bytes, said: str) -> None:
    for url in ("amqp", "rabbitmq-stream", "http"):
        told_of = what_answers.wrong_port(endpoint(url, 1), first)
        if said.startswith(TITLES[url]):
            assert told_of is None
        else:
            assert told_of is not None and said in str(told_of) and not told_of.retriable


# --- each url on each port


class Ports:
    """The doors of a log, without TLS and with it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "authority")
        self._stack = contextlib.ExitStack()
        self._log = self._stack.enter_context(ReferenceLog(folder / "log"))
        self._log.create_stream("orders", 1)
        certificate, key = self.authority.issue("server")
        self.plain = self._serve()
        self.secure = self._serve(tls_cert=certificate, tls_key=key)

    def _serve(self, **tls: Any) -> dict[str, int]:
        server = ServerThread(
            self._log,
            AmqpConfig(port=0, **tls),
            rabbit=RabbitConfig(port=0, **tls),
            feed=FeedConfig(port=0, **tls),
            event_hubs=EventHubsConfig(port=0, **tls),
        )
        self._stack.enter_context(server)
        names = {"amqp": "amqp", "rabbitmq-stream": "rabbitmq-stream", "feedapi": "http", "event-hubs": "event-hubs"}
        return {names[name]: int(plain_url(url).rpartition(":")[2]) for name, url in server.urls.items()}

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    opened = Ports(tmp_path_factory.mktemp("ports"))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def no_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def pause(seconds: float) -> None:
        raise TriedAgain

    monkeypatch.setattr(retry, "_pause", pause)


def endpoint(url: str, port: int, authority: Authority | None = None) -> Endpoint:
    scheme = {"ws": "amqp", "wss": "amqps"}.get(url, url)
    tls = Tls(None if authority is None else str(authority.file)) if url in PLAIN else None
    credentials = () if scheme in HTTP_SCHEMES else ("guest", Secret("guest"))
    found = Endpoint(scheme, "127.0.0.1", port, *credentials).with_tls(tls)
    return found.reached("websocket", None) if url in ("ws", "wss") else found


def ask(where: Endpoint) -> object:
    if where.scheme in HTTP_SCHEMES:
        address = FeedAddress(replace(where, path="/orders"), "orders", None, None, {}, None, 60_000, 1 << 20)
        with FeedClient(address, pause=retry._pause) as feed:
            return feed.discover()
    if where.scheme in RABBITMQ_SCHEMES:
        with RabbitClient(where, timeout_ms=60_000) as broker:
            return broker.describe("orders")
    with AmqpClient(where, timeout_ms=60_000) as amqp:
        return amqp.describe("orders")


class TriedAgain(Exception):
    """A client was about to try again."""


def told(where: Endpoint) -> str:
    """Return what a user is told, once and for all."""
    with pytest.raises(ConnectFailed) as raised:
        ask(where)
    assert not raised.value.retriable
    said = str(raised.value)
    assert f"127.0.0.1:{where.port}" in said
    return said


def expected(url: str, there: str, port: int, *, secured: bool) -> str | None:
    """Return a pattern of what a user of a url is to be told at a port that speaks something else.

    None where the port hangs up, as RabbitMQ's streams do: it is tried again, as a broker that starts does so too.
    """
    wanted = PLAIN.get(url, url)
    spoken = {"event-hubs": "amqp"}.get(there, there)
    own = {"ws": "amqp"}.get(wanted, wanted)
    by_tls = url in PLAIN
    tls_scheme = {plain: tls for tls, plain in PLAIN.items()}[own]
    if secured and not by_tls:
        return re.escape(f"the port speaks TLS: write {tls_scheme}:// instead of {own}://")
    if by_tls and not secured:
        return None if spoken == "rabbitmq-stream" else f"TLS does not work there .*: .*write {own}://"
    if (spoken, wanted) == ("http", "ws"):  # it is HTTP that WebSockets are asked for
        return r"the WebSocket was refused \(status 404"
    if spoken == "rabbitmq-stream":
        return "does not speak WebSockets" if wanted == "ws" else None
    scheme = {plain: tls for tls, plain in PLAIN.items()}[spoken] if secured else spoken
    where = re.escape(f"{scheme}://127.0.0.1:{port}")
    if (spoken, wanted) == ("amqp", "ws"):
        return f"AMQP 1.0 over WebSockets was expected: .*write {where} with format 'amqp-events' and without option "
    begins = f"{TITLES[spoken]} answers there, and {TITLES[wanted]} was expected: "
    return f"{begins}.*write {where}.* with format '{FORMATS[spoken]}'"


def check_told(url: str, there: str, where: Endpoint, *, secured: bool) -> None:
    pattern = expected(url, there, where.port, secured=secured)
    if pattern is None:
        with pytest.raises(TriedAgain):
            ask(where)
    else:
        said = told(where)
        assert re.search(pattern, said), (url, said, pattern)


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("there", ["amqp", "event-hubs", "rabbitmq-stream", "http"])
def test_every_url_at_every_door(there: str, secured: bool, ports: Ports) -> None:
    port = (ports.secure if secured else ports.plain)[there]
    own = "amqp" if there == "event-hubs" else there
    for url in URLS:
        where = endpoint(url, port, ports.authority)
        if PLAIN.get(url, url) == own and (url in PLAIN) == secured:
            assert ask(where)
            later = what_answers.wrong_port(where, b"SSH-2.0-OpenSSH_9.6")
            assert later is None, "a peer that was right is not the wrong one later"
        else:
            check_told(url, there, where, secured=secured)


@pytest.mark.rabbitmq
def test_every_url_at_every_port_of_a_real_broker(rabbitmq_url: str, rabbitmq_amqp_url: str) -> None:
    folder = Path(shared().folder)
    urls = {
        "rabbitmq-stream": rabbitmq_url,
        "amqp": rabbitmq_amqp_url,
        "rabbitmq-stream+tls": kept(str(folder))["tls_url"],
    }
    for own, at in urls.items():
        port, secured = int(at.rpartition(":")[2]), own in PLAIN
        for url in URLS:
            where = endpoint(url, port)
            if where.tls is not None:
                where = where.with_tls(Tls(str(folder / "tls" / "ca.pem")))
            if url == own:
                with pytest.raises(SparkStreamsError, match="orders"):  # there is no such stream
                    ask(where)
            else:
                with contextlib.suppress(TriedAgain):  # RabbitMQ's reset may arrive before its answer is read
                    check_told(url, PLAIN.get(own, own), where, secured=secured)


# --- ports of neither


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the peer does not speak {}, it answered 'SSH-2.0-OpenSSH_9.6': check the port"),
        (b"220 mail ESMTP\r\n", "the peer does not speak {}, it answered '220 mail ESMTP': check the port"),
        (b"J\0\0\0\x0a8.0.36\0", "the peer does not speak {}, it answered "),
        (b"AMQP\x00\x00\x09\x01\n", "; RabbitMQ speaks AMQP 1.0 since version 4"),
    ],
    ids=["ssh", "smtp", "mysql", "AMQP 0-9-1"],
)
def test_a_port_that_speaks_first(greeting: bytes, said: str) -> None:
    def greet(peer: socket.socket) -> None:
        peer.sendall(greeting)
        while peer.recv(4_096):
            pass

    with listening(greet) as (port, _):
        for url in sorted(set(URLS) - PLAIN.keys()):
            assert said.format(TITLES[PLAIN.get(url, url)]) in told(endpoint(url, port))


@pytest.mark.parametrize(
    "words",
    [
        b"<html>\r\n<head><title>400 The plain HTTP request was sent to HTTPS port</title></head>",
        b"Client sent an HTTP request to an HTTPS server.\n",
        b"Reason: You're speaking plain HTTP to an SSL-enabled server port.<br />",
    ],
    ids=["nginx", "go", "apache"],
)
def test_a_port_of_https_that_answers_to_http(words: bytes) -> None:
    def refuse(peer: socket.socket) -> None:
        peer.recv(4_096)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n" + words)

    with listening(refuse) as (port, _):
        assert "the port speaks TLS: write https:// instead of http://" in told(endpoint("http", port))


# --- ports that say nothing


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        ("amqp", "check the port in option 'url' (5672 is usual, 5671 with TLS)"),
        ("rabbitmq-stream+tls", "check the port in option 'url' (5552 is usual, 5551 with TLS)"),
        ("http", "check the port in option 'url' (80 is usual, 443 with TLS)"),
    ],
)
def test_the_usual_ports_are_told(scheme: str, said: str) -> None:
    where = Endpoint(scheme, "broker", 1)
    assert what_answers.check_port(where) == said
    by_gateway = where.reached("websocket", ("gateway", 1))
    assert what_answers.check_port(by_gateway) == said.replace("'url'", "'customEndpoint'")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp", "the peer closed the connection at once: check the port in option 'url' (5672 is usual"),
        ("rabbitmq-stream", "the peer closed the connection at once: check the port in option 'url' (5552 is usual"),
        ("http", "without response"),
    ],
)
def test_a_port_that_hangs_up(url: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    with listening(lambda peer: peer.recv(4_096) and None) as (port, _), pytest.raises(SparkStreamsError) as raised:
        ask(endpoint(url, port))
    assert raised.value.retriable and said in str(raised.value)


@pytest.mark.parametrize("status", [b"301", b"408", b"429", b"503"])
def test_what_proxies_say_of_a_peer_that_is_not_there_tells_nothing(status: bytes) -> None:
    heard = b"HTTP/1.1 " + status + b" Whatever\r\n\r\n"
    assert what_answers.wrong_port(endpoint("amqp", 1), heard) is None
    assert what_answers.wrong_port(endpoint("amqp", 1), b"") is None
