"""What a user is told when the client cannot get in: host, port, TLS, password. No message holds the password."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import proton
import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.client.amqp import connection
from spark_streams.endpoint import Endpoint, Secret, Tls
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    OptionError,
    SparkStreamsError,
)
from spark_streams.position import EARLIEST
from spark_streams.wire.amqp.sasl import SaslServer
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.faults.proxy import TcpProxy

PASSWORD = "correct horse"


def endpoint(port: int, tls: Tls | None = None, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint("amqps" if tls else "amqp", host, port, "user", Secret(PASSWORD), tls)


def failure(where: Endpoint, timeout_ms: int = 120_000) -> SparkStreamsError:
    begun = time.monotonic()
    with AmqpClient(where, timeout_ms=timeout_ms) as client, pytest.raises(SparkStreamsError) as failed:
        client.describe("orders")
    assert time.monotonic() - begun < 60, "a guard against hanging"
    assert where.address in str(failed.value)
    assert PASSWORD not in str(failed.value) and PASSWORD not in repr(failed.value)
    return failed.value


@contextlib.contextmanager
def listener(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """Serve each connection by ``serve`` in a thread."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                peer.settimeout(5)
                serve(peer)

    threading.Thread(target=run, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


def test_wrong_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there, nor can anybody
        fault = failure(endpoint(taken.getsockname()[1]))
    assert isinstance(fault, ConnectFailed)
    assert "connection refused" in str(fault) and "check the port in option 'url'" in str(fault)


def test_wrong_host() -> None:
    fault = failure(endpoint(5672, host="no-such-host.invalid"))
    assert isinstance(fault, ConnectFailed)
    assert "'no-such-host.invalid' is not known" in str(fault)
    assert not fault.retriable


def test_a_port_of_something_else() -> None:
    def http(peer: socket.socket) -> None:
        peer.recv(100)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with listener(http) as port:
        fault = failure(endpoint(port))
    assert isinstance(fault, ConnectFailed)
    assert "HTTP answers there, and AMQP 1.0 was expected" in str(fault) and not fault.retriable


def test_a_port_that_closes_at_once() -> None:
    with listener(lambda peer: None) as port:
        fault = failure(endpoint(port))
    assert isinstance(fault, ConnectFailed)
    assert "closed the connection at once" in str(fault) and "amqps://" in str(fault)


def test_a_port_that_says_nothing() -> None:
    with listener(lambda peer: peer.recv(100) and peer.recv(100)) as port:
        fault = failure(endpoint(port), timeout_ms=2_000)
    assert isinstance(fault, DeadlineExceeded)
    assert "within 2000 ms" in str(fault)


def test_plain_to_a_tls_port(certificates: Path) -> None:
    with tls_port(certificates) as port:
        fault = failure(endpoint(port))
    assert isinstance(fault, ConnectFailed)
    assert "write amqps:// instead of amqp://" in str(fault)


def test_tls_to_a_plain_port() -> None:
    with FakePeer(Script()) as peer:
        fault = failure(endpoint(peer.port, Tls()), timeout_ms=120_000)
    assert isinstance(fault, ConnectFailed)
    assert "write amqp:// instead of amqps://" in str(fault)


def test_a_certificate_of_an_unknown_authority(certificates: Path) -> None:
    with tls_port(certificates) as port:
        fault = failure(endpoint(port, Tls()))
    assert isinstance(fault, ConnectFailed)
    assert "does not verify" in str(fault) and "'tls.caFile'" in str(fault)


def test_a_certificate_of_another_host(certificates: Path) -> None:
    with tls_port(certificates) as port:
        tls = Tls(str(certificates / "ca.pem"))
        fault = failure(endpoint(port, tls, host="localhost"))
        assert "does not verify" in str(fault) and "'tls.verifyHostname'" in str(fault)
        trusting = Tls(str(certificates / "ca.pem"), verify_hostname=False)
        assert "does not verify" not in str(failure(endpoint(port, trusting, host="localhost"), timeout_ms=300))


def test_a_certificate_that_verifies_gets_through(certificates: Path) -> None:
    log = [(f"{n:05d}", b"x" * n) for n in range(3_000)]
    with FakePeer(Script(events=log)) as peer, tls_port(certificates, peer.port) as port:
        where = Endpoint("amqps", "127.0.0.1", port, None, None, Tls(str(certificates / "ca.pem")))
        with AmqpClient(where, timeout_ms=120_000) as client:
            assert client.describe("orders").partitions["0"].latest == "02999"
            read = RangeRead("orders", "0", EARLIEST, "02999", ("offset", "value"))
            batches = list(client.fetch(read, max_rows=700))
            link = client.publisher("orders")
            link.send(pa.array([proton.Message(body=b"y" * 100_000).encode()] * 20, pa.large_binary()), str)
            link.flush()
        assert len(peer.received) == 20
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == log


@pytest.mark.parametrize("option", ["tls.caFile", "tls.certFile", "tls.keyFile"])
def test_a_tls_file_that_is_not_there(option: str) -> None:
    file = {"tls.caFile": "ca_file", "tls.certFile": "cert_file", "tls.keyFile": "key_file"}[option]
    with (
        AmqpClient(endpoint(1, Tls(**{file: "/nowhere.pem"}))) as client,
        pytest.raises(OptionError, match=f"'{option}'.*/nowhere.pem"),
    ):
        client.describe("orders")


def test_a_tls_file_that_is_no_pem(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    with (
        AmqpClient(endpoint(1, Tls(str(tmp_path / "ca.pem")))) as client,
        pytest.raises(OptionError, match=r"'tls.caFile'.*expected a PEM file"),
    ):
        client.describe("orders")


def test_wrong_password() -> None:
    def authenticate(peer: socket.socket) -> None:
        sasl = SaslServer(["PLAIN"], lambda user, password: False)
        while not sasl.done and (received := peer.recv(4096)):
            peer.sendall(sasl.receive(received))
        peer.recv(4096)

    with (
        listener(authenticate) as port,
        AmqpClient(endpoint(port), timeout_ms=120_000) as client,
        pytest.raises(AuthenticationFailed) as failed,
    ):
        client.describe("orders")
    words = f"{failed.value} {failed.value!r}"
    assert "'user'" in words and f"127.0.0.1:{port}" in words
    assert PASSWORD not in words


def test_a_cut_in_the_handshake_is_a_lost_connection() -> None:
    with FakePeer(Script()) as peer, TcpProxy(peer.port, [12] * 10) as proxy:
        fault = failure(Endpoint("amqp", "127.0.0.1", proxy.port))
    assert "lost" in str(fault) and fault.retriable


# --- a port with TLS, forwarding to a plain one


@contextlib.contextmanager
def tls_port(certificates: Path, target: int | None = None) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem")

    def serve(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as encrypted:
            if target is None:
                encrypted.recv(100)
                encrypted.recv(100)
                return
            with socket.create_connection(("127.0.0.1", target)) as plain:
                plain.settimeout(0.002)
                encrypted.settimeout(0.002)
                while True:
                    for source, sink in ((plain, encrypted), (encrypted, plain)):
                        with contextlib.suppress(TimeoutError, ssl.SSLWantReadError):
                            chunk = source.recv(65_536)
                            if not chunk:
                                return
                            sink.sendall(chunk)

    with listener(serve) as port:
        yield port


def test_a_network_that_gives_up_before_the_time_is_over_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own time-out; ours is a ``DeadlineExceeded``."""
    peer = Mock(spec=socket.socket)
    peer.recv.side_effect = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    monkeypatch.setattr(connection, "open_socket", lambda *_: peer)
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:5672.*Connection timed out"):
        connection.Connection(endpoint(5672), timeout_ms=600_000)
    assert peer.close.called
