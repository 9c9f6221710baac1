"""A small AMQP 1.0 peer for tests: proton's engine over a blocking socket, driven in the calling thread.

It shares no code with the package under test. ``pump`` moves bytes until a condition holds; whatever the other side did
is then read from the engine's state, so a test is a plain sequence of steps.
"""

from __future__ import annotations

import itertools
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import proton
from proton import Collector, Connection, Described, Link, Transport, symbol
from proton import Event as Happened

from tests.server.amqp.raw_links import WAIT_S, Receiver, Sender
from tests.server.amqp.raw_words import (
    CAPABILITY,
    CHANGED,
    DA_CODE,
    DA_FILTER,
    EARLIEST,
    EPOCH,
    GROUP,
    GROUP_KEY,
    OFFSET,
    PARTITION,
    SOURCE_PARTITION,
    SQL_CODE,
    SQL_FILTER,
    TARGET_PARTITION,
    TIMESTAMP,
    Ended,
    Event,
    Refused,
    annotations_filter,
    sections,
    sql_filter,
)

__all__ = [
    "CAPABILITY",
    "CHANGED",
    "DA_CODE",
    "DA_FILTER",
    "EARLIEST",
    "EPOCH",
    "GROUP",
    "GROUP_KEY",
    "OFFSET",
    "PARTITION",
    "SOURCE_PARTITION",
    "SQL_CODE",
    "SQL_FILTER",
    "TARGET_PARTITION",
    "TIMESTAMP",
    "Ended",
    "Event",
    "Peer",
    "Receiver",
    "Refused",
    "Sender",
    "annotations_filter",
    "sections",
    "sql_filter",
]

_names = itertools.count(1)


class Peer:
    """One connection to a node.

    Args:
        url: where the node listens; credentials in it are ignored.
        username, password: for PLAIN; with username None the peer is anonymous.
        mechanisms: SASL mechanisms that the peer allows itself.
        tls: the context of a TLS connection, or None for a plain one.
        open: False leaves the open frame to the test.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = "guest",
        password: str | None = "guest",
        mechanisms: str = "PLAIN",
        container: str | None = None,
        desired: Iterable[str] = (),
        tls: ssl.SSLContext | None = None,
        max_frame_bytes: int | None = None,
        idle_timeout_s: float | None = None,
        open: bool = True,
    ) -> None:
        parts = urlsplit(url)
        plain = socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = tls.wrap_socket(plain, server_hostname=parts.hostname) if tls else plain
        self.connection = Connection()
        self.connection.container = container or f"peer-{next(_names)}"
        self.connection.hostname = parts.hostname
        if username is not None:
            self.connection.user = username
            self.connection.password = password
        if desired:
            self.connection.desired_capabilities = [symbol(d) for d in desired]
        self.transport = Transport()
        if max_frame_bytes:
            self.transport.max_frame_size = max_frame_bytes
        if idle_timeout_s:
            self.transport.idle_timeout = idle_timeout_s
        sasl = self.transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs(mechanisms)
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.detached: list[Any] = []  # links that the other side detached without closing them; no state tells
        self.transport.bind(self.connection)
        self._gone = ""  # how the connection ended
        if open:
            self.connection.open()
            try:
                self.pump(lambda: self.connection.state & proton.Endpoint.REMOTE_ACTIVE)
            except BaseException:
                self.socket.close()
                raise
            self.session = self.connection.session()
            self.session.open()

    # -- moving bytes

    def pump(self, done: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
        """Move bytes until ``done``; raises Ended when the connection ends first, TimeoutError when time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._write()
            self._note()
            if done():
                self._write()
                return
            if self.connection.state & proton.Endpoint.REMOTE_CLOSED and not self._locally_closed():
                condition = self.connection.remote_condition
                raise Ended(condition.name if condition else None, condition.description if condition else None)
            if self._gone:
                condition = self.transport.condition
                raise Ended(condition.name if condition else None, condition.description if condition else self._gone)
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the node did not do within {timeout_s} s what the test waits for")
            self._read(left)

    def pause(self, seconds: float = 0.05) -> None:
        """Move bytes for a while, for what should not happen or can only be waited for."""
        end = time.monotonic() + seconds
        self.pump(lambda: time.monotonic() >= end, seconds + 1)

    def _locally_closed(self) -> bool:
        return bool(self.connection.state & proton.Endpoint.LOCAL_CLOSED)

    def _write(self) -> None:
        self.transport.tick(time.monotonic())
        while (pending := self.transport.pending()) > 0:
            chunk = self.transport.peek(pending)
            try:
                self.socket.sendall(chunk)
            except OSError as fault:
                self.transport.close_head()
                if isinstance(fault, ConnectionError):
                    while not self._gone and self.transport.capacity():
                        self._read(0)  # what the node said before it closed
                self._gone = f"writing failed: {fault!r}; {self._gone}"
                return
            self.transport.pop(len(chunk))
        if pending < 0 and self.transport.capacity() < 0:
            self._gone = self._gone or "both sides closed the connection"

    def _read(self, wait_s: float) -> None:
        capacity = self.transport.capacity()
        if capacity <= 0:
            if capacity < 0:
                self._gone = self._gone or "the engine takes no more bytes"
            return
        pending = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if not pending and not select.select([self.socket], [], [], min(wait_s, 0.02))[0]:
            return
        try:
            received, end = self.socket.recv(capacity), "the node closed the socket"
        except OSError as fault:
            received, end = b"", f"reading failed: {fault!r}"
        if received:
            self.transport.push(received)
        else:
            self.transport.close_tail()
            self._note()
            self._gone = end

    def _note(self) -> None:
        while (event := self.collector.peek()) is not None:
            if event.type == Happened.LINK_REMOTE_DETACH:
                self.detached.append(event.link)
            self.collector.pop()

    # -- what a test does

    def receiver(self, address: str, **options: Any) -> Receiver:
        receiver = self.attach_receiver(address, **options)
        receiver.answered()
        return receiver

    def attach_receiver(
        self,
        address: str,
        *,
        filter: Any = None,
        properties: Mapping[Any, Any] | None = None,
        credit: int = 0,
        name: str | None = None,
        durability: int | None = None,
        expiry: int | None = None,
        timeout_s: int | None = None,
        presettled: bool = False,
    ) -> Receiver:
        """Send the attach, without waiting for the answer."""
        link = self.session.receiver(name or f"link-{next(_names)}")
        link.source.address = address
        if filter is not None:
            if isinstance(filter, Described):
                filter = [filter]
            if not isinstance(filter, Mapping):
                filter = {symbol(f"f{i}"): f for i, f in enumerate(filter)}
            link.source.filter.put_dict(filter)
        if durability is not None:
            link.source.durability = durability
        if expiry is not None:
            link.source.expiry_policy = expiry
        if timeout_s is not None:
            link.source.timeout = timeout_s
        if presettled:
            link.snd_settle_mode = Link.SND_SETTLED
        if properties:
            link.properties = dict(properties)
        link.open()
        if credit:
            link.flow(credit)
        self._write()
        return Receiver(self, link)

    def sender(self, address: str, **options: Any) -> Sender:
        sender = self.attach_sender(address, **options)
        sender.answered()
        return sender

    def attach_sender(
        self, address: str, *, properties: Mapping[Any, Any] | None = None, name: str | None = None
    ) -> Sender:
        link = self.session.sender(name or f"link-{next(_names)}")
        link.target.address = address
        if properties:
            link.properties = dict(properties)
        link.open()
        self._write()
        return Sender(self, link)

    def drop(self) -> None:
        """Cut the connection without a word."""
        self.socket.close()
        self._gone = "the test dropped the connection"

    def close(self) -> None:
        if not self._gone:
            self.connection.close()
            try:
                self.pump(lambda: self.connection.state & proton.Endpoint.REMOTE_CLOSED, 1.0)
            except (Ended, TimeoutError, OSError) as end:
                self._gone = repr(end)
        self.socket.close()
