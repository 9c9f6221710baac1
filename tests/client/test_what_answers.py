"""Each url on the port of each other protocol: a user is told at once what answers there, and which url to write."""

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
from spark_streams.client.first_bytes import AMQP, HTTP, KAFKA, MAIL, OLD_AMQP, SSH, STREAMS, TLS, recognised
from spark_streams.client.rabbitmq import connection as rabbit_connection
from spark_streams.client.retry import Deadline
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
    ("first", "spoken"),
    [
        # RabbitMQ 4.3.6: what it said to SASL, to PeerProperties, to a GET without TLS, to a GET, to AMQP 0-9-1.
        (b"AMQP\x03\x01\x00\x00\x00\x00\x00'\x02\x01", AMQP),
        (b"\x00\x00\x00\xfc\x80\x11\x00\x01\x00\x00\x00\x01\x00\x01", STREAMS),
        (b"\x15\x03\x01\x00\x02\x02\n", TLS),
        (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", HTTP),
        (b"\x01\x00\x00\x00\x00\x01\xf8\x00\n\x00\n\x00\t\x00", None),
        # The specifications' own: AMQP 1.0 without SASL (§2.2) and with TLS (§5.2), AMQP 0-9-1 §4.2.2, RFC 8446 §5.1.
        (b"AMQP\x00\x01\x00\x00", AMQP),
        (b"AMQP\x02\x01\x00\x00", AMQP),
        (b"AMQP\x00\x00\x09\x01", OLD_AMQP),
        (b"\x16\x03\x03\x00\x7a\x02", TLS),
        # Kafka's guide: ApiVersions, version 0: size, correlation id, error, then the versions of 18, which is itself.
        (b"\x00\x00\x00\x10sprk\x00\x00\x00\x00\x00\x01\x00\x12\x00\x00\x00\x04", KAFKA),
        (b"SSH-2.0-OpenSSH_9.6\r\n", SSH),
        (b"220 mail.example.com ESMTP\r\n", MAIL),
        (b"220-ftp.example.com\r\n", MAIL),
        (b"J\x00\x00\x00\x0a8.0.36\x00", None),
        (b"", None),
        (b"AMQP\x03\x01\x00", None),
        (b"HTT", None),
    ],
)
def test_the_first_bytes_tell(first: bytes, spoken: object) -> None:
    assert recognised(first) is spoken


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
        raise AssertionError("it was tried again")

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


def told(where: Endpoint) -> str:
    """Return what a user is told, once and for all."""
    with pytest.raises(ConnectFailed) as raised:
        ask(where)
    assert not raised.value.retriable
    said = str(raised.value)
    assert f"127.0.0.1:{where.port}" in said
    return said


def expected(url: str, there: str, port: int, *, secured: bool) -> str:
    """Return a pattern of what a user of a url is to be told at a port that speaks something else."""
    wanted = PLAIN.get(url, url)
    spoken = {"event-hubs": "amqp"}.get(there, there)
    tls_scheme = {plain: tls for tls, plain in PLAIN.items()}
    own = {"ws": "amqp"}.get(wanted, wanted)
    if (spoken, wanted) == ("http", "ws"):  # it is HTTP that WebSockets are asked for
        if secured == (url == "wss"):
            return r"the WebSocket was refused \(status 404.*; if it is a feed, write https?://"
        return "the port speaks TLS: write amqps://" if secured else "TLS does not work there .*write amqp://"
    if spoken == wanted:
        secure = re.escape(f"write {tls_scheme[own]}:// instead of {own}://")
        return f"the port speaks TLS: {secure}" if secured else f"TLS does not work there .*: .*write {own}://"
    where = re.escape(f"{tls_scheme[spoken] if secured else spoken}://127.0.0.1:{port}")
    if (spoken, wanted) == ("amqp", "ws"):
        return f"does not speak WebSockets.*leave out option 'transport', and write {where}"
    with_tls = ", with TLS" if secured else ""
    begins = f"{TITLES[spoken]} answers there{with_tls}, and {TITLES[wanted]} was expected: "
    return f"{begins}.*write {where}.* with format '{FORMATS[spoken]}'"


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("there", ["amqp", "event-hubs", "rabbitmq-stream", "http"])
def test_every_url_at_every_door(there: str, secured: bool, ports: Ports) -> None:
    port = (ports.secure if secured else ports.plain)[there]
    own = "amqp" if there == "event-hubs" else there
    for url in URLS:
        where = endpoint(url, port, ports.authority)
        if PLAIN.get(url, url) == own and (url in PLAIN) == secured:
            assert ask(where)
            ssh = b"SSH-2.0-OpenSSH_9.6"
            later = what_answers.wrong_port(where, ssh, deadline=Deadline(60_000), by_look=False)
            assert later is None, "a peer that was right is not the wrong one later"
        else:
            said, pattern = told(where), expected(url, there, port, secured=secured)
            assert re.search(pattern, said), (url, said, pattern)


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
                said, pattern = told(where), expected(url, PLAIN.get(own, own), port, secured=secured)
                assert re.search(pattern, said), (url, said, pattern)


# --- ports of neither


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH answers there, and {} was expected: it said 'SSH-2.0-OpenSSH_9.6'"),
        (b"220 mail ESMTP\r\n", "a mail or FTP server answers there, and {} was expected: it said '220 mail ESMTP'"),
        (b"J\0\0\0\x0a8.0.36\0", "the peer does not speak {}, it answered "),
    ],
    ids=["ssh", "smtp", "mysql"],
)
def test_a_port_that_speaks_first(greeting: bytes, said: str) -> None:
    def greet(peer: socket.socket) -> None:
        peer.sendall(greeting)
        while peer.recv(4_096):
            pass

    with listening(greet) as (port, _):
        for url in URLS:
            assert said.format(TITLES[PLAIN.get(url, url)]) in told(endpoint(url, port))


def test_a_broker_of_the_older_amqp() -> None:
    def refuse(peer: socket.socket) -> None:
        peer.recv(4_096)
        peer.sendall(b"AMQP\x00\x00\x09\x01")

    with listening(refuse) as (port, _):
        for url in URLS:
            said = told(endpoint(url, port))
            assert "AMQP 0-9-1 or older answers there" in said
            assert "format 'rabbitmq-stream', rabbitmq-stream://host:5552" in said


def test_kafka() -> None:
    def serve(peer: socket.socket) -> None:
        head = peer.recv(4_096)
        if head[4:6] == b"\0\x12":  # ApiVersions; to a request that is too large it hangs up
            peer.sendall(b"\0\0\0\x10" + head[8:12] + b"\0\0\0\0\0\1\0\x12\0\0\0\4")

    with listening(serve) as (port, _):
        for url in ("amqp", "rabbitmq-stream", "http"):
            assert "Spark reads Kafka with its own format 'kafka'" in told(endpoint(url, port))


MANAGEMENT = (
    b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 49\r\ncontent-type: application/json\r\n"
    b'server: Cowboy\r\n\r\n{"error":"Object Not Found","reason":"Not Found"}'
)
"""What the management of RabbitMQ 4.3.6 answers for what it does not have, without some headers."""


def waits_for_a_line(peer: socket.socket) -> None:
    """A server of HTTP, which waits for a line: RabbitMQ's management does, for five seconds, and this one for one."""
    peer.settimeout(1)
    with peer.makefile("rb") as lines:
        if lines.readline().rstrip().endswith(b"HTTP/1.1"):
            peer.sendall(MANAGEMENT)


@pytest.mark.parametrize("url", ["amqp", "amqps", "rabbitmq-stream", "rabbitmq-stream+tls"])
def test_a_port_that_says_nothing_to_foreign_bytes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (what_answers, rabbit_connection):
        monkeypatch.setattr(module, "LOOK_AFTER_S", 0.05)
    with listening(waits_for_a_line) as (port, _):
        said = told(endpoint(url, port))
        assert "HTTP answers there" in said and "it looks like RabbitMQ's management; check the port" in said


def test_a_feed_that_is_rabbitmqs_management() -> None:
    with listening(waits_for_a_line) as (port, _), pytest.raises(SparkStreamsError) as raised:
        ask(endpoint("http", port))
    assert "status 404" in str(raised.value) and "it looks like RabbitMQ's management" in str(raised.value)


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


# --- when nobody looks


def test_a_look_that_finds_nothing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    with listening(lambda peer: peer.recv(4_096) and None) as (port, _):
        for url, said in (
            ("amqp", "the peer closed the connection at once"),
            ("rabbitmq-stream", "without a word"),
            ("http", "the answer"),
        ):
            with pytest.raises(SparkStreamsError) as raised:
                ask(endpoint(url, port))
            assert raised.value.retriable and (said in str(raised.value) or url == "http")


def test_nobody_looks_at_what_a_peer_has_named() -> None:
    with listening(lambda peer: None) as (port, seen):
        where, deadline = endpoint("amqp", port), Deadline(60_000)
        advertised = replace(where, is_advertised=True)
        assert what_answers.wrong_port(advertised, deadline=deadline) is None
        assert what_answers.wrong_port(where, deadline=deadline, by_look=False) is None
        assert seen == [0]
        # Its own words tell all the same.
        assert "HTTP answers there" in str(what_answers.wrong_port(advertised, b"HTTP/1.1 400", deadline=deadline))
        assert what_answers.wrong_port(where, deadline=deadline) is None
        assert (looked := seen[0]) > 1
        assert what_answers.wrong_port(where, deadline=deadline) is None
        assert seen[0] == looked, "nobody looks again so soon where nothing was wrong"


def test_nobody_looks_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(lambda peer: None) as (port, seen), listening(lambda peer: peer.recv(9) and None) as (proxy, asked):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy}")
        monkeypatch.setattr(retry, "_pause", lambda seconds: None)
        with pytest.raises(SparkStreamsError):
            ask(endpoint("http", port))
        assert seen == [0] and asked[0] > 1
