"""Defines a door, the server's endpoint for one protocol, and the code that doors on TCP have in common."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from spark_streams.log import ReferenceLog
from spark_streams.protocols import with_doors
from spark_streams.server.activity import ConnectionInfo, Item, Who, peer_text
from spark_streams.server.admission import ACCEPTED, BACKLOG, Admission, AdmissionControl, Entrance, Sockets
from spark_streams.server.appender import Appender
from spark_streams.server.counters import DoorCounters, logger
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.tls import Handshakes, TlsTransport, tls_context
from spark_streams.server.turns import Timer, Worker

STOP_TIMEOUT_S = 2.0
"""How long peers may take to read the last frames when the door closes, in seconds."""
FOLLOW_INTERVAL_S: Final = 0.1
"""Seconds between two looks of a node for changes of streams: the log does not report changes by other doors."""
LINGER_S: Final = 2.0
"""How long a peer may take to read the last frames of its connection, and to answer them, in seconds."""


class DoorShut(OSError):
    """A door cannot be opened.

    Args:
        door: its name, as in ``LogServer.urls``.
        reason: the cause: a port that is taken, or (``ssl.SSLError`` too) a TLS file that cannot be used.
    """

    def __init__(self, door: str, reason: OSError) -> None:
        super().__init__(reason.errno, f"the door {door} cannot be opened: {reason.strerror or reason}")
        self.door = door
        self.reason = reason


class Door(Protocol):
    """The interface of a door that ``LogServer`` opens and closes.

    It may have more: ``renegotiate`` (``LogServer.renegotiate``), ``observe``, which is given all doors before they are
    opened, and what the log's window shows of it: ``activity`` and ``stored`` (``activity.py``), and ``counters``.
    """

    @property
    def name(self) -> str:
        """Its name in ``LogServer.urls``."""

    @property
    def config(self) -> DoorConfig:
        """Its settings: where it listens, and whom it lets in."""

    @property
    def descriptors(self) -> int:
        """How many descriptors a connection uses."""

    @property
    def url(self) -> str:
        """The URL where it listens, without credentials; read while the door is open."""

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        """Listen.

        Args:
            log: the log that it serves; it stays open when the door is closed.
            sockets: the connections of all doors of the server.

        Raises:
            OSError: the port is taken, or a TLS file cannot be read; nothing listens then.
        """

    async def close(self) -> None:
        """Accept no new connections, end the open ones, and write durable state.

        It may be called for a door that is not open, or whose ``open`` failed.
        """


class TcpDoor:
    """A door that lets its connections in through an ``AdmissionControl``; they are asyncio protocols of its own.

    Args:
        config: its settings.

    Attributes:
        counters: the counters of its work.
        node: the state that the connections of a subclass share, such as a ``DoorNode``; None before the door is open.
    """

    descriptors = 1
    """How many descriptors a connection uses."""
    node: Any = None

    def __init__(self, config: DoorConfig) -> None:
        self.config = config
        self.counters = DoorCounters()
        self.url = ""
        self._protocol = with_doors()[config.protocol]
        self._admission: AdmissionControl | None = None
        self._listener: asyncio.Server | None = None

    @property
    def name(self) -> str:
        """Its name in ``LogServer.urls``: the protocol's."""
        return self._protocol.name

    @property
    def connections(self) -> Collection[Any]:
        """The open connections, each with ``shut_down`` and ``drop``. Call it on the server's loop."""
        return () if self.node is None else self.node.connections

    async def listen(self, sockets: Sockets, make: Callable[[Admission], asyncio.Protocol]) -> None:
        """Listen, and ``make`` a connection for each socket that is admitted; set ``url`` to where the door listens.

        Raises:
            OSError: the port is taken, or a TLS file cannot be read.
            ssl.SSLError: a TLS file holds no certificate or key.
        """
        loop, context = asyncio.get_running_loop(), tls_context(self.config)
        entered: Callable[[Admission], asyncio.BaseProtocol] = make
        if context is not None:
            entered = partial(TlsTransport, Handshakes(loop, context, self.config), make)
        control = AdmissionControl(loop, self.config, sockets, self.descriptors, self.counters)
        self._admission = control
        host, port = self.config.host, self.config.port
        where: dict[str, Any] = {"host": host, "port": port, "backlog": ACCEPTED}
        if host == "::" and socket.has_dualstack_ipv6():  # asyncio would listen on IPv6 only
            listening = socket.create_server((host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
            where = {"sock": listening, "backlog": ACCEPTED}
        self._listener = await loop.create_server(lambda: Entrance(control, entered), **where)
        for each in self._listener.sockets:
            with each.dup() as queue:  # asyncio's one backlog is the queue and the accepts of a turn
                queue.listen(BACKLOG)
        scheme = self._protocol.scheme if context is None else self._protocol.tls_scheme
        self.url = f"{scheme}://{peer_text((host, self._listener.sockets[0].getsockname()[1]))}"

    async def end_connections(self) -> None:
        """Stop listening, tell each peer that its connection ends, and drop those that do not end in time."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.close()
        for connection in list(self.connections):
            try:
                connection.shut_down()
            except Exception:  # the other connections end in good order, and durable state is written
                logger.exception("a connection of the door %s could not be closed in good order", self.name)
                connection.drop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_TIMEOUT_S
        while self.connections and loop.time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.drop()
        await asyncio.sleep(0)

    def activity(self) -> Iterator[Item]:
        """Yield what is connected, oldest first, so that pages of the list stay as they are; see ``activity.py``."""
        there = [each for each in self.connections if getattr(each, "established", False)]  # a user's door may lack it
        for connection in sorted(there, key=lambda each: (each.since_ms, each.address)):
            if connection.established:
                yield from connection.told(self.name)

    async def close(self) -> None:
        """End the connections as ``end_connections`` does, and have the node write durable state."""
        await self.end_connections()
        node, self.node = self.node, None
        if node is not None:
            node.close()


@dataclass(eq=False)
class DoorNode(ABC):
    """A served log, for all connections of a ``TcpDoor``.

    Args:
        log: the served log.
        config: the door's settings.
        loop: the server's.
        counters: what the door has done.

    Attributes:
        connections: the open connections.
        appender: appends what producers send.
        worker: the worker thread, for longer work.
    """

    log: ReferenceLog
    config: DoorConfig
    loop: asyncio.AbstractEventLoop
    counters: DoorCounters

    def __post_init__(self) -> None:
        self.connections: set[Any] = set()
        self.appender = Appender(self.loop, self.log.config.fsync == "always", self.counters)
        self.worker = Worker(f"spark-streams-{self.config.protocol}")
        self._timer = Timer(self.loop)

    def add_connection(self, connection: TcpConnection) -> None:
        """Add a new connection, which removes itself from ``connections`` when it has ended."""
        self.connections.add(connection)
        if not self._timer.due:
            self._timer.start(FOLLOW_INTERVAL_S, self._follow)

    def _follow(self) -> None:
        if self.connections:
            self._timer.start(FOLLOW_INTERVAL_S, self._follow)
            self.follow()

    @abstractmethod
    def follow(self) -> None:
        """Report to the connections how other doors, or this one, have changed the streams that they use."""

    def close(self) -> None:
        """Finish work that has begun; call it after all connections have ended."""
        self._timer.stop()
        self.worker.close()
        self.appender.close()


class TcpConnection(asyncio.Protocol, ABC):
    """One connection of a ``TcpDoor`` with a ``DoorNode``.

    Args:
        node: the node that the connections share.
        admission: its place at the door.
        write_buffer_bytes: how many bytes may wait for the peer to read.

    Attributes:
        node: the node that the connections share.
        peer: the peer's address, for the log.
        peer_host: the host of this address, None when it is not known.
        address: its host and port, for people.
        since_ms: when it connected, in ms since the epoch.
        user: who signed in; empty before.
        client: what the peer says of itself; empty before it says it.
    """

    def __init__(self, node: DoorNode, admission: Admission, write_buffer_bytes: int) -> None:
        self.node = node
        self.peer = "?"
        self.peer_host: str | None = None
        self.address = "?"
        self.since_ms = 0
        self.user = self.client = ""
        self._admission = admission
        self._write_buffer_bytes = write_buffer_bytes
        self._transport: asyncio.Transport | None = None
        self._write_timeout: WriteTimeout
        self._end_timer = Timer(node.loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the peer to introduce itself; asyncio calls it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = str(address)
        self.address = peer_text(address)
        self.since_ms = time.time_ns() // 1_000_000
        self.peer_host = address[0] if isinstance(address, tuple) else None
        self._write_timeout = WriteTimeout(self.node.loop, transport, self.node.config.write_timeout_ms, self.drop)
        transport.set_write_buffer_limits(high=self._write_buffer_bytes)
        self.node.add_connection(self)

    @property
    def established(self) -> bool:
        """Whether the peer has introduced itself, and is served."""
        return self._admission.established

    @property
    def known_as(self) -> str:
        """The peer's user, or users, for people."""
        return self.user

    def told(self, door: str) -> Iterator[Item]:
        """Yield the connection, its readers and its writers, for ``activity``; ``door`` is the door's name."""
        who = (door, self.address, self.known_as)
        yield ConnectionInfo(*who, self.client, self.since_ms)
        yield from self._uses(who)

    @abstractmethod
    def _uses(self, who: Who) -> Iterator[Item]:
        """Yield its readers and writers."""

    def guarded(self, function: Callable[[], None]) -> None:
        """Call a function of this connection from outside of it; an error in the function ends this connection only."""
        try:
            function()
        except Exception as fault:
            self._crashed(fault)

    @abstractmethod
    def _crashed(self, fault: Exception) -> None:
        """Log an unexpected error, and close the connection."""

    @abstractmethod
    def shut_down(self) -> None:
        """Tell the peer that the connection ends."""

    @abstractmethod
    def drop(self) -> None:
        """Close the socket without waiting for the peer."""


_RESET: Final = struct.pack("ii", 1, 0)


def throw_away_unsent(transport: asyncio.Transport) -> None:
    """Discard unsent bytes when the connection is cut, those in the system's memory too.

    The peer sees a reset, so that it does not mistake the bytes that it got for all of them.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


class WriteTimeout:
    """Drops a peer that reads nothing for too long, while the transport is full.

    Args:
        loop: the server's.
        transport: the connection.
        timeout_ms: how long the peer may read nothing.
        drop: ends the connection at once.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, timeout_ms: int, drop: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._timeout_ms = timeout_ms
        self._drop = drop
        self._waiting = 0
        self._timer = Timer(loop)

    def start(self) -> None:
        """Wait for the peer, because the transport is full."""
        self._waiting = self._transport.get_write_buffer_size()
        self._timer.start(self._timeout_ms / 1000, self._look)

    def stop(self) -> None:
        """Stop waiting for the peer."""
        self._timer.stop()

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._waiting:
            self.start()  # the peer is slow, but alive
            return
        peer = self._transport.get_extra_info("peername")
        logger.info("%s: dropped, it took nothing for %d ms", peer, self._timeout_ms)
        throw_away_unsent(self._transport)
        self._drop()
