"""AMQP over WebSockets, straight on and through a proxy; what a user is told when that fails."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import proton
import pyarrow as pa
import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import web_socket
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.web_socket import MAX_MESSAGE_BYTES, PATH, WebSocket
from spark_streams.client.what_answers import wrong_port
from spark_streams.endpoint import Endpoint, Secret, Tls
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    SparkStreamsError,
)
from spark_streams.position import EARLIEST
from tests.client.amqp.fake_namespace import KEY, RULE, FakeNamespace
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.client.amqp.test_connect import listener
from tests.client.amqp.web_socket_port import HttpProxy, WebSocketPort, nothing_there
from tests.wire.work import work_of


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own proxies are none of these tests'."""
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def endpoint(port: int, tls: Tls | None = None, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint("amqps" if tls else "amqp", host, port, tls=tls, transport="websocket")


def failure(where: Endpoint, timeout_ms: int = 60_000) -> SparkStreamsError:
    with pytest.raises(SparkStreamsError) as caught:
        Connection(where, timeout_ms=timeout_ms)
    words = f"{caught.value} {caught.value!r}"
    assert f"{where.dialled[0]}:{where.dialled[1]}" in words and "geheim" not in words
    return caught.value


def read_and_write(where: Endpoint, peer: FakePeer, log: list[tuple[str, bytes]]) -> None:
    """Read all events, in batches, and write large messages."""
    with AmqpClient(where, timeout_ms=60_000) as client:
        read = RangeRead("orders", "0", EARLIEST, log[-1][0], ("offset", "value"))
        batches = list(client.fetch(read, max_rows=700))
        link = client.publisher("orders")
        link.send(pa.array([proton.Message(body=b"y" * 100_000).encode()] * 20, pa.large_binary()), str)
        link.flush()
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == log
    assert len(peer.received) == 20


@pytest.mark.parametrize("pings", [False, True])
def test_reading_and_writing(pings: bool) -> None:
    log = [(f"{n:05d}", b"x" * n) for n in range(3_000)]
    with FakePeer(Script(events=log)) as peer, WebSocketPort(peer.port) as server:
        server.pings = pings
        where = endpoint(server.port)
        read_and_write(where, peer, log)
        later = wrong_port(where, b"SSH-2.0-OpenSSH_9.6")
        assert later is None, "a peer that was right is not the wrong one later"
        assert server.requests == [
            {
                "path": "/$servicebus/websocket",
                "Host": f"127.0.0.1:{server.port}",
                "Sec-WebSocket-Protocol": "AMQPWSB10, amqp",
                "Sec-WebSocket-Extensions": None,
            }
        ]


def test_reading_and_writing_with_tls_through_a_proxy(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = [(f"{n:05d}", b"x" * n) for n in range(2_000)]
    with FakePeer(Script(events=log)) as peer, WebSocketPort(peer.port, certificates) as server, HttpProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        read_and_write(endpoint(server.port, Tls(str(certificates / "ca.pem"))), peer, log)
        assert proxy.targets == [f"127.0.0.1:{server.port}"]


def test_an_event_hubs_over_tls(certificates: Path) -> None:
    with FakeNamespace() as namespace, WebSocketPort(namespace.port, certificates) as server:
        where = Endpoint(
            "amqps",
            "127.0.0.1",
            server.port,
            RULE,
            Secret(KEY),
            Tls(str(certificates / "ca.pem")),
            transport="websocket",
        )
        connection = Connection(where, timeout_ms=60_000)
        connection.close()
        assert namespace.signed_in == [f"PLAIN {RULE}"]


def test_certificates_are_checked_as_without_a_websocket(certificates: Path) -> None:
    with FakeNamespace() as namespace, WebSocketPort(namespace.port, certificates) as server:
        assert "'tls.caFile'" in str(failure(endpoint(server.port, Tls())))


def test_a_gateway_is_called_by_its_name_unless_that_is_an_address(certificates: Path) -> None:
    tls = Tls(str(certificates / "ca.pem"))
    with FakeNamespace() as namespace, WebSocketPort(namespace.port, certificates) as server:
        known, unknown = "127.0.0.1", "ns.invalid"
        # The certificate is for 127.0.0.1: it is the namespace's here.
        Connection(endpoint(1, tls, known).reached("websocket", ("127.0.0.1", server.port)), timeout_ms=60_000).close()
        assert server.requests[0]["Host"] == f"127.0.0.1:{server.port}"
        # And not that of a gateway with a name.
        fault = failure(endpoint(1, tls, known).reached("websocket", ("localhost", server.port)))
        assert "does not verify" in str(fault) and f"via localhost:{server.port}" in str(fault)
        assert "does not verify" in str(failure(endpoint(1, tls, unknown).reached("tcp", ("127.0.0.1", server.port))))
        trusting = Tls(str(certificates / "ca.pem"), verify_hostname=False)
        where = endpoint(1, trusting, unknown).reached("websocket", ("localhost", server.port))
        Connection(where, timeout_ms=60_000).close()
        assert server.requests[-1]["Host"] == f"localhost:{server.port}"


def test_a_gateway_that_is_not_there() -> None:
    with nothing_there() as port:
        fault = failure(endpoint(5672, host="ns.invalid").reached("tcp", ("127.0.0.1", port)))
        assert "connection refused" in str(fault) and "option 'customEndpoint'" in str(fault)
    fault = failure(endpoint(5672).reached("tcp", ("no-such-gateway.invalid", 5671)))
    assert "'no-such-gateway.invalid' is not known: check the host in option 'customEndpoint'" in str(fault)


# --- what goes wrong


@pytest.mark.parametrize(("status", "retriable"), [(401, False), (404, False), (503, True)])
def test_a_websocket_that_is_refused(status: int, retriable: bool) -> None:
    with FakeNamespace() as namespace, WebSocketPort(namespace.port) as server:
        server.answer = status
        fault = failure(endpoint(server.port))
        assert isinstance(fault, ConnectFailed) and fault.retriable == retriable
        assert f"the WebSocket was refused (status {status}, " in str(fault) and "option 'url'" in str(fault)


def test_a_port_of_plain_amqp() -> None:
    with FakePeer(Script()) as peer:
        fault = failure(endpoint(peer.port))
        assert isinstance(fault, ConnectFailed) and not fault.retriable
        assert "AMQP 1.0 over WebSockets was expected" in str(fault) and "without option 'transport'" in str(fault)


def test_a_port_that_says_nothing() -> None:
    with listener(lambda peer: peer.recv(1_000) and peer.recv(1_000)) as port:
        fault = failure(endpoint(port), timeout_ms=1_500)
        assert isinstance(fault, DeadlineExceeded) and "no answer to the handshake of the WebSocket" in str(fault)


def test_a_port_that_closes_at_once() -> None:
    with listener(lambda peer: peer.recv(1_000)) as port:
        assert isinstance(failure(endpoint(port)), ConnectFailed)


@pytest.mark.parametrize(
    ("close", "said"),
    [
        ((1008, "no such policy"), "with code 1008: no such policy"),
        ((1000, "bye"), "closed it during the SASL handshake"),
    ],
)
def test_a_websocket_that_is_closed(close: tuple[int, str], said: str) -> None:
    with FakeNamespace() as namespace, WebSocketPort(namespace.port) as server:
        server.close = close
        assert said in str(failure(endpoint(server.port)))


def test_a_websocket_of_text() -> None:
    with FakeNamespace() as namespace, WebSocketPort(namespace.port) as server:
        server.text = True
        fault = failure(endpoint(server.port))
        assert isinstance(fault, ConnectionLost) and "the peer sent text over the WebSocket" in str(fault)


# --- proxies


@contextlib.contextmanager
def proxied(certificates: Path, monkeypatch: pytest.MonkeyPatch, credentials: str | None = None) -> Iterator[HttpProxy]:
    with HttpProxy(credentials) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        yield proxy


def test_a_proxy_with_a_password(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = Tls(str(certificates / "ca.pem"))
    with (
        FakeNamespace() as namespace,
        WebSocketPort(namespace.port, certificates) as server,
        proxied(certificates, monkeypatch, "ann:geheim/pass word") as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:geheim%2Fpass%20word@127.0.0.1:{proxy.port}/")
        with pytest.raises(AuthenticationFailed, match="signing in"):
            Connection(
                Endpoint("amqps", "127.0.0.1", server.port, RULE, Secret("wrong-password"), tls, transport="websocket"),
                timeout_ms=60_000,
            )
        for userinfo in ("ann:geheim-wrong@", ""):
            monkeypatch.setenv("HTTPS_PROXY", f"http://{userinfo}127.0.0.1:{proxy.port}")
            fault = failure(endpoint(server.port, tls))
            assert isinstance(fault, AuthenticationFailed) and not fault.retriable
            assert f"the proxy 127.0.0.1:{proxy.port} of HTTPS_PROXY" in str(fault)
            assert "status 407: check the user and password in HTTPS_PROXY" in str(fault)


@pytest.mark.parametrize(
    ("answer", "said", "retriable"),
    [
        (b"HTTP/1.1 403 Not to geheim\r\n\r\n", "it does not connect us: status 403", False),
        (b"HTTP/1.1 502 Bad gateway\r\n\r\n", "it does not connect us: status 502, Bad gateway", True),
        (b"SSH-2.0-geheim\r\n", "no HTTP answer", True),
        (b"", "no HTTP answer", True),
    ],
)
def test_a_proxy_that_does_not_connect(
    answer: bytes, said: str, retriable: bool, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_streams.redaction import remember

    remember("geheim-xx")
    with proxied(certificates, monkeypatch) as proxy:
        proxy.answer = answer.replace(b"geheim", b"geheim-xx")
        fault = failure(endpoint(443, Tls(), "ns.invalid"))
        assert isinstance(fault, ConnectFailed) and fault.retriable == retriable
        assert said in str(fault) and "HTTPS_PROXY" in str(fault)
        assert proxy.targets == ["ns.invalid:443"], "the proxy finds the address"


def test_a_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with nothing_there() as port:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        fault = failure(endpoint(443, Tls(), "ns.invalid"))
        assert f"the proxy 127.0.0.1:{port} of HTTPS_PROXY: it cannot be reached" in str(fault)


def test_a_proxy_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(lambda peer: peer.recv(1_000) and peer.recv(1_000)) as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        fault = failure(endpoint(443, Tls(), "ns.invalid"), timeout_ms=1_500)
        assert isinstance(fault, (ConnectFailed, DeadlineExceeded)) and "HTTPS_PROXY" in str(fault)


@pytest.mark.parametrize("url", ["https://geheim@h:1", "socks5://h:1", "http://", "http://geheim:geheim@h:port"])
def test_a_proxy_that_cannot_be_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", url)
    with pytest.raises(ConnectFailed, match="HTTPS_PROXY names no proxy that can be used") as caught:
        Connection(endpoint(443, Tls(), "ns.invalid"), timeout_ms=60_000)
    assert "geheim" not in str(caught.value) and not caught.value.retriable


def test_no_proxy_for_hosts_that_are_named(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = Tls(str(certificates / "ca.pem"))
    with (
        FakeNamespace() as namespace,
        WebSocketPort(namespace.port, certificates) as server,
        proxied(certificates, monkeypatch) as proxy,
    ):
        monkeypatch.setenv("NO_PROXY", "example.com,127.0.0.1")
        Connection(endpoint(server.port, tls), timeout_ms=60_000).close()
        assert proxy.targets == []
        monkeypatch.delenv("NO_PROXY")
        Connection(endpoint(server.port, tls), timeout_ms=60_000).close()
        assert len(proxy.targets) == 1


# --- the stream of bytes


class Joined:
    """A client's WebSocket over a socket that takes little, and the other side's protocol."""

    def __init__(self) -> None:
        client = ClientProtocol(parse_uri(f"ws://h{PATH}"), max_size=MAX_MESSAGE_BYTES)
        self.protocol = ServerProtocol(max_size=None)
        client.send_request(client.connect())
        self.protocol.receive_data(b"".join(client.data_to_send()))
        (request,) = self.protocol.events_received()
        self.protocol.send_response(self.protocol.accept(request))  # type: ignore[arg-type]
        client.receive_data(b"".join(self.protocol.data_to_send()))
        assert client.events_received()
        ours, self.other = socket.socketpair()
        for each in (ours, self.other):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        self.stream = WebSocket(ours, client)

    def received(self, most: int = 1 << 20) -> list[Frame]:
        """Return the frames that have come to the other side."""
        with contextlib.suppress(BlockingIOError):
            self.protocol.receive_data(self.other.recv(most))
        return [each for each in self.protocol.events_received() if isinstance(each, Frame)]

    def flush(self) -> None:
        """Send what the other side's protocol has written; the client reads it while there is no room."""
        self.other.sendall(b"".join(self.protocol.data_to_send()))


@pytest.mark.parametrize("seed", range(20))
def test_sent_bytes_arrive_once_and_in_order_however_little_the_socket_takes(seed: int) -> None:
    chosen = random.Random(seed)
    joined, sent = Joined(), chosen.randbytes(300_000)
    rest, arrived, pings = memoryview(sent), b"", 0
    while len(arrived) < len(sent):
        with contextlib.suppress(BlockingIOError):
            rest = rest[joined.stream.send(rest[: chosen.choice((1, 1_000, 70_000, 300_000))]) :] if rest else rest
        if chosen.random() < 0.1:
            joined.protocol.send_ping(b"ping")
            joined.flush()
            with pytest.raises(BlockingIOError):
                joined.stream.recv_into(memoryview(bytearray(10)))
        for frame in joined.received(chosen.choice((10, 4_096, 100_000))):
            if frame.opcode is Opcode.PONG:
                assert frame.data == b"ping"
                pings += 1
            else:
                assert frame.opcode is Opcode.BINARY and len(frame.data) <= 65_536
                arrived += bytes(frame.data)
    assert arrived == sent


@pytest.mark.parametrize("size", [1, 7, 1_000, 1 << 20])
def test_received_bytes_are_joined_and_none_waits_behind_a_socket_that_would_block(size: int) -> None:
    joined, sent = Joined(), random.Random(size).randbytes(40_000)
    for at in range(0, len(sent), 10_000):
        part = sent[at : at + 10_000]
        joined.protocol.send_binary(part[:3_000], fin=False)
        joined.protocol.send_ping(b"")
        joined.protocol.send_continuation(b"", fin=False)
        joined.protocol.send_continuation(part[3_000:], fin=True)
    written, got = b"".join(joined.protocol.data_to_send()), b""
    room = bytearray(size)
    for at in range(0, len(written), 1_500):
        joined.other.sendall(written[at : at + 1_500])
        with contextlib.suppress(BlockingIOError):
            while count := joined.stream.recv_into(memoryview(room)):
                got += room[:count]
    assert got == sent


def test_pongs_that_a_peer_does_not_read_are_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_socket, "_READ_BYTES", 1_000)

    def pinged(times: int) -> Joined:
        joined = Joined()
        for number in range(times):
            joined.protocol.send_ping(b"%125d" % number)
            joined.flush()
            with pytest.raises(BlockingIOError):
                joined.stream.recv_into(memoryview(bytearray(10)))
        return joined

    few, many = work_of(lambda: pinged(100)), work_of(lambda: pinged(1_000))
    assert many.touched <= 15 * few.touched
    joined, got = pinged(500), list[bytes]()
    while len(got) < 500:
        with contextlib.suppress(BlockingIOError):
            joined.stream._drain()
        got += [bytes(frame.data) for frame in joined.received() if frame.opcode is Opcode.PONG]
    assert got == [b"%125d" % number for number in range(500)]


def test_the_end_of_the_stream() -> None:
    joined = Joined()
    joined.protocol.send_binary(b"last")
    joined.protocol.send_close(1000)
    joined.flush()
    assert joined.stream.recv(2) == b"la" and joined.stream.recv(10) == b"st"
    assert joined.stream.recv(10) == b"" == joined.stream.recv(10)
    with pytest.raises(ConnectionError, match="the WebSocket is closed"):
        joined.stream.send(b"x")
    joined.stream.close()


def test_a_socket_that_ends_without_a_close() -> None:
    joined = Joined()
    joined.other.close()
    assert joined.stream.recv(10) == b""
    joined.stream.close()


def test_a_frame_that_breaks_the_protocol() -> None:
    joined = Joined()
    joined.other.sendall(b"\x82\x84abcdabcd")  # masked, as only a client's are
    with pytest.raises(ConnectionError, match="the WebSocket broke"):
        joined.stream.recv(10)
    joined.stream.close()


def test_a_message_that_is_too_large() -> None:
    joined = Joined()
    joined.other.sendall(b"\x82\x7f" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big"))
    with pytest.raises(ConnectionError, match="the WebSocket broke"):
        joined.stream.recv(10)


def test_closing_says_so() -> None:
    joined = Joined()
    joined.stream.close()
    (frame,) = joined.received()
    assert frame.opcode is Opcode.CLOSE
