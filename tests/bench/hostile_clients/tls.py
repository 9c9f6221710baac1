"""Bad clients of TLS, at all doors at once: many connections of somebody whom nobody knows yet, or who is served."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from urllib.parse import urlsplit

from spark_streams.server.door_config import DoorConfig
from tests.bench.hostile_clients.registry import attack
from tests.door_urls import plain_url
from tests.server.hostile.doors import DEADLINE_S, introduce

MANY = DoorConfig.max_handshakes
SERVED = DoorConfig.max_connections - 24
"""As many as a door serves, but for those who mean well."""
BURST = 100


@cache
def trusting() -> ssl.SSLContext:
    """What all of them share: to make it takes longer than a handshake."""
    return ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])


class Client:
    """A connection to a door.

    Args:
        url: the door's.
        wants: how far it goes: ``hello``, ``tls``, or ``served``.
    """

    def __init__(self, url: str, wants: str = "hello") -> None:
        parts = urlsplit(plain_url(url))
        self.url = url
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect((parts.hostname, parts.port))
        self.received = b""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trusting().wrap_bio(self._incoming, self._outgoing, server_hostname=parts.hostname)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self.socket.sendall(self._outgoing.read())
        if wants != "hello":
            self.finish()
        if wants == "served":
            words = introduce(self, parts.scheme.removesuffix("+tls").replace("amqps", "amqp"))  # type: ignore[arg-type]
            while words not in self.received:
                self.wait(lambda: self._tls.read(65_536))

    def finish(self) -> None:
        """End the handshake."""
        self.wait(self._tls.do_handshake)
        self.socket.sendall(self._outgoing.read())

    def wait(self, do: Callable[[], bytes | None]) -> None:
        """Do something that needs what the door says."""
        while True:
            try:
                self.received += do() or b""
                return
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                piece = self.socket.recv(65_536)
                if not piece:
                    raise EOFError("the door closed the connection") from None
                self._incoming.write(piece)

    def send(self, content: bytes) -> None:
        self._tls.write(content)
        self.socket.sendall(self._outgoing.read())

    @property
    def ended(self) -> bool:
        """Whether the door has closed it; what it says is not looked at."""
        self.socket.setblocking(False)
        try:
            while piece := self.socket.recv(65_536):
                pass
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not piece


def crowd(urls: Mapping[str, str], many: int, wants: str) -> Iterator[None]:
    """Be so many at each door, and come again where one is cut."""
    clients = [Client(url, wants) for url in urls.values() for _ in range(many)]
    yield
    while True:
        for at, client in enumerate(clients):
            if client.ended:
                client.socket.close()
                with contextlib.suppress(OSError, EOFError):
                    clients[at] = Client(client.url, wants)
        time.sleep(0.05)
        yield


@attack(f"tls: {MANY} handshakes at each door that do not go on", tls=True)
def half_open(urls: Mapping[str, str]) -> Iterator[None]:
    yield from crowd(urls, MANY, "hello")


@attack(f"tls: {MANY} connections at each door whose handshake is over, and that say nothing", tls=True)
def silent(urls: Mapping[str, str]) -> Iterator[None]:
    yield from crowd(urls, MANY, "tls")


@attack("tls: as many connections as each door serves", tls=True)
def served(urls: Mapping[str, str]) -> Iterator[None]:
    yield from crowd({door: url for door, url in urls.items() if door != "web"}, SERVED, "served")


@attack(f"tls: {BURST} handshakes at each door at the same time, again and again", tls=True)
def bursts(urls: Mapping[str, str]) -> Iterator[None]:
    yield
    while True:
        clients = [Client(url) for url in urls.values() for _ in range(BURST)]
        for client in clients:
            client.finish()
        for client in clients:
            client.socket.close()
        yield
