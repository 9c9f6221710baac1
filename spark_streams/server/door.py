"""A door: one protocol's way to the log, which a server opens and closes; and what doors on TCP have in common."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from typing import Any, Protocol

from spark_streams.log import ReferenceLog
from spark_streams.protocols import PROTOCOLS
from spark_streams.server.admission import BACKLOG, Admission, AdmissionControl, Sockets
from spark_streams.server.door_config import DoorConfig

STOP_TIMEOUT_S = 2.0
"""How long peers may take to read what they are told at the end."""


class DoorShut(OSError):
    """A door cannot be opened.

    Args:
        door: which one, as in ``LogServer.urls``.
        reason: why: a port that is taken, or (``ssl.SSLError`` too) a TLS file that cannot be used.
    """

    def __init__(self, door: str, reason: OSError) -> None:
        super().__init__(reason.errno, f"the door {door} cannot be opened: {reason.strerror or reason}")
        self.door = door
        self.reason = reason


class Door(Protocol):
    """What ``LogServer`` asks of a door."""

    @property
    def name(self) -> str:
        """Its name in ``LogServer.urls``."""

    @property
    def config(self) -> DoorConfig:
        """Its settings: where it listens, and whom it lets in."""

    @property
    def descriptors(self) -> int:
        """Descriptors that a connection takes."""

    @property
    def url(self) -> str:
        """Where it listens, without credentials; asked for while it is open."""

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen.

        Args:
            log: what is served; it stays open when the door is closed.
            sockets: the connections of all doors of the server.

        Raises:
            OSError: the port is taken, or a TLS file cannot be read; nothing listens then.
        """

    async def close(self) -> None:
        """Take no new connections, end those that there are, and write down what is to be kept.

        A door that is not open, or was not opened as a whole, is closed too.
        """


class ListeningDoor:
    """A door that lets its connections in through an ``AdmissionControl``.

    Args:
        config: its settings.
    """

    descriptors = 1
    """Descriptors that a connection takes."""

    def __init__(self, config: DoorConfig) -> None:
        self.config = config
        self.url = ""
        self._protocol = PROTOCOLS[config.protocol]
        self._admission: AdmissionControl | None = None

    @property
    def name(self) -> str:
        """Its name in ``LogServer.urls``: the protocol's."""
        return self._protocol.name

    def admit(self, sockets: Sockets) -> AdmissionControl:
        """Return the way in, which knows of TLS.

        Raises:
            OSError, ssl.SSLError: a TLS file cannot be read, or holds no certificate or key.
        """
        loop = asyncio.get_running_loop()
        self._admission = AdmissionControl(loop, self.config, _tls_context(self.config), sockets, self.descriptors)
        return self._admission

    def announce(self, port: int) -> None:
        """Say in ``url`` that the door listens on a port."""
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        scheme = self._protocol.scheme if self.config.tls_cert is None else self._protocol.tls_scheme
        self.url = f"{scheme}://{host}:{port}"

    def shut_out(self) -> None:
        """Drop those who have not introduced themselves."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.close()


class Connection(Protocol):
    """What a ``TcpDoor`` asks of a connection."""

    def shut_down(self) -> None:
        """Tell the peer that this is the end."""

    def drop(self) -> None:
        """End at once."""


class TcpDoor(ListeningDoor):
    """A door whose connections are asyncio protocols of its own.

    A door of this kind says what a connection is, and which connections there are.
    """

    def __init__(self, config: DoorConfig) -> None:
        super().__init__(config)
        self._listener: asyncio.Server | None = None

    @property
    def connections(self) -> Collection[Any]:
        """The connections, each a ``Connection``. To be called on the server's loop."""
        raise NotImplementedError

    async def listen(self, sockets: Sockets, make: Callable[[Admission], asyncio.Protocol]) -> None:
        """Listen, and ``make`` a connection of each that is admitted.

        Raises:
            OSError: the port is taken, or a TLS file cannot be read.
        """
        admission = self.admit(sockets)
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: admission.protocol(make), self.config.host, self.config.port, backlog=BACKLOG
        )
        self.announce(self._listener.sockets[0].getsockname()[1])

    async def end_connections(self) -> None:
        """Stop listening, tell each peer that this is the end, and drop those who do not take it in time."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self.shut_out()
        for connection in list(self.connections):
            connection.shut_down()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_TIMEOUT_S
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(0.005)
        left = list(self.connections)
        for connection in left:
            connection.drop()
        if left:
            await asyncio.sleep(0)


def _tls_context(config: DoorConfig) -> ssl.SSLContext | None:
    """Return the context for the configured certificate; None for a door without TLS.

    Raises:
        OSError, ssl.SSLError: a file cannot be read, or holds no certificate or key.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_cert, config.tls_key)
    if config.tls_client_ca is not None:
        context.load_verify_locations(config.tls_client_ca)
        # Optional unless it is said: a peer that shows none may still sign in with a password or a token.
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_required else ssl.CERT_OPTIONAL
    return context
