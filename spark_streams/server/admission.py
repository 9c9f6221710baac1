"""Admission of connections to a door: from an accepted socket to a peer that has introduced itself.

::

    accepted -> [TLS] -> signs in, opens; or a request's head -> established -> gone
    |<---------------- handshake_timeout_ms ------------------>|
    |<------------------- max_handshakes --------------------->|<- max_connections

A new connection that finds ``max_handshakes`` others that are not established yet replaces the oldest of them: a
well-behaved peer needs milliseconds, so the one that is dropped is slow. Established connections are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from spark_streams.server.counters import DoorCounters
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.turns import Timer

BACKLOG: Final = 256
"""The most connections that the system queues until they are accepted."""
ACCEPTED: Final = 16
"""The most that are accepted in one turn of the loop: each takes some 0.1 ms, at each door."""
SHARE_OF_DESCRIPTORS: Final = 0.75
"""The share of the process's descriptors that connections may use; the log's files need the rest."""
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 3

logger = logging.getLogger("spark_streams.server")


def allow_descriptors(connections: int, files: int) -> None:
    """Raise the process's limit of descriptors for its connections and the log's files, as far as the system allows.

    Args:
        connections: how many descriptors connections use at most.
        files: how many files the log may have open.
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
    """The connections of all doors of a server, which share the process's descriptors."""

    def __init__(self) -> None:
        self.open = 0

    @property
    def full(self) -> bool:
        """Whether no further connection should be accepted."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft != resource.RLIM_INFINITY and self.open >= int(soft * SHARE_OF_DESCRIPTORS)


@dataclass(eq=False)
class AdmissionControl:
    """Admits the connections of one door, within its limits.

    Args:
        loop: the server's.
        settings: the door's.
        sockets: the connections of all doors.
        descriptors: how many descriptors a connection of this door uses.
        counters: the door's.
        established: how many connections are established.
        arriving: the connections that are not established yet, the oldest first.
    """

    loop: asyncio.AbstractEventLoop
    settings: DoorConfig
    sockets: Sockets
    descriptors: int = 1
    counters: DoorCounters = field(default_factory=DoorCounters)
    established: int = 0
    arriving: dict[Admission, None] = field(default_factory=dict)

    def enter(self, transport: asyncio.Transport) -> Admission | None:
        """Admit a new connection; return None when there is no room, and the connection was cut."""
        if len(self.arriving) >= self.settings.max_handshakes or self.sockets.full:
            oldest = next(iter(self.arriving), None)
            if oldest is None:
                logger.warning("%s: refused, the process has no descriptors to spare", _peer(transport))
                self.counters.refused["descriptors"] += 1
                transport.abort()
                return None
            self.counters.refused["slow"] += 1
            oldest.drop("it was slow to introduce itself, and others wait")
        _find_vanished(transport, self.settings.write_timeout_ms)
        return Admission(self, transport)

    def close(self) -> None:
        """Drop the connections whose peers have not introduced themselves."""
        for admission in list(self.arriving):
            admission.drop("the server stops")


class Admission:
    """One connection's place: first among the arriving connections, then among the established ones.

    Args:
        control: the admission control of the door.
        transport: the TCP connection.

    Attributes:
        on_late: called, instead of cutting the connection, when the handshake takes too long.
        counters: the door's.
    """

    def __init__(self, control: AdmissionControl, transport: asyncio.Transport) -> None:
        self.counters = control.counters
        self.on_late: Callable[[], None] | None = None
        self._control = control
        self._transport = transport
        self._established = self._refused = False
        self._ended = False
        control.arriving[self] = None
        control.sockets.open += control.descriptors
        timeout_s = control.settings.handshake_timeout_ms / 1000
        self._timer = Timer(control.loop)
        self._timer.start(timeout_s, self.late)

    def establish(self) -> bool:
        """Note that the peer has introduced itself.

        Returns:
            Whether it is served. If not, the door serves ``max_connections`` already: tell the peer so, and close.
        """
        if self._established or self._ended:
            return self._established
        control = self._control
        if control.established >= control.settings.max_connections:
            logger.warning("%s: refused, there are %d connections already", _peer(self._transport), control.established)
            self.refuse("full")
            return False
        self._established = True
        control.established += 1
        self.counters.opened += 1
        self._leave_arrivals()
        return True

    def refuse(self, reason: str) -> None:
        """Note why the peer is not served, although its connection goes on for a while."""
        self._refused = True
        self.counters.refused[reason] += 1

    def end(self) -> None:
        """Release the place; further calls do nothing."""
        if self._ended:
            return
        self._ended = True
        self._control.sockets.open -= self._control.descriptors
        if self._established:
            self._control.established -= 1
            self.counters.closed += 1
        self._leave_arrivals()

    @property
    def established(self) -> bool:
        """Whether the peer has introduced itself, and is served."""
        return self._established and not self._ended

    @property
    def waits(self) -> bool:
        """Whether the peer has not introduced itself, and was not refused."""
        return not (self._established or self._refused or self._ended)

    def drop(self, why: str) -> None:
        """Cut the connection."""
        logger.info("%s: dropped, %s", _peer(self._transport), why)
        self.end()
        self._transport.abort()

    def late(self) -> None:
        """End the connection, because its time to introduce itself is over."""
        if self.waits:  # else it was refused for another reason, and is counted
            self.counters.refused["late"] += 1
        if self.on_late is None:
            self.drop("it did not introduce itself in time")
        else:
            self.on_late()

    def _leave_arrivals(self) -> None:
        self._control.arriving.pop(self, None)
        self._timer.stop()


class Entrance(asyncio.Protocol):
    """The protocol of an accepted socket, until it is admitted.

    Args:
        control: the admission control of the door.
        make: returns the protocol of an admitted connection, which calls the ``Admission``: ``establish`` when the peer
            has introduced itself, ``end`` when the connection is lost.
    """

    def __init__(self, control: AdmissionControl, make: Callable[[Admission], asyncio.BaseProtocol]) -> None:
        self._control = control
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand over the connection, if it is admitted."""
        assert isinstance(transport, asyncio.Transport)
        admission = self._control.enter(transport)
        if admission is not None:
            protocol = self._make(admission)
            transport.set_protocol(protocol)
            protocol.connection_made(transport)


def _peer(transport: asyncio.Transport) -> str:
    return str(transport.get_extra_info("peername"))


def _find_vanished(transport: asyncio.Transport, write_timeout_ms: int) -> None:
    """Have the system notice a peer that vanished without closing, whether bytes were sent to it or not."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        # Later than the write timeout, which tells a peer that still exists; the system tells nobody.
        ("TCP_USER_TIMEOUT", 2 * write_timeout_ms),
    ):
        if hasattr(socket, name):  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
