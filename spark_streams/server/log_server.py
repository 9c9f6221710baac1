"""The server of a reference log: its doors, on one asyncio loop."""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from spark_streams.log import ReferenceLog
from spark_streams.server.admission import BACKLOG, Admission, AdmissionControl, DoorSettings, Sockets
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.amqp.connection import AmqpConnection
from spark_streams.server.amqp.node import Node
from spark_streams.server.exposure import ExposedSettings, exposed
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.rabbitmq.connection import RabbitConnection
from spark_streams.server.rabbitmq.node import RabbitNode
from spark_streams.server.tls import server_context

if TYPE_CHECKING:
    from spark_streams.server.feed.http_server import HttpServer

__all__ = ["DoorShut", "LogServer", "may_listen"]

STOP_TIMEOUT_S = 2.0
"""How long peers may take to read what they are told at the end."""

logger = logging.getLogger("spark_streams.server")


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


def may_listen(door: str, config: ExposedSettings) -> None:
    """Say that a door may be opened where its settings say; of one that is ``insecure`` there is a warning.

    Raises:
        DoorExposed: it would listen beyond loopback and let in strangers, and is not ``insecure``.
        DoorShut: the host's name cannot be resolved.
    """
    try:
        fault = exposed(door, config)
    except OSError as reason:
        raise DoorShut(door, reason) from reason
    if fault is None:
        return
    if not config.insecure:
        raise fault
    logger.warning(
        "INSECURE: the door %s listens on %s, which other machines reach, and %s: strangers are let in",
        door,
        fault.where,
        fault.unguarded.problem,
    )


class _Connection(Protocol):
    def shut_down(self) -> None: ...
    def drop(self) -> None: ...


class _Bound(Protocol):
    def getsockname(self) -> Any: ...


class LogServer:
    """Serves a log.

    Args:
        log: the log; it stays open when the server stops.
        amqp: settings of the AMQP door; None leaves it shut.
        rabbit: settings of the RabbitMQ streams door; None leaves it shut.
        feed: settings of the FeedAPI door; None leaves it shut.

    Attributes:
        urls: door to where it listens, without credentials; filled by ``start``.

    """

    def __init__(
        self,
        log: ReferenceLog,
        amqp: AmqpConfig | None = None,
        rabbit: RabbitConfig | None = None,
        feed: FeedConfig | None = None,
    ) -> None:
        self.log = log
        self.urls: dict[str, str] = {}
        self._amqp = amqp
        self._rabbit = rabbit
        self._feed = feed
        self._http: HttpServer | None = None
        self._node: Node | None = None
        self._rabbit_node: RabbitNode | None = None
        self._listeners: list[asyncio.Server] = []
        self._doorways: list[AdmissionControl] = []
        self._sockets = Sockets()
        self._amqp_connections: set[AmqpConnection] = set()
        self._container = f"spark-streams-{uuid.uuid4().hex}"

    async def start(self) -> None:
        """Open the doors.

        Raises:
            DoorExposed: a door would listen beyond loopback and let in strangers, and is not ``insecure``.
            DoorShut: a port is taken, or a TLS file cannot be read.

        Nothing listens after either.

        """
        for door, config in (("amqp", self._amqp), ("rabbitmq-stream", self._rabbit), ("feedapi", self._feed)):
            if config is not None:
                may_listen(door, config)
        try:
            await self._open_amqp()
            await self._open_rabbit()
            await self._open_feed()
        except BaseException:
            await self.stop()
            raise

    async def _open_amqp(self) -> None:
        config = self._amqp
        if config is None:
            return
        node = self._node = Node(self.log, config, asyncio.get_running_loop())
        await self._listen(
            "amqp",
            "amqp",
            "amqps",
            config,
            lambda admission: AmqpConnection(node, self._amqp_connections, self._container, admission),
        )

    async def _open_rabbit(self) -> None:
        config = self._rabbit
        if config is None:
            return
        node = self._rabbit_node = RabbitNode(self.log, config, asyncio.get_running_loop())
        scheme = "rabbitmq-stream"
        # Without TLS it writes past its transport, by a descriptor of its own.
        descriptors = 2 if config.tls_cert is None else 1
        await self._listen(
            scheme,
            scheme,
            f"{scheme}+tls",
            config,
            lambda admission: RabbitConnection(node, admission),
            descriptors,
        )

    async def _open_feed(self) -> None:
        config = self._feed
        if config is None:
            return
        # Only here: who opens another door, or none, need not wait for them to be imported.
        from spark_streams.server.feed.application import FeedDoor
        from spark_streams.server.feed.http_server import HttpServer, bound_socket

        door = "feedapi"
        try:
            context = server_context(config)
            listener = bound_socket(config.host, config.port)
            node = FeedDoor(self.log, config, asyncio.get_running_loop())
            doorway = self._doorway(config, context)
            self._http = HttpServer(node, listener, doorway, config)
            await self._http.start()
        except OSError as fault:
            raise DoorShut(door, fault) from fault
        self._announce(door, "http" if context is None else "https", config, listener)

    async def _listen(
        self,
        door: str,
        plain: str,
        secured: str,
        config: DoorSettings,
        make: Callable[[Admission], asyncio.Protocol],
        descriptors: int = 1,
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            context = server_context(config)
            doorway = self._doorway(config, context, descriptors)
            listener = await loop.create_server(
                lambda: doorway.protocol(make), config.host, config.port, backlog=BACKLOG
            )
        except OSError as fault:
            raise DoorShut(door, fault) from fault
        self._listeners.append(listener)
        self._announce(door, plain if context is None else secured, config, listener.sockets[0])

    def _doorway(self, config: DoorSettings, context: ssl.SSLContext | None, descriptors: int = 1) -> AdmissionControl:
        doorway = AdmissionControl(asyncio.get_running_loop(), config, context, self._sockets, descriptors)
        self._doorways.append(doorway)
        return doorway

    def _announce(self, door: str, scheme: str, config: DoorSettings, listener: _Bound) -> None:
        host = f"[{config.host}]" if ":" in config.host else config.host
        self.urls[door] = f"{scheme}://{host}:{listener.getsockname()[1]}"

    @property
    def rabbit_connections(self) -> Collection[_Connection]:
        """Those of the RabbitMQ streams door. To be called on the server's loop."""
        return self._rabbit_node.connections if self._rabbit_node is not None else ()

    def _connections(self) -> Collection[_Connection]:
        return [*self._amqp_connections, *self.rabbit_connections]

    async def stop(self) -> None:
        """Close the doors: no new connections, a close frame to each peer, durable state written down."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        http, self._http = self._http, None
        doorways, self._doorways = self._doorways, []
        for doorway in doorways:
            doorway.close()
        http_ends = None if http is None else asyncio.ensure_future(http.stop())
        for connection in self._connections():
            connection.shut_down()
        deadline = asyncio.get_running_loop().time() + STOP_TIMEOUT_S
        while self._connections() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        left = self._connections()
        for connection in left:
            connection.drop()
        if left:
            await asyncio.sleep(0)
        if http_ends is not None:
            await http_ends
        for node in (self._node, self._rabbit_node):
            if node is not None:
                node.close()
        self._node = self._rabbit_node = None
        self.urls.clear()

    def renegotiate(self, stream: str, group: str) -> int:
        """Gracefully close all receivers of a consumer group, for its partitions to be distributed anew.

        Returns:
            How many links were closed.

        Raises:
            UnknownStream: there is no such stream.

        Spec: Event Stream Extensions §4.5.1 (ES-107, ES-207). To be called on the server's loop.

        """
        return self._node.renegotiate(stream, group) if self._node is not None else 0
