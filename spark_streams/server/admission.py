"""Who comes in at a door: from an accepted socket to a peer that has introduced itself.

::

    accepted -> [TLS] -> signs in, opens; or a request's head -> established -> gone
    |<---------------- handshake_timeout_ms ------------------>|
    |<------------------- max_handshakes --------------------->|<- max_connections

A newcomer that finds ``max_handshakes`` others before they are established takes the place of the one that is there
longest: somebody who means well needs milliseconds, so it is a slow one that goes. Nobody who is established is touched
by that.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Final

from spark_streams.server.door_config import DoorConfig

BACKLOG: Final = 256
"""Connections that the system keeps until they are accepted, and that are accepted in one turn."""
SHARE_OF_DESCRIPTORS: Final = 0.75
"""What connections may take of the descriptors that the process may have; the log's files need the rest."""
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 3
TLS_END_S: Final = 2.0
"""How long a peer may take to agree to the end of TLS."""

logger = logging.getLogger("spark_streams.server")


def allow_descriptors(connections: int, files: int) -> None:
    """Let the process have descriptors for its connections and the log's files, if the system does.

    Args:
        connections: how many they take at most.
        files: how many the log may have open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(int(connections / SHARE_OF_DESCRIPTORS) + 1, connections + files)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed * SHARE_OF_DESCRIPTORS < connections:
        logger.warning("the system allows %d open files: too few for %d connections", allowed, connections)


class Sockets:
    """The connections of all doors of a server, which share the process's descriptors.

    Args:
        most: descriptors that connections may have; None: a share of what the process may have.
    """

    def __init__(self, most: int | None = None) -> None:
        self.open = 0
        self._most = most

    @property
    def full(self) -> bool:
        """Whether no further connection should be taken."""
        most = self._most
        if most is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft == resource.RLIM_INFINITY:
                return False
            most = int(soft * SHARE_OF_DESCRIPTORS)
        return self.open >= most


class AdmissionControl:
    """The way in of one door.

    Args:
        loop: the server's.
        settings: the door's.
        context: for TLS, or None.
        sockets: those of all doors.
        descriptors: what a connection of this door takes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: DoorConfig,
        context: ssl.SSLContext | None,
        sockets: Sockets,
        descriptors: int = 1,
    ) -> None:
        self.loop = loop
        self.settings = settings
        self.context = context
        self.established = 0
        self.arriving: dict[Admission, None] = {}
        self.sockets = sockets
        self.descriptors = descriptors

    def protocol(self, make: Callable[[Admission], asyncio.Protocol]) -> asyncio.Protocol:
        """Return what an accepted socket is given to; ``make`` is called once bytes of the door's protocol may come.

        What it makes calls the ``Admission``: ``establish`` when the peer has introduced itself, ``end`` when the
        connection is lost.
        """
        return _Entrance(self, make)

    def enter(self, transport: asyncio.Transport) -> Admission | None:
        """Take a newcomer in; None when there is no room, and it was cut."""
        if len(self.arriving) >= self.settings.max_handshakes or self.sockets.full:
            oldest = next(iter(self.arriving), None)
            if oldest is None:
                logger.warning("%s: refused, the process has no descriptors to spare", _peer(transport))
                transport.abort()
                return None
            oldest.drop("it was slow to introduce itself, and others wait")
        _find_vanished(transport, self.settings.write_timeout_ms)
        return Admission(self, transport)

    def close(self) -> None:
        """Drop those who have not introduced themselves."""
        for admission in list(self.arriving):
            admission.drop("the server stops")


class Admission:
    """One connection's place: first among those who arrive, then among those who are established.

    Args:
        doorway: the door's.
        transport: the TCP connection.

    Attributes:
        on_late: called in place of cutting the connection when it takes too long.
    """

    def __init__(self, doorway: AdmissionControl, transport: asyncio.Transport) -> None:
        self.on_late: Callable[[], None] | None = None
        self._doorway = doorway
        self._transport = transport
        self._established = False
        self._ended = False
        doorway.arriving[self] = None
        doorway.sockets.open += doorway.descriptors
        timeout_s = doorway.settings.handshake_timeout_ms / 1000
        self._timer: asyncio.TimerHandle | None = doorway.loop.call_later(timeout_s, self._late)

    def establish(self) -> bool:
        """Note that the peer has introduced itself.

        Returns:
            Whether it is served. If not, the door has as many as it serves: tell the peer so, and close.
        """
        if self._established or self._ended:
            return self._established
        doorway = self._doorway
        if doorway.established >= doorway.settings.max_connections:
            logger.warning("%s: refused, there are %d connections already", _peer(self._transport), doorway.established)
            return False
        self._established = True
        doorway.established += 1
        self._leave_arrivals()
        return True

    def end(self) -> None:
        """Give the place back; once is enough, more do no harm."""
        if self._ended:
            return
        self._ended = True
        self._doorway.sockets.open -= self._doorway.descriptors
        if self._established:
            self._doorway.established -= 1
        self._leave_arrivals()

    def drop(self, why: str) -> None:
        """Cut the connection."""
        logger.info("%s: dropped, %s", _peer(self._transport), why)
        self.end()
        self._transport.abort()

    def _leave_arrivals(self) -> None:
        self._doorway.arriving.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        if self.on_late is None:
            self.drop("it did not introduce itself in time")
        else:
            self.on_late()


class _Entrance(asyncio.Protocol):
    """An accepted socket, until TLS is there where the door speaks it.

    Args:
        doorway: the door's.
        make: makes the door's own protocol.
    """

    def __init__(self, doorway: AdmissionControl, make: Callable[[Admission], asyncio.Protocol]) -> None:
        self._doorway = doorway
        self._make = make
        self._admission: Admission | None = None
        self._securing: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        admission = self._admission = self._doorway.enter(transport)
        if admission is None:
            return
        if self._doorway.context is None:
            self._hand_over(admission, transport)
        else:
            self._securing = self._doorway.loop.create_task(self._secure(admission, transport, self._doorway.context))

    def data_received(self, data: bytes) -> None:
        """Keep what came right behind the TLS handshake."""
        self._early.append(data)

    def eof_received(self) -> bool:
        self._ended = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admission is not None:
            self._admission.end()

    def _hand_over(self, admission: Admission, transport: asyncio.Transport) -> None:
        protocol = self._make(admission)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        for data in self._early:
            protocol.data_received(data)
        if self._ended:
            protocol.eof_received()

    async def _secure(self, admission: Admission, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        options: dict[str, Any] = {"ssl_shutdown_timeout": TLS_END_S} if sys.version_info >= (3, 11) else {}
        timeout_s = self._doorway.settings.handshake_timeout_ms / 1000
        try:
            secured = await self._doorway.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=timeout_s, **options
            )
        except OSError as fault:  # ssl.SSLError, a time limit, a peer that is gone
            logger.info("%s: no TLS: %s", _peer(transport), fault or type(fault).__name__)
            secured = None
        if secured is None or transport.is_closing():
            admission.end()
            transport.abort()
        else:
            self._hand_over(admission, secured)


def _peer(transport: asyncio.Transport) -> str:
    return str(transport.get_extra_info("peername"))


def _find_vanished(transport: asyncio.Transport, write_timeout_ms: int) -> None:
    """Have the system notice a peer that vanished without a word, whether it was sent something or not."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        # Later than our own look, which tells a peer that is there; the system tells nobody.
        ("TCP_USER_TIMEOUT", 2 * write_timeout_ms),
    ):
        if hasattr(socket, name):  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
