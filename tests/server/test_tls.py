"""TLS at a door: whose turn a handshake is, what a failed one is told, and what a connection holds until its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import itertools
import os
import resource
import socket
import ssl
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.server.admission import Admission, Sockets, allow_descriptors
from spark_streams.server.door import TcpDoor
from spark_streams.server.tls import Handshakes, TlsTransport
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
        required: whether a client has to show a certificate.
    """

    def __init__(self, folder: Path, handshake_timeout_ms: int = 60_000, *, required: bool = True) -> None:
        self.authority = Authority(folder, "authority")
        certificate, key = self.authority.issue("server")
        common: dict[str, Any] = {
            "port": 0,
            "tls_cert": certificate,
            "tls_key": key,
            "tls_client_ca": str(self.authority.file),
            "tls_client_required": required,
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


class Clock:
    """A loop whose time goes on only when nothing else is due."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, function: Callable[..., object], *arguments: Any) -> Any:
        number = next(self._numbers)
        heapq.heappush(self._due, (self.now_s + delay_s, number, partial(function, *arguments)))
        return SimpleNamespace(cancel=lambda: self._cancel(number))

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> Any:
        return self.call_later(0.0, function, *arguments)

    def _cancel(self, number: int) -> None:
        self._due = [each for each in self._due if each[1] != number]
        heapq.heapify(self._due)

    def run(self) -> None:
        """Go on until nothing is due."""
        while self._due:
            self.now_s, _, call = heapq.heappop(self._due)
            call()


class Arrived:
    """A connection whose peer has sent its first bytes; it goes on at once, or never.

    Attributes:
        turn_s: when it had its turn; None before.
        given_up: whether it had to make room.
    """

    def __init__(self, handshakes: Handshakes, host: str, *, ends: bool) -> None:
        self.host = host
        self.turn_s: float | None = None
        self.given_up = False
        self.admission = self
        self._handshakes: Any = handshakes
        self._ends = ends
        self._handshakes.wait(self)

    def step(self) -> None:
        self.turn_s = self._handshakes.loop.time()
        if self._ends:
            self._handshakes.leave(self)

    def late(self) -> None:
        self.given_up = True
        self._handshakes.leave(self)


def arriving(most: int, timeout_ms: int) -> tuple[Clock, Handshakes]:
    clock: Any = Clock()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return clock, Handshakes(clock, context, AmqpConfig(max_handshakes=most, handshake_timeout_ms=timeout_ms))


def test_a_quarter_of_the_handshakes_under_way_is_one_addresss_and_half_is_all_that_are() -> None:
    _, handshakes = arriving(512, 10_000)
    for host in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        for _ in range(170):
            Arrived(handshakes, host, ends=False)
    for _ in range(510):  # each takes a step, at least
        handshakes._serve()
    assert Counter(each.host for each in handshakes.under_way) == {"10.0.0.1": 128, "10.0.0.2": 128}
    assert len(handshakes.waiting) == 510 - 256


def test_a_peer_of_ipv6_is_one_however_many_addresses_it_has() -> None:
    _, handshakes = arriving(512, 10_000)

    def host_of(*address: Any) -> str:
        connection = TlsTransport(handshakes, Mock(), Mock())
        connection.connection_made(Mock(spec=asyncio.Transport, get_extra_info=lambda name: address))
        return connection.host

    one, same, other = (host_of(host, 4_000, 0, 0) for host in ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"))
    assert one == same != other
    assert host_of("::ffff:192.0.2.1", 4_000, 0, 0) == host_of("192.0.2.1", 4_000) != host_of("192.0.2.2", 4_000)
    assert host_of("fe80::1%eth0", 4_000, 0, 2) == host_of("fe80::2%eth0", 4_000, 0, 2)


def test_who_comes_behind_all_that_a_door_takes_has_its_turn_in_time_and_another_address_has_it_at_once() -> None:
    clock, handshakes = arriving(512, 10_000)
    hanging = [Arrived(handshakes, "10.0.0.1", ends=False) for _ in range(511)]
    last = Arrived(handshakes, "10.0.0.1", ends=True)
    other = Arrived(handshakes, "10.0.0.2", ends=True)
    clock.run()
    assert other.turn_s == 0.0
    assert last.turn_s is not None and last.turn_s <= 6.0
    assert [each.given_up for each in hanging] == [True] * 384 + [False] * 127, "nobody waits for the last ones"


def test_connections_that_come_and_go_put_off_nobodys_turn() -> None:
    clock, handshakes = arriving(512, 10_000)
    waiting = Arrived(handshakes, "10.0.0.1", ends=True)
    first, *_ = clock._due
    for _ in range(3):
        handshakes.leave(Mock())
    assert first in clock._due and waiting.turn_s is None
    clock.run()
    assert waiting.turn_s == 0.0


def test_five_hundred_of_one_address_at_once_all_get_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before any of them goes on, all have sent their first bytes."""
    under_way = []
    step = TlsTransport.step

    def counted(self: TlsTransport) -> None:
        under_way.append(len(self._handshakes.under_way))
        step(self)

    monkeypatch.setattr(TlsTransport, "step", counted)
    with contextlib.closing(Served(tmp_path, 3_600_000, required=False)) as served, contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
        allow_descriptors(1_000, 1_000)
        before = psutil.Process().memory_info().rss
        context = ssl.create_default_context(cafile=str(served.authority.file))
        arrived = []
        for _ in range(500):
            connected = stack.enter_context(served.connect("amqp"))
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            secured = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            with contextlib.suppress(ssl.SSLWantReadError):
                secured.do_handshake()
            connected.sendall(outgoing.read())
            arrived.append((connected, secured, incoming, outgoing))
        deadline = time.monotonic() + 60
        while len(under_way) < 128:
            assert time.monotonic() < deadline, "nobody has a turn"
            time.sleep(0.01)
        for connected, secured, incoming, outgoing in arrived:
            assert spoken(connected, secured, incoming, outgoing, b"AMQP\x03\x01\x00\x00") == b"AMQP\x03\x01\x00\x00"
        assert max(under_way) == 128
        # 500 clients in this process are in it, too.
        assert psutil.Process().memory_info().rss - before < 500 * 150_000


def spoken(connected: socket.socket, secured: ssl.SSLObject, incoming: Any, outgoing: Any, words: bytes) -> bytes:
    """Finish a handshake, say some words, and return as many bytes of the answer."""
    answer = b""
    secure = False
    while len(answer) < len(words):
        try:
            if not secure:
                secured.do_handshake()
                secure = True
                secured.write(words)
            answer += secured.read(len(words))
        except ssl.SSLWantReadError:
            connected.sendall(outgoing.read())
            piece = connected.recv(65_536)
            assert piece, "the door has closed"
            incoming.write(piece)
    return answer


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


WORD = b"a word"


class Flooding(asyncio.Protocol):
    """A door's protocol that answers the first words with more than a peer takes at once, and closes.

    It answers ``WORD`` with one, and does not close.

    Attributes:
        calls: what was called, in this order, and the words.
    """

    SIZE = 20_000_000

    def __init__(self, admission: Admission, calls: list[Any], made: list[Any]) -> None:
        self.admission = admission
        self.calls = calls
        made.append(weakref.ref(self))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.calls.append(data)
        if data == WORD:
            self.transport.write(b"answer")
            return
        self.transport.write(b"x" * self.SIZE)
        assert self.transport.get_write_buffer_size() > 0
        self.transport.close()

    def eof_received(self) -> None:
        self.calls.append("end")

    def pause_writing(self) -> None:
        self.calls.append("full")

    def resume_writing(self) -> None:
        self.calls.append("empty")

    def connection_lost(self, exc: Exception | None) -> None:
        self.admission.end()
        self.calls.append("lost")


class Sipping(Flooding):
    """A door's protocol that receives 1,000 bytes at a time, and rests after the first ones."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = 1_000

    def data_received(self, data: bytes) -> None:
        self.calls.append(data)
        if len(self.calls) == 1:
            self.transport.pause_reading()
            self.rest(50)

    def rest(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self.rest, turns - 1)
        else:
            self.calls.append("rested")
            self.transport.resume_reading()


@pytest.fixture
def kind() -> type[Flooding]:
    """The protocol."""
    return Flooding


@pytest.fixture
def flooded(tmp_path: Path, kind: type[Flooding]) -> Iterator[tuple[Callable[[], ssl.SSLSocket], list[Any], list[Any]]]:
    """A door with that protocol: what connects to it, what was called, and the protocols that still are."""
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    context = ssl.create_default_context(cafile=str(authority.file))
    calls: list[Any] = []
    made: list[Any] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    door = TcpDoor(AmqpConfig(port=0, tls_cert=certificate, tls_key=key))
    opening = door.listen(Sockets(), lambda admission: kind(admission, calls, made))
    asyncio.run_coroutine_threadsafe(opening, loop).result(60)
    address = ("127.0.0.1", int(door.url.rpartition(":")[2]))

    def connect() -> ssl.SSLSocket:
        connected = socket.create_connection(address, 60)
        return context.wrap_socket(connected, server_hostname="127.0.0.1", suppress_ragged_eofs=False)

    yield connect, calls, made
    asyncio.run_coroutine_threadsafe(door.end_connections(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def await_call(calls: list[Any], name: str) -> None:
    deadline = time.monotonic() + 60
    while name not in calls:
        assert time.monotonic() < deadline, calls
        time.sleep(0.01)


def test_all_that_was_written_comes_before_the_end_of_tls_and_nothing_of_it_stays(flooded: Any) -> None:
    connect, calls, made = flooded
    gc.disable()
    try:
        with connect() as secured:
            secured.sendall(b"more")
            await_call(calls, "full")  # whoever reads meanwhile may take all of it at once
            received = 0
            while piece := secured.recv(1 << 20):
                received += len(piece)
            assert received == Flooding.SIZE
        await_call(calls, "lost")
        assert calls == [b"more", "full", "empty", "lost"]
        assert [reference() for reference in made] == [None], "waits for the collector"
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [Sipping])
def test_a_record_is_handed_over_in_as_many_pieces_as_the_door_receives_at_a_time(flooded: Any) -> None:
    connect, calls, _ = flooded
    sent = bytes(range(250)) * 4 * 16
    with connect() as secured:
        secured.sendall(sent)  # 16,000 bytes: one record
        secured.sendall(sent)
        secured.unwrap()
    await_call(calls, "lost")
    assert calls[1] == "rested", "nothing is handed over while the door does not receive"
    pieces = [each for each in calls if isinstance(each, bytes)]
    assert b"".join(pieces) == sent * 2
    assert {len(piece) for piece in pieces} == {1_000}
    assert calls[-2:] == ["end", "lost"]


def test_the_end_of_tls_and_broken_tls_are_the_end_of_a_connection(flooded: Any) -> None:
    connect, calls, _ = flooded
    secured = connect()
    secured.unwrap().close()
    await_call(calls, "lost")
    assert calls == ["end", "lost"]
    calls.clear()
    with connect() as secured:
        os.write(secured.fileno(), b"no record of TLS")
        with pytest.raises(ssl.SSLError):
            secured.recv(1)
        await_call(calls, "lost")
    assert calls == ["end", "lost"]


def test_an_answer_to_what_came_just_before_tls_was_broken_goes_nowhere(
    flooded: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio would write a traceback for each such connection."""
    connect, calls, _ = flooded
    with connect() as there:
        address, context = there.getpeername(), there.context
    await_call(calls, "lost")
    calls.clear()
    come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(come, go, server_hostname="127.0.0.1")
    with socket.create_connection(address, 60) as raw:
        for _ in range(10):
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            raw.sendall(go.read())
            come.write(raw.recv(1 << 16))
        tls.write(WORD)
        raw.sendall(go.read() + b"no record of TLS")  # at once: the door reads both before it answers
        await_call(calls, "lost")
    assert calls == [WORD, "end", "lost"]
    assert not [record for record in caplog.records if record.name == "asyncio"]
