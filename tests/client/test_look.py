"""A peer that is the right one, or may be, is never taken for a wrong port: what answers first does not decide."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from spark_streams.client import look, what_answers
from spark_streams.client.first_bytes import AMQP, is_served
from spark_streams.client.retry import Deadline
from spark_streams.client.what_answers import known_right, wrong_port
from spark_streams.endpoint import Endpoint, Tls
from spark_streams.errors import ConnectFailed
from tests.client.listening import listening

Answer = Callable[[socket.socket, bytes], object]
ALERT = b"\x15\x03\x01\x00\x02\x02\x28"
OLD_HEADER, SASL_HEADER = b"AMQP\x00\x00\x09\x01", b"AMQP\x03\x01\x00\x00"
GO = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
NGINX = b"HTTP/1.1 301 Moved Permanently\r\nLocation: https://x/\r\n\r\n"
ENVOY = b"HTTP/1.1 503 Service Unavailable\r\nserver: envoy\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\n\r\n"


def endpoint(scheme: str, port: int, *, by_web_socket: bool = False) -> Endpoint:
    found = Endpoint(scheme, "127.0.0.1", port).with_tls(Tls() if scheme in ("amqps", "https") else None)
    return found.reached("websocket", None) if by_web_socket else found


def served(answer: Answer) -> Callable[[socket.socket], None]:
    def serve(peer: socket.socket) -> None:
        answer(peer, peer.recv(4_096))

    return serve


def found_wrong(answer: Answer, scheme: str, *, by_web_socket: bool = False) -> ConnectFailed | None:
    with listening(served(answer)) as (port, _):
        return wrong_port(endpoint(scheme, port, by_web_socket=by_web_socket), deadline=Deadline(60_000))


@pytest.mark.parametrize("by_web_socket", [False, True], ids=["feed", "websocket"])
@pytest.mark.parametrize("words", [GO, NGINX], ids=["go", "nginx"])
def test_a_server_of_https_that_answers_to_http(words: bytes, by_web_socket: bool) -> None:
    def answer(peer: socket.socket, hello: bytes) -> None:
        peer.sendall(ALERT if hello[:1] == b"\x16" else words)

    assert found_wrong(answer, "amqps" if by_web_socket else "https", by_web_socket=by_web_socket) is None


@pytest.mark.parametrize("words", [GO, NGINX], ids=["go", "nginx"])
def test_a_server_of_https_whose_handshake_breaks_off(words: bytes) -> None:
    """As one does that is being restarted behind a port that is already open."""

    def answer(peer: socket.socket, hello: bytes) -> None:
        if hello[:1] != b"\x16":
            peer.sendall(words)

    assert found_wrong(answer, "https") is None


def test_tls_is_asked_alone_where_it_answers() -> None:
    heard: list[bytes] = []

    def answer(peer: socket.socket, hello: bytes) -> None:
        heard.append(hello[:1])
        peer.sendall(ALERT)

    assert found_wrong(answer, "amqps") is None
    assert set(heard) == {b"\x16"}


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "rabbitmq-stream"])
def test_a_proxy_in_front_of_a_broker_that_is_down(scheme: str) -> None:
    def answer(peer: socket.socket, hello: bytes) -> None:
        if hello.startswith(b"HEAD "):
            peer.sendall(ENVOY)

    assert found_wrong(answer, scheme) is None


@pytest.mark.parametrize("others", [OLD_HEADER, NOT_FOUND], ids=["rabbitmq-3", "artemis"])
def test_the_wanted_protocol_answers_after_others(others: bytes) -> None:
    """One port has several, as RabbitMQ 3 with its plugin for AMQP 1.0 and Artemis do."""
    told = threading.Event()

    def answer(peer: socket.socket, hello: bytes) -> None:
        if hello == SASL_HEADER:
            assert told.wait(60)
            peer.sendall(SASL_HEADER)
            return
        if hello.startswith(b"HEAD ") or others == OLD_HEADER:
            peer.sendall(others)
        if hello.startswith(b"HEAD "):
            with contextlib.suppress(OSError):
                peer.recv(1)  # until the client has read that, and closed it
            told.set()

    with listening(served(answer)) as (port, _):
        found = look.look(endpoint("amqp", port), AMQP, Deadline(60_000))
    assert found is not None and found.spoken is AMQP


def test_another_protocol_is_told_where_the_wanted_one_is_not_answered() -> None:
    def answer(peer: socket.socket, hello: bytes) -> None:
        if hello.startswith(b"HEAD "):
            peer.sendall(NOT_FOUND)

    wrong = found_wrong(answer, "amqp")
    assert wrong is not None and not wrong.retriable and "HTTP answers there" in str(wrong)


@pytest.mark.parametrize("status", [200, 204, 401, 403, 404, 405, 301, 302, 400, 408, 425, 429, 500, 502, 503])
def test_the_statuses_that_prove_http(status: int) -> None:
    assert is_served(b"HTTP/1.0 %d Some" % status) == (status in (200, 204, 401, 403, 404, 405))


def test_a_peer_that_was_right_is_not_looked_at() -> None:
    with listening(lambda peer: peer.sendall(NOT_FOUND)) as (port, seen):
        where = endpoint("amqp", port)
        known_right(where)
        assert wrong_port(where, deadline=Deadline(60_000)) is None
        assert wrong_port(where, NOT_FOUND, deadline=Deadline(60_000)) is None
        assert seen == [0]
        other = endpoint("rabbitmq-stream", port)
        assert "HTTP answers there" in str(wrong_port(other, deadline=Deadline(60_000)))


def test_a_look_ends_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "LOOK_S", 1_000.0)
    held: list[socket.socket] = []
    with listening(lambda peer: held.append(peer.dup())) as (port, seen):
        assert wrong_port(endpoint("amqps", port), deadline=Deadline(100)) is None
        assert seen[0] <= 5
        assert wrong_port(endpoint("amqp", port), deadline=Deadline(0)) is None
    for each in held:
        each.close()


def test_two_threads_do_not_look_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    where, looks = endpoint("amqp", 1), [0]

    def again(*arguments: object) -> None:
        looks[0] += 1
        assert wrong_port(where, deadline=Deadline(60_000)) is None  # as another thread does meanwhile

    monkeypatch.setattr(what_answers, "look", again)
    assert wrong_port(where, deadline=Deadline(60_000)) is None
    assert looks == [1]
