"""A handshake of TLS that fails at a door: the peer is told why, and what it held is free again."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.door_urls import plain_url

DOORS = ("amqp", "rabbitmq-stream", "feedapi")
ALERT = b"\x15\x03"
"""A record with an alert (RFC 8446 §5.1)."""


class Served:
    """Three doors that want a client certificate.

    Args:
        folder: for the log and the certificates.
        handshake_timeout_ms: of the doors.
    """

    def __init__(self, folder: Path, handshake_timeout_ms: int = 60_000) -> None:
        self.authority = Authority(folder, "authority")
        certificate, key = self.authority.issue("server")
        common: dict[str, Any] = {
            "port": 0,
            "tls_cert": certificate,
            "tls_key": key,
            "tls_client_ca": str(self.authority.file),
            "tls_client_required": True,
            "handshake_timeout_ms": handshake_timeout_ms,
        }
        self._stack = contextlib.ExitStack()
        log = self._stack.enter_context(ReferenceLog(folder / "log"))
        doors = RabbitConfig(**common), FeedConfig(**common)
        server = self._stack.enter_context(ServerThread(log, AmqpConfig(**common), *doors))
        self.ports = {name: int(plain_url(url).rpartition(":")[2]) for name, url in server.urls.items()}
        self.sockets = server.server._sockets

    def close(self) -> None:
        self._stack.close()

    def connect(self, door: str) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", self.ports[door]))
        connected.settimeout(60)
        return connected

    def await_nobody(self) -> None:
        """Wait until no connection is counted any more."""
        deadline = time.monotonic() + 60
        while self.sockets.open:
            assert time.monotonic() < deadline, "a connection whose handshake failed is counted for ever"
            time.sleep(0.01)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with contextlib.closing(Served(tmp_path)) as found:
        yield found


def rest(connected: socket.socket) -> bytes:
    """All that comes until the other side says no more."""
    received = b""
    while piece := connected.recv(4_096):
        received += piece
    return received


@pytest.mark.parametrize("door", DOORS)
def test_bytes_that_are_no_tls_are_answered_by_an_alert(door: str, served: Served) -> None:
    with served.connect(door) as connected:
        connected.sendall(b"AMQP\x03\x01\x00\x00" + b"GET / HTTP/1.1\r\n\r\n" * 1_000)
        assert rest(connected).startswith(ALERT)
    served.await_nobody()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("shown", [False, True], ids=["no certificate", "of another authority"])
def test_whose_certificate_is_not_taken_is_told(
    door: str, version: ssl.TLSVersion, shown: bool, served: Served, tmp_path: Path
) -> None:
    context = ssl.create_default_context(cafile=str(served.authority.file))
    context.minimum_version = context.maximum_version = version
    if shown:
        context.load_cert_chain(*Authority(tmp_path, "other").issue("mallory"))
    with (
        pytest.raises(ssl.SSLError) as raised,
        served.connect(door) as connected,
        context.wrap_socket(connected, server_hostname="127.0.0.1") as secured,
    ):
        secured.sendall(b"AMQP\x03\x01\x00\x00" * 100)
        rest(secured)
    assert any(reason in str(raised.value).upper().replace(" ", "_") for reason in reasons(version, shown))
    served.await_nobody()


def reasons(version: ssl.TLSVersion, shown: bool) -> tuple[str, ...]:
    """What OpenSSL calls the alerts that a server may send here."""
    if shown:
        return ("UNKNOWN_CA",)
    return ("CERTIFICATE_REQUIRED",) if version is ssl.TLSVersion.TLSv1_3 else ("HANDSHAKE_FAILURE",)


def test_a_peer_that_stays_after_the_alert_is_ended(tmp_path: Path) -> None:
    """It may read and send what it likes: the time of the handshake is all that it has."""
    with contextlib.closing(Served(tmp_path, handshake_timeout_ms=500)) as served, served.connect("amqp") as connected:
        connected.sendall(b"no TLS")
        assert rest(connected).startswith(ALERT)
        served.await_nobody()
        with pytest.raises(OSError):
            for _ in range(1_000):
                connected.sendall(b"x" * 65_536)
                time.sleep(0.01)


def test_others_come_in_beside_it(served: Served) -> None:
    with served.connect("amqp") as stranger:
        stranger.sendall(b"no TLS")
        assert rest(stranger).startswith(ALERT)
        context = ssl.create_default_context(cafile=str(served.authority.file))
        context.load_cert_chain(*served.authority.issue("ann"))
        with context.wrap_socket(served.connect("amqp"), server_hostname="127.0.0.1") as secured:
            secured.sendall(b"AMQP\x03\x01\x00\x00")
            assert secured.recv(8) == b"AMQP\x03\x01\x00\x00"
