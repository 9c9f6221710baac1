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
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from spark_streams.redaction import one_line
from spark_streams.server.counters import DoorCounters, logger
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.turns import Timer
from spark_streams.server.users import Guesses

BACKLOG: Final = 256
"""The most connections that the system queues until they are accepted."""
ACCEPTED: Final = 16
"""The most connections that each door accepts in one turn of the loop; each takes some 0.1 ms."""
SHARE_OF_DESCRIPTORS: Final = 0.75
"""The share of the process's descriptors that connections may use; the log's files need the rest."""
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 10
KEEPALIVE_PROBES: Final = 3


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
    """The connections of all doors of a server, which share the process's descriptors, and the wrong credentials."""

    def __init__(self) -> None:
        self.open = 0
        self.guesses = Guesses()

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
        established: the established connections, the oldest first, to their users; None where the peer has not said who
            it is: such connections make room for others.
        arriving: the connections that are not established yet, the oldest first.
    """

    loop: asyncio.AbstractEventLoop
    settings: DoorConfig
    sockets: Sockets
    descriptors: int = 1
    counters: DoorCounters = field(default_factory=DoorCounters)
    established: dict[Admission, str | None] = field(default_factory=dict)
    arriving: dict[Admission, None] = field(default_factory=dict)

    def enter(self, transport: asyncio.Transport) -> Admission | None:
        """Admit a new connection; cut it and return None when there is no room."""
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
        limit: the reason why the peer is not served, as text, once it is refused.
    """

    def __init__(self, control: AdmissionControl, transport: asyncio.Transport) -> None:
        self.counters = control.counters
        self.on_late: Callable[[], None] | None = None
        self._control = control
        self._transport = transport
        self.limit = ""
        self._refused = self._ended = False
        self._untold: list[asyncio.Future[None]] = []
        control.arriving[self] = None
        control.sockets.open += control.descriptors
        timeout_s = control.settings.handshake_timeout_ms / 1000
        self._timer = Timer(control.loop)
        self._timer.start(timeout_s, self.late)

    def establish(self, user: str | None = None) -> bool:
        """Note that the peer has introduced itself.

        Args:
            user: the user; None where each request names one.

        Returns:
            Whether it is served. If not, the door serves as many as it may already: tell the peer the ``limit``, and
            close.
        """
        there, most = self._control.established, self._control.settings.max_connections
        if self.established or self._ended:
            return self.established
        if len(there) >= most and (strangers := [each for each, owner in there.items() if owner is None]):
            strangers[0].drop("nobody has signed in there, and others wait")
        if len(there) >= most:
            self.limit = f"this door serves {most} connections, and has as many"
        if self.limit or not self.belongs_to(user):
            logger.warning("%s: refused, %s", _peer(self._transport), self.limit)
            self.refuse("full")
            return False
        self.counters.opened += 1
        self._leave_arrivals()
        return True

    def belongs_to(self, user: str | None) -> bool:
        """Note the user of an established connection; return whether that user may have one more."""
        there, most = self._control.established, self._control.settings.user_connections
        if user is not None and user != there.get(self) and list(there.values()).count(user) >= most:
            self.limit = f"this door serves {most} connections of one user, and has as many"
            return False
        if not self._ended:
            there[self] = user
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
        if self.established:
            del self._control.established[self]
            self.counters.closed += 1
        self._leave_arrivals()
        for told in self._untold:
            _resolve(told)

    def wrong_credentials(self, why: str) -> asyncio.Future[None]:
        """Note that credentials were not accepted, for the log and the counters.

        Args:
            why: the reason, as text without a secret.

        Returns:
            A future that is done when the peer may be answered, or the connection has ended.
        """
        peer, settings = self._transport.get_extra_info("peername"), self._control.settings
        logger.warning("%s: %s: wrong credentials: %s", settings.protocol, _peer(self._transport), one_line(why))
        self.counters.sign_ins_failed += 1
        host, first_s = peer[0] if isinstance(peer, tuple) else None, settings.authentication_delay_ms / 1000
        delay_s = self._control.sockets.guesses.delay_s(host, first_s)
        told: asyncio.Future[None] = self._control.loop.create_future()
        self._control.loop.call_later(0 if self._ended else delay_s, _resolve, told)
        self._untold.append(told)
        return told

    @property
    def established(self) -> bool:
        """Whether the peer has introduced itself, and is served."""
        return self in self._control.established

    @property
    def waits(self) -> bool:
        """Whether the peer has not introduced itself, and was not refused."""
        return not (self.established or self._refused or self._ended)

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


def _resolve(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


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
        # Later than the write timeout, which resets a peer that still exists; the system tells nobody.
        ("TCP_USER_TIMEOUT", 2 * write_timeout_ms),
    ):
        if hasattr(socket, name):  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
