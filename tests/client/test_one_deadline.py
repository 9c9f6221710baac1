"""One deadline for a request: peers that never fall silent and never come to an end, and what is not to be cut off."""

from __future__ import annotations

import contextlib
import errno
import itertools
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from spark_streams import secrets
from spark_streams.client import retry, timed
from spark_streams.client.amqp import request_links
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.management import Management
from spark_streams.client.amqp.web_socket import SUBPROTOCOLS, WebSocket
from spark_streams.client.feed import http as feed_http
from spark_streams.client.feed.http import FeedSession
from spark_streams.client.proxy import Proxy, connect_through
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import open_socket
from spark_streams.endpoint import HTTP_SCHEMES, Endpoint, Tls, parse_url
from spark_streams.errors import ConnectFailed, DeadlineExceeded, Refused, SparkStreamsError
from spark_streams.log import ReferenceLog
from spark_streams.secrets import CalledSecret
from spark_streams.server import AmqpConfig, ServerThread
from tests.certificate_authority import Authority
from tests.client.feed.scripted import Reply, Request, Scripted, client_of
from tests.client.listening import listening
from tests.client.rabbitmq.scripted import Scripted as ScriptedBroker
from tests.client.rabbitmq.scripted import Wire
from tests.real_rabbitmq import by_hand as key

TIMEOUT_MS = 300
GUARD_S = 120.0
APART_S = 0.01


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def going_on(first: bytes, then: bytes) -> Iterator[int]:
    """A port that answers ``first``, and ``then`` again and again until whoever asked hangs up, which has to be."""
    hung_up = threading.Event()

    def answer(peer: socket.socket) -> None:
        until = time.monotonic() + GUARD_S
        try:
            peer.sendall(first)
            while time.monotonic() < until:
                time.sleep(APART_S)
                peer.sendall(then)
        except OSError:
            hung_up.set()

    with listening(answer) as (port, _):
        yield port
        assert hung_up.wait(GUARD_S), "the client has given up, and has hung up too"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ENDLESS = {
    "a header": (HEAD + b"X-Pad: ", b"a"),
    "status 100": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body that is read whole": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "the size of a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_of_a_feed(what: str) -> None:
    with going_on(*ENDLESS[what]) as port, pytest.raises(DeadlineExceeded, match="'requestTimeout'"):
        ask(f"http://127.0.0.1:{port}/orders")


def ask(url: str, tls: Tls | None = None) -> bytes:
    with contextlib.closing(FeedSession(parse_url(url, schemes=HTTP_SCHEMES).with_tls(tls), TIMEOUT_MS)) as session:
        return session.send("GET").body()


def test_the_words_of_a_refusal() -> None:
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000\r\n\r\n"
    with going_on(head, b"x") as port, pytest.raises(Refused, match="status 403"):
        ask(f"http://127.0.0.1:{port}/orders")


def test_redirects_share_it() -> None:
    def redirect(_: Any) -> Reply:
        time.sleep(TIMEOUT_MS / 2_000)
        return Reply(status=302, headers={"Location": "/again"})

    with Scripted(redirect) as server, pytest.raises(DeadlineExceeded, match=f"within {TIMEOUT_MS} ms|requestTimeout"):
        ask(server.url)


def test_an_answer_to_what_was_sent() -> None:
    with going_on(HEAD + b"X-Pad: ", b"a") as port:
        session = FeedSession(parse_url(f"http://127.0.0.1:{port}/orders", schemes=HTTP_SCHEMES), TIMEOUT_MS)
        with contextlib.closing(session), pytest.raises(DeadlineExceeded):
            session.send("POST", body=b"rows")


LONG_S = 60
"""Seconds of ``requestTimeout``, by a clock that the peer sets: nothing waits for them."""
CONNECTING_S = 20
MUCH = b"r" * (16 << 20)
"""More than sockets hold: it is sent when the peer has read most of it, and not before."""


class SetByThePeer:
    """The clock of a feed's client; to connect takes a while by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, made = 100.0, feed_http.connect

        def slowly(*given: Any) -> socket.socket:
            connected = made(*given)
            self.now_s += CONNECTING_S
            return connected

        for module in (timed, feed_http, retry, urllib3.util.timeout):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(feed_http, "connect", slowly)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetByThePeer:
    return SetByThePeer(monkeypatch)


class Taking:
    """A feed that answers GET at once, and before it reads the body of a POST does what a test gives.

    Args:
        scheme: ``http`` or ``https``.
        folder: for its certificate.
        before: that.
    """

    def __init__(self, scheme: str, folder: Path, before: Callable[[], object]) -> None:
        self._scheme, self._before = scheme, before
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority = Authority(folder, "authority")
        self._context.load_cert_chain(*authority.issue("server"))
        self._tls = Tls(ca_file=str(authority.file)) if scheme == "https" else None

    def _serve(self, peer: socket.socket) -> None:
        if self._tls is not None:
            peer = self._context.wrap_socket(peer, server_side=True)
        with peer, peer.makefile("rb") as stream:
            while asked := stream.readline():
                length = 0
                while header := stream.readline().strip().lower():
                    if header.startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                if asked.startswith(b"POST"):
                    self._before()
                    stream.read(length)
                peer.sendall(HEAD + b"Content-Length: 2\r\n\r\n{}")

    @contextlib.contextmanager
    def asked(self) -> Iterator[FeedSession]:
        """A session with it."""
        with listening(self._serve) as (port, _):
            endpoint = parse_url(f"{self._scheme}://127.0.0.1:{port}/orders", schemes=HTTP_SCHEMES)
            with contextlib.closing(FeedSession(endpoint.with_tls(self._tls), LONG_S * 1_000)) as session:
                yield session


SCHEMES = pytest.mark.parametrize("scheme", ["http", "https"])


@SCHEMES
@pytest.mark.parametrize("kept", [False, True])
def test_what_is_sent_takes_of_the_time_for_the_answer(
    clock: SetByThePeer, scheme: str, kept: bool, tmp_path: Path
) -> None:
    def take() -> None:
        clock.now_s += LONG_S if kept else LONG_S - CONNECTING_S

    with Taking(scheme, tmp_path, take).asked() as session:
        if kept:
            session.send("GET").body()
        with pytest.raises(DeadlineExceeded, match="'requestTimeout'"):
            session.send("POST", body=MUCH)


@SCHEMES
def test_the_answer_has_what_is_left(
    clock: SetByThePeer, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    had: list[float | None] = []

    class Noted(timed.TimedResponse):
        def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
            had.append(sock.gettimeout())
            super().__init__(sock, *arguments, **named)

    def take() -> None:
        clock.now_s += LONG_S - CONNECTING_S - 10

    monkeypatch.setattr(feed_http.TimedHTTPConnection, "response_class", Noted)
    with Taking(scheme, tmp_path, take).asked() as session:
        assert session.send("POST", body=MUCH).body() == b"{}"
    assert had == [pytest.approx(10.0)]


@SCHEMES
def test_a_peer_that_does_not_read_has_what_is_left(
    clock: SetByThePeer, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = threading.Event()
    monkeypatch.setattr(sys.modules[__name__], "CONNECTING_S", LONG_S - 0.1)
    with Taking(scheme, tmp_path, lambda: given_up.wait(20)).asked() as session:
        with pytest.raises(DeadlineExceeded, match="'requestTimeout'") as raised:
            session.send("POST", body=MUCH)
        given_up.set()
    assert raised.value.costly, "it is tried once more, and not eight times"


def test_the_handshake_behind_a_proxy_has_what_is_left(clock: SetByThePeer, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    def connect(peer: socket.socket) -> None:
        with peer.makefile("rb") as stream:
            while stream.readline().strip():
                pass
            clock.now_s += LONG_S - CONNECTING_S - 0.1
            peer.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            given_up.wait(20)

    with listening(connect) as (port, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        session = FeedSession(parse_url("https://peer.example/orders", schemes=HTTP_SCHEMES), LONG_S * 1_000)
        with contextlib.closing(session), pytest.raises(DeadlineExceeded, match="'requestTimeout'"):
            session.send("GET")
        given_up.set()


@pytest.mark.parametrize(("client", "what"), [("feed", "a header"), ("amqps", "a header"), ("amqps", "status 100")])
def test_the_answer_of_a_proxy(client: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with going_on(*ENDLESS[what]) as port, pytest.raises((ConnectFailed, DeadlineExceeded)) as raised:
        if client == "amqps":
            connect_through(Proxy("127.0.0.1", port), ("peer.example", 443), Deadline(TIMEOUT_MS))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        ask("https://peer.example/orders", Tls())
    assert raised.value.costly, "it is tried once more, and not six times"


@pytest.mark.parametrize("client", ["feed", "amqps"])
def test_a_handshake_of_tls(client: str) -> None:
    with going_on(b"\x16\x03\x03\x40\x00", b"\0") as port, pytest.raises((ConnectFailed, DeadlineExceeded)):
        if client == "feed":
            ask(f"https://127.0.0.1:{port}/orders", Tls())
        open_socket(Endpoint("amqps", "127.0.0.1", port, tls=Tls()), Deadline(TIMEOUT_MS))


def test_signing_in_over_a_web_socket_that_pings() -> None:
    hung_up = threading.Event()

    def ping(accepted: ServerConnection) -> None:
        until = time.monotonic() + GUARD_S
        try:
            while time.monotonic() < until:
                time.sleep(APART_S)
                accepted.ping()
        except ConnectionClosed:
            hung_up.set()

    server = serve(ping, "127.0.0.1", 0, subprotocols=SUBPROTOCOLS, ping_interval=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    where = Endpoint("amqp", "127.0.0.1", server.socket.getsockname()[1], transport="websocket")
    try:
        with pytest.raises(DeadlineExceeded, match="no answer to the SASL handshake"):
            Connection(where, timeout_ms=TIMEOUT_MS)
        assert hung_up.wait(GUARD_S)
    finally:
        server.shutdown()


def test_pings_without_end_do_not_keep_a_turn() -> None:
    ping, times = b"\x89\0", itertools.count()

    def recv(_: int) -> bytes:
        assert next(times) < 10_000_000, "it reads and reads"
        return ping

    seen: list[bytes] = []
    protocol = SimpleNamespace(
        close_rcvd=None, parser_exc=None, receive_data=seen.append, events_received=list, data_to_send=list
    )
    peer: Any = SimpleNamespace(recv=recv, gettimeout=lambda: 0.0)
    with pytest.raises(BlockingIOError):
        WebSocket(peer, protocol).recv_into(memoryview(bytearray(10)))  # type: ignore[arg-type]
    assert seen and set(seen) == {ping}


def test_signing_in_at_a_broker_of_streams() -> None:
    """Each answer comes in time, and all of them together do not."""
    broker = ScriptedBroker()

    def late(handler: Callable[[Wire, int, bytes], None]) -> Callable[[Wire, int, bytes], None]:
        def handle(wire: Wire, number: int, body: bytes) -> None:
            time.sleep(TIMEOUT_MS / 3_000)
            handler(wire, number, body)

        return handle

    for kind in (
        key.PEER_PROPERTIES,
        key.SASL_HANDSHAKE,
        key.SASL_AUTHENTICATE,
        key.OPEN,
        key.EXCHANGE_COMMAND_VERSIONS,
    ):
        broker.handlers[kind] = late(broker.handlers[kind])
    with broker, pytest.raises(DeadlineExceeded, match=f"within {TIMEOUT_MS} ms"):
        open_connection(broker.endpoint, timeout_ms=TIMEOUT_MS)


# --- what it does not cover, and how it is shared


def provide() -> str:
    """Stand for the function of an option; a test replaces it."""
    raise NotImplementedError


def open_amqp(endpoint: Endpoint) -> None:
    with ReferenceLog(None) as log, ServerThread(log, AmqpConfig(port=0)) as server:
        at = parse_url(server.url("amqp"))
        Connection(replace(endpoint, host=at.host, port=at.port, scheme=at.scheme), timeout_ms=LONG_S * 1_000).close()


def open_streams(endpoint: Endpoint) -> None:
    with ScriptedBroker() as broker:
        open_connection(replace(broker.endpoint, password=endpoint.password), timeout_ms=LONG_S * 1_000).close()


def renew_at_a_feed(endpoint: Endpoint) -> None:
    def answer(request: Request) -> Reply:
        return Reply(b"", 200 if request.headers["Authorization"] == "Bearer guest" else 401)

    with Scripted(answer) as server:
        own = parse_url(f"{server.url}/orders", schemes=HTTP_SCHEMES).with_token(endpoint.password)
        with contextlib.closing(FeedSession(own, LONG_S * 1_000)) as session:
            session._credentials._secret = "old"
            session.send("GET").body()


@pytest.mark.parametrize("sign_in", [open_amqp, open_streams, renew_at_a_feed])
def test_the_time_of_a_function_that_gives_a_password_is_not_the_peers(
    sign_in: Callable[[Endpoint], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    def slowly() -> str:
        now[0] += LONG_S
        return "guest"

    monkeypatch.setattr(sys.modules[__name__], "provide", slowly)
    monkeypatch.setattr(secrets, "_TRIED", {f"{__name__}:provide"})
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sign_in(Endpoint("amqp", "127.0.0.1", 1, "guest", CalledSecret(f"{__name__}:provide", "passwordProvider")))
    assert now[0] == 100.0 + LONG_S, "it was called once"


def test_a_page_that_comes_slowly_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By another clock, each piece comes an hour after the one before it."""
    now_s = itertools.count(0.0, 3_600.0)
    clock = [next(now_s)]
    monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    count = 50

    def page(request: Request) -> Reply:
        if "cursor" not in request:
            return Reply(b'{"partitions": [{"id": "0"}]}', kind="application/json")

        def pieces() -> Iterator[bytes]:
            for n in range(count):
                clock[0] = next(now_s)
                yield b'{"event": {"n": %d}}\n{"cursor": "%d"}\n' % (n, n)

        return Reply(pieces())

    with Scripted(page) as server, client_of(server.url) as client:
        assert sum(lines.count for lines in client.lines(0, "_first")) == count


def test_the_addresses_of_a_host_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tried = [100.0], []

    class Silent:
        """A socket of a host that never answers: each wait takes as long as it may."""

        def __init__(self, *_: object) -> None:
            self.timeout_s = 0.0

        def settimeout(self, seconds: float) -> None:
            self.timeout_s = seconds

        def connect(self, address: tuple[str, int]) -> None:
            tried.append(address[0])
            clock[0] += self.timeout_s
            raise TimeoutError("timed out")

        def close(self) -> None:
            pass

    def addresses(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"192.0.2.{n}", 5671)) for n in range(4)]

    of_socket = SimpleNamespace(socket=Silent, getaddrinfo=addresses, SOCK_STREAM=socket.SOCK_STREAM)
    monkeypatch.setattr(timed, "socket", of_socket)
    monkeypatch.setattr(timed, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    with pytest.raises(TimeoutError):
        timed.connect(("silent.example", 5671), clock[0] + 3.0)
    assert tried == [f"192.0.2.{n}" for n in range(4)] and clock[0] == pytest.approx(103.0)


def test_attaching_and_asking_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(timeout_ms: int) -> Deadline:
        made.append(timeout_ms)
        return Deadline(timeout_ms)

    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0)) as server:
        log.create_stream("orders", 1)
        connection = Connection(parse_url(server.url("amqp")), timeout_ms=60_000)
        with contextlib.closing(connection):
            monkeypatch.setattr(request_links, "Deadline", counted)
            assert Management(connection).settings("orders", "settings")
    assert made == [60_000]


def test_a_kernel_without_ipv6_is_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """``getaddrinfo`` names such addresses all the same, and first."""
    made = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *arguments: Any, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, *arguments, **named)

    with made() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        both = [(socket.AF_INET6, ("::1", port, 0, 0)), (socket.AF_INET, ("127.0.0.1", port))]
        found = [(family, socket.SOCK_STREAM, 0, "", address) for family, address in both]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(socket, "socket", without_ipv6)
        timed.connect(("localhost", port), time.monotonic() + 60).close()


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_host_that_is_no_name_is_an_error_of_ours(host: str) -> None:
    session = FeedSession(parse_url(f"http://{host}:1/x", schemes=HTTP_SCHEMES), 1_000)
    with pytest.raises(SparkStreamsError, match="GET http"):
        session.send("GET")
