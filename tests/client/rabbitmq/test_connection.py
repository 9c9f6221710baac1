"""The connection: what it makes of brokers that are slow, broken, or no brokers; and whom they let in."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_streams.client import RabbitClient
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.endpoint import Endpoint, Secret, Tls
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    LocalProtocolError,
    NotFound,
    PeerError,
    Refused,
    RemoteProtocolError,
    SparkStreamsError,
)
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, Permissions, RabbitConfig, ServerThread
from spark_streams.wire.rabbitmq.consumer_commands import CreditAnswer
from spark_streams.wire.rabbitmq.frames import Frame, ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import MetadataUpdate, StreamStats, StreamStatsAnswer
from tests.client.rabbitmq.brokers import OLD, Broker
from tests.client.rabbitmq.scripted import Scripted, Wire, deliver, stats
from tests.real_rabbitmq import by_hand as key
from tests.real_rabbitmq.by_hand import RESPONSE, array, text
from tests.server.rabbitmq.clock import clients_clock as clients_clock


def ask(connection: Connection) -> StreamStatsAnswer:
    return connection.request(StreamStats("s"), StreamStatsAnswer, "stream 's': stats")


# --- who answers


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"HTTP answers there.*5552"),
        (b"AMQP\x00\x00\x09\x01", r"does not speak.*5552.*RabbitMQ speaks AMQP 1.0 since version 4"),
        (b"\x15\x03\x03\x00\x02\x02\x46", r"speaks TLS: write rabbitmq-stream\+tls://"),
        (b"\0\0\0\2ab", r"does not speak.*5552"),
    ],
    ids=["http", "amqp", "tls-alert", "too-small"],
)
def test_a_peer_that_is_no_broker(greeting: bytes, said: str) -> None:
    with Scripted(greeting=greeting) as peer, pytest.raises(ConnectFailed, match=said) as raised:
        open_connection(peer.endpoint, timeout_ms=120_000)
    assert not raised.value.retriable


def test_a_peer_that_hangs_up_may_be_a_broker_that_starts() -> None:
    with (
        Scripted({key.PEER_PROPERTIES: lambda wire, *_: wire.hang_up()}) as peer,
        pytest.raises(ConnectFailed, match=r"closed the connection at once.*speaks TLS") as raised,
    ):
        open_connection(peer.endpoint, timeout_ms=120_000)
    assert raised.value.retriable


@pytest.mark.parametrize(
    "step", [key.PEER_PROPERTIES, key.SASL_HANDSHAKE, key.SASL_AUTHENTICATE, key.OPEN, key.EXCHANGE_COMMAND_VERSIONS]
)
def test_every_step_of_the_handshake_has_a_deadline(step: int) -> None:
    with Scripted({step: lambda *_: None}) as peer, pytest.raises(DeadlineExceeded, match=f"127.0.0.1:{peer.port}"):
        open_connection(peer.endpoint, timeout_ms=300)


def test_a_broker_that_never_tunes() -> None:
    with (
        Scripted({key.SASL_AUTHENTICATE: lambda wire, n, _: wire.answer(key.SASL_AUTHENTICATE, n)}) as peer,
        pytest.raises(DeadlineExceeded, match="no tune"),
    ):
        open_connection(peer.endpoint, timeout_ms=5_000)


def test_nobody_listens() -> None:
    with Scripted() as peer:
        endpoint = peer.endpoint
    with pytest.raises(ConnectFailed) as raised:
        open_connection(endpoint, timeout_ms=120_000)
    assert raised.value.retriable


def test_versions_are_not_asked_of_brokers_that_would_close(broker: Broker) -> None:
    with open_connection(broker.endpoint, timeout_ms=120_000) as connection:
        assert bool(connection.versions) != broker.is_old
        assert (StreamStats.KEY in connection.versions) != broker.is_old


# --- being let in


@pytest.mark.parametrize("code", [0x07, 0x08, 0x09, 0x0A, 0x0B])
def test_credentials_that_are_refused(code: int) -> None:
    script = {key.SASL_AUTHENTICATE: lambda wire, n, _: wire.answer(key.SASL_AUTHENTICATE, n, code)}
    with Scripted(script) as peer, pytest.raises(AuthenticationFailed, match=f"0x{code:02x}") as raised:
        open_connection(peer.endpoint, timeout_ms=120_000)
    assert not raised.value.retriable
    assert "Secret" not in str(raised.value)


def test_a_wrong_password(broker: Broker) -> None:
    endpoint = replace(broker.endpoint, password=Secret("wr0ng"))
    with pytest.raises(AuthenticationFailed, match=r"authentication-failure \(0x08\).*password") as raised:
        RabbitClient(endpoint, timeout_ms=120_000).describe("no-such-stream")
    assert "wr0ng" not in str(raised.value)


# The real one, which takes three seconds for it, is asked in tests/server/rabbitmq/test_opening.py too.
@pytest.mark.parametrize(
    "broker",
    ["door", "old-door", pytest.param("rabbitmq", marks=[pytest.mark.rabbitmq, pytest.mark.nightly])],
    indirect=True,
)
def test_a_virtual_host_that_is_not_there(broker: Broker) -> None:
    with pytest.raises(Refused, match=r"virtual-host-access-failure \(0x0c\).*virtual host") as raised:
        RabbitClient(replace(broker.endpoint, vhost="no such"), timeout_ms=120_000).describe("no-such-stream")
    assert not raised.value.retriable


@pytest.mark.parametrize("settings", [{}, OLD], ids=["new", "old"])
def test_no_permission_is_not_told_as_no_stream(tmp_path: Path, settings: dict[str, object]) -> None:
    config = RabbitConfig(port=0, permissions={"guest": Permissions(read="nobodys")}, **settings)  # type: ignore[arg-type]
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0), config) as server:
        door = Broker(server.rabbit_url, "old-door" if settings else "door")
        with door.peer() as peer:
            assert peer.create("theirs") == 1
        with door.client() as client:
            with pytest.raises(Refused, match=r"access-refused \(0x10\)"):
                client.log_identity("theirs", {"theirs": "0" * 20})
            with pytest.raises(NotFound):
                client.describe("nobodys")


def test_only_plain_is_spoken_without_a_certificate() -> None:
    script = {key.SASL_HANDSHAKE: lambda wire, n, _: wire.answer(key.SASL_HANDSHAKE, n, 1, array([text("EXTERNAL")]))}
    with (
        Scripted(script) as peer,
        pytest.raises(AuthenticationFailed, match="does not offer PLAIN, it offers EXTERNAL"),
    ):
        open_connection(peer.endpoint, timeout_ms=120_000)


def test_a_broker_that_asks_for_a_second_step() -> None:
    script = {key.SASL_AUTHENTICATE: lambda wire, n, _: wire.answer(key.SASL_AUTHENTICATE, n, 0x0A, b"\0\0\0\1x")}
    with Scripted(script) as peer, pytest.raises(AuthenticationFailed, match="second step"):
        open_connection(peer.endpoint, timeout_ms=120_000)


def test_tls_with_a_password_and_with_a_certificate(tmp_path: Path, certificates: Path) -> None:
    config = RabbitConfig(
        port=0,
        users={"guest": "guest", "test client": "-"},
        tls_cert=certificates / "server.pem",
        tls_key=certificates / "server.pem",
        tls_client_ca=certificates / "ca.pem",
    )
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0), config) as server:
        port = int(next(url for name, url in server.urls.items() if name.startswith("rabbitmq")).rsplit(":", 1)[1])
        own = Endpoint(
            "rabbitmq-stream+tls", "127.0.0.1", port, "guest", Secret("guest"), Tls(str(certificates / "ca.pem"))
        )
        with open_connection(own, timeout_ms=120_000) as connection, pytest.raises(NotFound):
            ask(connection)
        client = str(certificates / "client.pem")
        external = replace(own, username=None, password=None, tls=Tls(str(certificates / "ca.pem"), client, client))
        with open_connection(external, timeout_ms=120_000) as connection, pytest.raises(NotFound):
            ask(connection)
        with pytest.raises(ConnectFailed) as raised:
            open_connection(replace(own, tls=Tls()), timeout_ms=120_000)
        assert "verif" in str(raised.value)
        with pytest.raises(ConnectFailed, match=r"speaks TLS: write rabbitmq-stream\+tls://"):
            open_connection(replace(own, tls=None), timeout_ms=120_000)


# --- codes


@pytest.mark.parametrize("code", [*(c for c in ResponseCode if c != ResponseCode.OK), 0x77])
def test_every_code_is_an_error_of_its_own(code: int) -> None:
    expected: type[PeerError] = Refused
    if code in (0x07, 0x08, 0x09, 0x0A, 0x0B, 0x14, 0x15):
        expected = AuthenticationFailed
    elif code == 0x02:
        expected = NotFound
    script = {key.STREAM_STATS: lambda wire, n, _: wire.answer(key.STREAM_STATS, n, code, array([]))}
    with Scripted(script) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        with pytest.raises(PeerError, match=f"stream 's': stats: .*0x{code:02x}") as raised:
            ask(connection)
        assert type(raised.value) is expected
        assert raised.value.retriable == (code in (0x06, 0x0F))
    assert str(refusal(code, "here")).startswith("here: ")


def test_a_refusal_may_end_after_its_code() -> None:
    script = {key.STREAM_STATS: lambda wire, n, _: wire.answer(key.STREAM_STATS, n, 0x10)}
    with (
        Scripted(script) as peer,
        open_connection(peer.endpoint, timeout_ms=120_000) as connection,
        pytest.raises(Refused),
    ):
        ask(connection)


# --- frames that come of themselves


def test_what_comes_before_an_answer_is_kept_in_its_order() -> None:
    def answer(wire: Wire, number: int, _: bytes) -> None:
        wire.send(key.DELIVER, deliver(0, [b"a"]))
        wire.send(key.METADATA_UPDATE, struct.pack(">H", 6) + text("s"))
        wire.send(key.DELIVER, deliver(1, [b"b"]))
        wire.answer(key.STREAM_STATS, number, 1, stats(first_chunk_id=7))
        wire.send(key.CREDIT | RESPONSE, struct.pack(">HB", 4, 9))

    with Scripted({key.STREAM_STATS: answer}) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        assert ask(connection).values == {"first_chunk_id": 7}
        events = [connection.receive(5) for _ in range(4)]
        assert [e.buffer[e.end - 1 : e.end] for e in events if isinstance(e, Frame)] == [b"a", b"b"]
        assert events[1] == MetadataUpdate(6, "s")
        assert events[3] == CreditAnswer(4, 9)
        assert connection.receive(0) is None


def test_a_chunk_may_be_larger_than_a_frame() -> None:
    large = bytes(9 << 20)

    def answer(wire: Wire, number: int, _: bytes) -> None:
        wire.send(key.DELIVER, deliver(0, [large]))
        wire.answer(key.STREAM_STATS, number, 1, stats())

    with Scripted({key.STREAM_STATS: answer}) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        ask(connection)
        event = connection.receive(5)
        assert isinstance(event, Frame)
        assert event.size > len(large)


@pytest.mark.parametrize(
    ("sent", "fault", "words"),
    [
        (b"\x7f\xff\xff\xff\0\x08\0\1", RemoteProtocolError, "2147483647 bytes"),
        (b"\0\0\0\3abc", RemoteProtocolError, "expected at least 4"),
        (b"\0\0\0\4\x7f\x77\0\1", RemoteProtocolError, "unknown frame"),
        (b"\0\0\0\4\x80\x1c\0\1", RemoteProtocolError, "StreamStatsAnswer"),
        (b"\0\0\0\x64\0\x08\0\1half a", ConnectionLost, "closed the connection"),
        (b"", ConnectionLost, "closed the connection"),
    ],
    ids=["too-large", "too-small", "unknown-key", "cut-short", "half-a-frame", "nothing"],
)
def test_broken_frames_end_the_connection(sent: bytes, fault: type[SparkStreamsError], words: str) -> None:
    def answer(wire: Wire, *_: object) -> None:
        wire.raw(sent)
        wire.hang_up()

    with Scripted({key.STREAM_STATS: answer}) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        with pytest.raises(fault, match=words):
            ask(connection)
        assert connection.broken
        with pytest.raises(LocalProtocolError, match="closed"):
            ask(connection)


def test_an_answer_of_another_kind() -> None:
    script = {key.STREAM_STATS: lambda wire, n, _: wire.answer(key.OPEN, n, 1, array([]))}
    with (
        Scripted(script) as peer,
        open_connection(peer.endpoint, timeout_ms=120_000) as connection,
        pytest.raises(RemoteProtocolError, match="answered with OpenAnswer"),
    ):
        ask(connection)


def test_a_connection_without_an_answer_is_given_up() -> None:
    """An answer that comes too late would be taken for another's; and a peer that fell silent may stay so."""
    silent = {key.STREAM_STATS: lambda wire, number, body: None}
    with Scripted(silent) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        connection.timeout_ms = 300
        with pytest.raises(DeadlineExceeded, match="stream 's': stats: no answer"):
            ask(connection)
        assert connection.broken


# --- ends


@pytest.mark.parametrize(
    ("code", "fault", "retriable"),
    [(0x01, Refused, True), (0x0D, Refused, False), (0x08, AuthenticationFailed, False), (0x06, Refused, True)],
)
def test_a_broker_that_closes_says_why(code: int, fault: type[PeerError], retriable: bool) -> None:
    closed = threading.Event()

    def close(wire: Wire, *_: object) -> None:
        wire.send(key.CLOSE, struct.pack(">IH", 77, code) + text("maintenance at night"))

    def answered(_: Wire, correlation: int, body: bytes) -> None:
        assert (correlation, body) == (77, b"\0\1")
        closed.set()

    script = {key.STREAM_STATS: close, key.CLOSE | RESPONSE: answered}
    with Scripted(script) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        with pytest.raises(fault, match="the broker closed the connection") as raised:
            ask(connection)
        assert raised.value.retriable == retriable
        if fault is Refused:
            assert "maintenance at night" in str(raised.value)
        assert closed.wait(120)


def test_closing_is_announced_and_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_streams.client.rabbitmq.connection.CLOSE_TIMEOUT_MS", 100)
    read = threading.Event()
    with Scripted({key.CLOSE: lambda *_: read.set()}) as peer:
        connection = open_connection(peer.endpoint, timeout_ms=120_000)
        connection.close()
        connection.close()
        assert connection.broken
        assert read.wait(120)
    assert [kind for kind, _ in peer.seen].count(key.CLOSE) == 1


# --- heartbeats


def _tuned(heartbeat_s: int) -> Callable[[Wire, int, bytes], None]:
    def answer(wire: Wire, number: int, _: bytes) -> None:
        wire.answer(key.SASL_AUTHENTICATE, number)
        wire.send(key.TUNE, struct.pack(">II", 1 << 20, heartbeat_s))

    return answer


def test_a_connection_that_waits_shows_that_it_lives(clients_clock: Any) -> None:
    beaten, answered = threading.Event(), threading.Event()

    def beat(wire: Wire, *_: object) -> None:
        beaten.set()
        wire.send(key.HEARTBEAT, b"")
        answered.set()

    script = {key.SASL_AUTHENTICATE: _tuned(1), key.HEARTBEAT: beat}
    with Scripted(script) as peer, open_connection(peer.endpoint, timeout_ms=120_000) as connection:
        for _ in range(10):  # five seconds
            clients_clock.now += 0.5
            assert connection.receive(0) is None, "heartbeats are nothing that a caller sees"
            assert beaten.wait(120)
            assert answered.wait(120)
            beaten.clear()
            answered.clear()


def test_a_dead_broker_is_noticed(clients_clock: Any) -> None:
    with (
        Scripted({key.SASL_AUTHENTICATE: _tuned(1)}) as peer,
        open_connection(peer.endpoint, timeout_ms=120_000) as connection,
    ):
        clients_clock.now += 2.9
        assert connection.receive(0) is None
        clients_clock.now += 0.2
        with pytest.raises(ConnectionLost, match="no sign of life"):
            connection.receive(0)


def test_a_password_that_no_frame_holds_is_told_by_its_size_at_once() -> None:
    """RabbitMQ closes the connection at such a frame, by default one of more than 8,192 bytes before Open."""

    def close(wire: Wire, number: int, body: bytes) -> None:
        if len(body) + 8 > 8_192:
            wire.hang_up()
        else:
            wire.answer(key.SASL_AUTHENTICATE, number, 0x08)

    with Scripted({key.SASL_AUTHENTICATE: close}) as broker:
        for size, wrong in (
            (8_171 - 5, "authentication-failure"),
            (8_172 - 5, "have 8172 bytes together, and .* 8171 at m"),
        ):
            endpoint = broker.endpoint.with_credentials("guest", Secret("x" * size))
            with RabbitClient(endpoint) as client, pytest.raises(AuthenticationFailed, match=wrong):
                client.describe("orders")
        assert broker.connections == 2, "nothing is tried again"
