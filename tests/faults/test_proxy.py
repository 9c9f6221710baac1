"""The proxy itself: what it does to a connection is what its orders say."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from spark_streams.testing import eventually
from tests.faults.proxy import Break, TcpProxy

GUARD_S = 60


class Peer:
    """A server that sends back all that comes, ends when its client does, and remembers what came."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard = b""
        self.ends: list[str] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                taken, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(taken,), daemon=True).start()

    def serve(self, taken: socket.socket) -> None:
        with taken:
            try:
                while piece := taken.recv(4_096):
                    self.heard += piece
                    taken.sendall(piece)
            except ConnectionError as fault:
                self.ends.append(type(fault).__name__)
                return
            self.ends.append("end")


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.listener.close()


def dial(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=GUARD_S)


def heard(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := end.recv(size - len(found))):
        found += piece
    return found


def test_it_passes_on_and_counts(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        end.sendall(b"x" * 100_000)
        assert heard(end, 100_000) == b"x" * 100_000
        eventually(lambda: (proxy.from_server, proxy.to_server) == (100_000, 100_000), "counting")
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b"", "the end is passed on, and answered by an end"
    eventually(lambda: peer.ends == ["end"], "the server's end")


@pytest.mark.parametrize("to_server", [False, True])
def test_a_cut_comes_after_so_many_bytes(peer: Peer, to_server: bool) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.order(Break("cut", 5, to_server))
        end.sendall(b"0123456789")
        assert len(heard(end, 10)) <= 5 if to_server else heard(end, 10) == b"01234"
        eventually(lambda: peer.ends == ["end"], "the server's end")
        assert len(peer.heard) == 5 if to_server else len(peer.heard) == 10
        assert proxy.struck == [Break("cut", 5, to_server)] and not proxy.pending


def test_a_reset(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.order(Break("reset", 5))
        end.sendall(b"0123456789")
        with pytest.raises(ConnectionResetError):
            while end.recv(10):
                pass
        eventually(lambda: peer.ends == ["ConnectionResetError"], "the server's end")


def test_half_closed_by_the_server(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.order(Break("half-close", 5))
        end.sendall(b"0123456789")
        assert heard(end, 10) == b"01234"
        end.sendall(b"more")
        eventually(lambda: peer.heard == b"0123456789more", "the other direction is open")


def test_half_closed_by_the_client(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.order(Break("half-close", 5, to_server=True))
        end.sendall(b"0123456789")
        eventually(lambda: peer.ends == ["end"], "the server's end")
        assert peer.heard == b"01234"
        assert heard(end, 10) == b"01234", "what it has sent came all the same"


@pytest.mark.parametrize("to_server", [False, True])
def test_a_corrupted_byte(peer: Peer, to_server: bool) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.order(Break("corrupt", 5, to_server))
        end.sendall(b"0123456789")
        assert heard(end, 10) == b"01234%6789"
        assert peer.heard == (b"01234%6789" if to_server else b"0123456789")


def test_a_corrupted_byte_within_others(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.order(Break("corrupt", 5, within=b"345"))
        end.sendall(b"0123456789")
        assert heard(end, 10) == b"0123456789", "they came too early"
        assert proxy.pending == 1
        end.sendall(b"0123456789")
        assert heard(end, 10) == b"0123$56789"


def test_one_connection_stalls_and_others_do_not(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as one, dial(proxy) as other:
        proxy.order(Break("stall"))
        one.sendall(b"x")
        eventually(lambda: not proxy.pending, "the stall")
        other.sendall(b"y")
        assert heard(other, 1) == b"y"
        one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.recv(1)


def test_what_is_held_back_comes_later(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.stall()
        end.sendall(b"x")
        end.settimeout(0.05)
        with pytest.raises(TimeoutError):
            end.recv(1)
        proxy.flow()
        end.settimeout(GUARD_S)
        assert heard(end, 1) == b"x"


def test_it_refuses_and_accepts_on_the_same_port(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as before:
        before.sendall(b"w")
        assert heard(before, 1) == b"w", "it was taken"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        before.sendall(b"x")
        assert heard(before, 1) == b"x", "those there are stay"
        proxy.accept()
        with dial(proxy) as after:
            after.sendall(b"y")
            assert heard(after, 1) == b"y"
        assert proxy.connections == 2


def test_each_connection_has_its_own_cut(peer: Peer) -> None:
    with TcpProxy(peer.port, [3, 5]) as proxy:
        found = []
        for _ in range(3):
            with dial(proxy) as end:
                end.sendall(b"0123456789")
                found.append(heard(end, 10))
        assert found == [b"012", b"01234", b"0123456789"]


def test_all_are_cut_at_a_byte_of_one(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as one, dial(proxy) as other:
        eventually(lambda: proxy.connections == 2, "both connections")
        proxy.order(Break("cut-all", 5))
        one.sendall(b"0123456789")
        assert heard(one, 10) == b"01234"
        assert other.recv(1) == b""
        eventually(lambda: len(peer.ends) == 2, "the server's ends")
        assert proxy.struck == [Break("cut-all", 5)]


def test_muted_the_server_hears_and_is_not_heard(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end, dial(proxy) as other:
        proxy.order(*[Break("mute", 5, to_server=True)] * 2)
        end.sendall(b"0123456789")
        eventually(lambda: peer.heard == b"0123456789", "all of it at the server")
        end.settimeout(0.05)
        found = b""
        with pytest.raises(TimeoutError):
            while piece := end.recv(10):
                found += piece
        assert b"01234".startswith(found)
        assert proxy.pending == 1, "each is for one connection"
        other.sendall(b"01")
        assert heard(other, 2) == b"01"


def elapsed_s(end: socket.socket, size: int) -> float:
    """How long it takes until so much has gone to the server and come back."""
    began = time.monotonic()
    end.sendall(b"x" * size)
    assert heard(end, size) == b"x" * size
    return time.monotonic() - began


def test_delayed(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.delay_s = 0.2
        assert elapsed_s(end, 1) >= 0.4, "one piece there, one back"
        assert proxy.slowed == 2
        proxy.heal()
        elapsed_s(end, 1)
        assert proxy.slowed == 2, "no more than before"


def test_throttled(peer: Peer) -> None:
    with TcpProxy(peer.port) as proxy, dial(proxy) as end:
        proxy.bytes_per_s = 100_000
        assert elapsed_s(end, 50_000) >= 0.5
        slowed = proxy.slowed
        assert slowed
        proxy.heal()
        elapsed_s(end, 1)
        assert proxy.slowed == slowed, "no more than before"


def test_urls() -> None:
    with TcpProxy() as proxy:
        assert (
            proxy.url("amqp://guest:guest@localhost:5672/x?y=1") == f"amqp://guest:guest@127.0.0.1:{proxy.port}/x?y=1"
        )
        assert proxy.url("https://127.0.0.1:8080/orders") == f"https://127.0.0.1:{proxy.port}/orders"
