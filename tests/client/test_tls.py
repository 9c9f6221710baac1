"""TLS at all three doors, by our own clients: who is let in, and what a user is told to do who is not."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, Secret, Tls, parse_url
from spark_streams.errors import AuthenticationFailed, ConnectFailed, OptionError, SparkStreamsError
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from tests.certificate_authority import Authority
from tests.client.feed.scripted import QUICK

DOORS = ("amqp", "rabbitmq-stream", "feedapi")
ALL_SCHEMES = AMQP_SCHEMES | RABBITMQ_SCHEMES | HTTP_SCHEMES
DAY = datetime.timedelta(days=1)

Serve = Callable[..., dict[str, str]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a log behind three doors with these settings of TLS; answers their urls."""
    log = ReferenceLog(tmp_path / "log")
    log.create_stream("orders", 1)
    servers: list[ServerThread] = []

    def start(certificate: tuple[str, str], **settings: Any) -> dict[str, str]:
        common = {"port": 0, "tls_cert": certificate[0], "tls_key": certificate[1], **settings}
        server = ServerThread(
            log,
            AmqpConfig(**common),
            rabbit=RabbitConfig(**common, authentication_delay_ms=0),
            feed=FeedConfig(**common),
        )
        servers.append(server)
        server.__enter__()
        return server.urls

    with log:
        yield start
        for server in servers:
            server.__exit__(None, None, None)


def partitions(endpoint: Endpoint) -> int:
    """Ask a door for the partitions of ``orders``."""
    if endpoint.scheme in HTTP_SCHEMES:
        where = replace(endpoint, path="/orders")
        with FeedClient(
            FeedAddress(where, "orders", None, None, {}, None, 10_000, 1 << 20), backoff=QUICK, pause=lambda _: None
        ) as feed:
            return len(feed.discover().partitions)
    if endpoint.scheme in RABBITMQ_SCHEMES:
        with RabbitClient(endpoint, timeout_ms=120_000) as broker:
            return len(broker.describe("orders").partitions)
    with AmqpClient(endpoint, timeout_ms=120_000) as amqp:
        return len(amqp.describe("orders").partitions)


def at(url: str, tls: Tls, *, user: str | None = "guest") -> Endpoint:
    endpoint = parse_url(url, schemes=ALL_SCHEMES).with_tls(tls)
    if user is None or endpoint.scheme in HTTP_SCHEMES:
        return endpoint
    return endpoint.with_credentials(user, Secret("guest"))


def refused(url: str, tls: Tls) -> str:
    """Return what a user is told; it is said at once, as no other try would help."""
    with pytest.raises(SparkStreamsError) as caught:
        partitions(at(url, tls))
    assert isinstance(caught.value, ConnectFailed) and not caught.value.retriable
    return str(caught.value)


@pytest.mark.parametrize("door", DOORS)
def test_the_peers_certificate_is_checked(door: str, serve: Serve, authority: Authority, tmp_path: Path) -> None:
    url = serve(authority.issue("server"))[door]
    trusted, other = str(authority.file), str(Authority(tmp_path, "other").file)
    assert partitions(at(url, Tls(trusted))) == 1
    for tls in (Tls(), Tls(other), Tls(other, verify_hostname=False)):
        said = refused(url, tls)
        assert "its certificate does not verify" in said and "set option 'tls.caFile' to the PEM file" in said


@pytest.mark.parametrize("door", DOORS)
def test_the_host_is_checked_unless_it_is_said(door: str, serve: Serve, authority: Authority) -> None:
    url = serve(authority.issue("server", hosts=("log.example.com",)))[door]
    said = refused(url, Tls(str(authority.file)))
    assert "mismatch" in said and "dial a name that it holds, or set option 'tls.verifyHostname' to 'false'" in said
    assert partitions(at(url, Tls(str(authority.file), verify_hostname=False))) == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_certificate_that_is_not_valid_now(door: str, serve: Serve, authority: Authority) -> None:
    url = serve(authority.issue("old", valid=(-2 * DAY, -DAY)))[door]
    said = refused(url, Tls(str(authority.file)))
    assert "has expired: whoever runs 127.0.0.1:" in said and "check the clock of this machine" in said
    assert "tls.caFile" not in said, "another authority would not help"
    url = serve(authority.issue("early", valid=(DAY, 2 * DAY)))[door]
    assert "not yet valid: wait until it is, and check the clock" in refused(url, Tls(str(authority.file)))


@pytest.mark.parametrize("door", DOORS)
def test_a_door_that_wants_a_client_certificate(door: str, serve: Serve, authority: Authority, tmp_path: Path) -> None:
    url = serve(authority.issue("server"), tls_client_ca=str(authority.file), tls_client_required=True)[door]
    trusted = str(authority.file)
    assert partitions(at(url, Tls(trusted, *authority.issue("ann")))) == 1
    assert partitions(at(url, Tls(trusted, *authority.issue("ann")), user=None)) == 1, "EXTERNAL; a feed asks no more"
    assert "it asks for a client certificate: set options 'tls.certFile' and 'tls.keyFile'" in refused(
        url, Tls(trusted)
    )
    mallory = Tls(trusted, *Authority(tmp_path, "other").issue("mallory"))
    assert "it does not trust the authority of our certificate: option 'tls.certFile'" in refused(url, mallory)


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream"])
def test_a_certificate_and_no_user_where_users_sign_in(door: str, serve: Serve, authority: Authority) -> None:
    url = serve(authority.issue("server"))[door]
    with pytest.raises(AuthenticationFailed) as raised:
        partitions(at(url, Tls(str(authority.file), *authority.issue("ann")), user=None))
    assert "does not offer EXTERNAL, it offers PLAIN: it lets nobody in by a certificate" in str(raised.value)
    assert "'username'" not in str(raised.value)


class Strict:
    """A TLS peer that wants client certificates, says why it hangs up as most do, and has nothing else to say."""

    def __init__(self, authority: Authority, version: ssl.TLSVersion) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("server"))
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = context.maximum_version = version
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Strict:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                raw, _ = self._listener.accept()
                with raw, contextlib.suppress(OSError):
                    raw.settimeout(60)
                    self._refuse(raw)

    def _refuse(self, raw: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        peer = self._context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            try:
                peer.do_handshake()
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65_536))
                continue
            except ssl.SSLError:
                raw.sendall(outgoing.read())  # the alert
            break
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65_536):
            pass  # closed with something unread it would be a reset, which may overtake the alert


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("door", DOORS)
def test_a_peer_that_says_what_is_wrong_with_our_certificate(
    door: str, version: ssl.TLSVersion, authority: Authority, tmp_path: Path
) -> None:
    scheme = {"amqp": "amqps", "rabbitmq-stream": "rabbitmq-stream+tls", "feedapi": "https"}[door]
    trusted = str(authority.file)
    with Strict(authority, version) as peer:
        url = f"{scheme}://127.0.0.1:{peer.port}"
        said = refused(url, Tls(trusted))
        assert "client certificate" in said and "options 'tls.certFile' and 'tls.keyFile'" in said
        said = refused(url, Tls(trusted, *Authority(tmp_path, "other").issue("mallory")))
        assert "it does not trust the authority of our certificate: option 'tls.certFile'" in said
        said = refused(url, Tls(trusted, *authority.issue("late", valid=(-2 * DAY, -DAY))))
        assert "our certificate has expired: option 'tls.certFile' needs a new one" in said


@pytest.mark.parametrize("door", DOORS)
def test_keys_that_cannot_be_used(door: str, serve: Serve, authority: Authority, tmp_path: Path) -> None:
    url = serve(authority.issue("server"), tls_client_ca=str(authority.file))[door]
    certificate, key = authority.issue("ann")
    secret = serialization.BestAvailableEncryption(b"geheim")
    loaded = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    pem = loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    encrypted, both, wrong = (tmp_path / name for name in ("encrypted.key", "both.pem", "wrong.key"))
    encrypted.write_bytes(pem)
    both.write_bytes(Path(certificate).read_bytes() + pem)
    wrong.write_text("no key")
    for option, files, problem in (
        ("tls.keyFile", (certificate, str(encrypted)), r"encrypted.key' is encrypted, and a task has nobody to ask"),
        ("tls.certFile", (str(both), None), r"both.pem' is encrypted"),
        ("tls.certFile", (certificate, str(wrong)), r"ann.crt' and its key cannot be used"),
        ("tls.certFile", (certificate, authority.issue("other")[1]), r"ann.crt' and its key cannot be used"),
        ("tls.keyFile", (certificate, str(tmp_path / "none")), r"there is no file '.*none', expected a PEM file"),
    ):
        with pytest.raises(OptionError, match=rf"option '{option}': .*{problem}"):
            partitions(at(url, Tls(str(authority.file), *files)))


@pytest.mark.parametrize("door", DOORS)
def test_tls_to_a_plain_door_and_back(door: str, serve: Serve, authority: Authority, tmp_path: Path) -> None:
    plain = {"amqp": "amqp", "rabbitmq-stream": "rabbitmq-stream", "feedapi": "http"}[door]
    secure = {"amqp": "amqps", "rabbitmq-stream": "rabbitmq-stream+tls", "feedapi": "https"}[door]
    with ReferenceLog(tmp_path / "plain") as log:
        log.create_stream("orders", 1)
        doors: dict[str, Any] = {"rabbit": RabbitConfig(port=0), "feed": FeedConfig(port=0)}
        with ServerThread(log, AmqpConfig(port=0), **doors) as server:
            url = server.urls[door].replace(f"{plain}://", f"{secure}://")
            with pytest.raises(ConnectFailed, match=f"TLS does not work there .* write {plain}://"):
                partitions(at(url, Tls(str(authority.file))))
