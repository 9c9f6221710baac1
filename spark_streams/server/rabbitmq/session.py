"""The interface of a connection for its commands: peer, permissions, answers, heartbeats, entries being stored.

Publishers, subscriptions and stream requests work on a ``Session``; ``connection.py`` implements it on a socket. Frames
that lie in several pieces are written without joining the pieces, because chunks are large: asyncio's transports join
them before Python 3.12; later ones do not, but those up to 3.12.8 and 3.13.1 then do not call ``pause_writing`` when
the peer does not read.

Spec: docs/specifications.md, S-14 (heartbeats), S-24 and S-106; Streams Protocol Reference, Heartbeat.
"""

from __future__ import annotations

import asyncio
import socket
from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from spark_streams.server.admission import Admission
from spark_streams.server.door import TcpConnection
from spark_streams.server.rabbitmq.node import RabbitNode
from spark_streams.server.rabbitmq.topology import Served
from spark_streams.server.turns import Timer
from spark_streams.server.users import permissions_of
from spark_streams.wire.rabbitmq.connection_commands import COMMANDS
from spark_streams.wire.rabbitmq.frames import ANSWER, Answer, Request, ResponseCode

SILENT_INTERVALS: Final = 2
"""A peer is dead after so many intervals without a byte from it."""

UNCONFIRMED_BYTES: Final = 16 << 20
"""The most bytes of entries that are being stored at a time; with more, no frames are handled."""
_RESUME_AT: Final = 0.75
GATHERED_BYTES: Final = 64 << 10
"""Answers are gathered up to so many bytes: the system's buffer has room for them, and more could wait too long."""
_ANSWERS: Final[dict[int, type[Any]]] = {kind.KEY: kind for kind in COMMANDS.values() if issubclass(kind, Answer)}
"""The key of each answer to its class."""


class CommandRefused(Exception):
    """A request is refused: its answer has this code, and nothing else.

    Args:
        code: the response code.
    """

    def __init__(self, code: ResponseCode) -> None:
        super().__init__(code)
        self.code = code


class HeartbeatTimer:
    """Notes when bytes were last sent and received; after ``start`` it sends heartbeats and notices a silent peer.

    Args:
        loop: the server's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received = self._sent = loop.time()
        self._timer = Timer(loop)

    def received(self) -> None:
        """Note that bytes came from the peer."""
        self._received = self._loop.time()

    def sent(self) -> None:
        """Note that bytes were sent to the peer."""
        self._sent = self._loop.time()

    def start(self, interval_s: int, send: Callable[[], None], silent: Callable[[], None]) -> None:
        """Begin to send heartbeats and to expect them.

        Args:
            interval_s: the interval that both sides agreed on, in seconds; 0 for no heartbeats.
            send: called when nothing was sent for half an interval.
            silent: called when no bytes came for two intervals, and again until bytes come or ``stop`` is called.
        """
        if not interval_s:
            return

        def beat() -> None:
            self._timer.start(interval_s / 2, beat)
            now = self._loop.time()
            if now - self._received > SILENT_INTERVALS * interval_s:
                silent()
            if now - self._sent >= interval_s / 2:
                send()

        self._timer.start(interval_s / 2, beat)

    def stop(self) -> None:
        """Stop sending and expecting heartbeats."""
        self._timer.stop()


class UnconfirmedEntries:
    """The entries of one connection that are being stored (S-106).

    Args:
        loop: the server's.
        most: the most entries that are being stored at a time; with more, no frames are handled.
        resume: called when frames may be handled again.

    Attributes:
        too_many: whether no more frames may be handled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, resume: Callable[[], None]) -> None:
        self.too_many = False
        self._loop = loop
        self._most = most
        self._resume = resume
        self._entries = 0
        self._bytes = 0
        self._stored: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Whether entries are being stored."""
        return self._entries > 0

    def add(self, entries: int, size: int) -> None:
        """Count entries that are being stored, and their bytes; with negative numbers once they are stored."""
        self._entries += entries
        self._bytes += size
        if not self._entries and self._stored is not None and not self._stored.done():
            self._stored.set_result(None)
        used = max(self._entries / self._most, self._bytes / UNCONFIRMED_BYTES)
        if self.too_many and used <= _RESUME_AT:
            self.too_many = False
            self._resume()
        elif not self.too_many and used > 1:
            self.too_many = True

    async def none_left(self) -> None:
        """Wait until all entries are stored; one caller at a time."""
        if self._entries:
            self._stored = self._loop.create_future()
            await self._stored


class Session(TcpConnection):
    """A connection, as its commands use it.

    Args:
        node: the node that the peer is connected to.
        admission: its place at the door.

    Attributes:
        client_versions: command key to the highest version that the peer accepts; empty until it reports them.
        congested: whether the peer does not read: deliver nothing until ``Subscriptions.deliver``.
        unconfirmed: the entries that are being stored.
    """

    node: RabbitNode

    def __init__(self, node: RabbitNode, admission: Admission) -> None:
        super().__init__(node, admission, node.config.max_outgoing_bytes)
        self.client_versions: dict[int, int] = {}
        self.congested = False
        self.unconfirmed = UnconfirmedEntries(node.loop, node.config.max_unconfirmed, self.proceed)
        self._scattered: ScatteredWriter | None = None
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._gathering = False
        self._heartbeat = HeartbeatTimer(node.loop)
        self._correlation = count()

    # --- who the peer is and what it may do

    def may(self, action: str, stream: str) -> bool:
        """Return whether the user may do ``action`` (``configure``, ``write`` or ``read``) to a stream."""
        permissions = permissions_of(self.node.config.permissions, self.user)
        return permissions is None or permissions.allow(action, stream)

    def may_anything(self, stream: str) -> bool:
        """Return whether the user may do anything to a stream; others do not learn whether the stream exists."""
        return any(self.may(action, stream) for action in ("configure", "write", "read"))

    def require(self, action: str, stream: str) -> None:
        """Check that the user may do ``action`` to a stream.

        Raises:
            CommandRefused: the user may not.
        """
        if not self.may(action, stream):
            raise CommandRefused(ResponseCode.ACCESS_REFUSED)

    def find(self, action: str, stream: str) -> Served:
        """Return the stream that a command names.

        Raises:
            CommandRefused: the user may not do ``action`` to it, or it does not exist.
        """
        self.require(action, stream)
        served = self.node.topology.find(stream)
        if served is None:
            raise CommandRefused(ResponseCode.STREAM_DOES_NOT_EXIST)
        return served

    def advertised(self) -> tuple[str, int]:
        """Return the host and port that clients should connect to: the configured ones, or those of this connection."""
        config = self.node.config
        came_to = self._transport.get_extra_info("sockname") if self._transport is not None else None
        host, port = came_to[:2] if isinstance(came_to, tuple) else (config.host, config.port)
        return config.advertised_host or str(host), config.advertised_port or int(port)

    # --- sending

    @property
    def outgoing_bytes(self) -> int:
        """How many bytes wait for the peer to read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, frames: bytes) -> None:
        """Send whole frames; they are dropped when the connection has ended.

        While the frames that came together are handled, their answers are gathered: a system call costs more than a
        small answer, and a peer may ask about a thousand streams at once.
        """
        if self._transport is None or not frames:
            return
        if not self._gathering:
            self._transport.write(frames)
        else:
            self._gathered.append(frames)
            self._gathered_bytes += len(frames)
            if self._gathered_bytes >= GATHERED_BYTES:
                self._send_gathered()
        self._heartbeat.sent()

    def send_all(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send whole frames that lie in several pieces."""
        self._send_gathered()
        if self._transport is not None and self._scattered is not None:
            self._scattered.write(pieces)
            self._heartbeat.sent()

    def _send_gathered(self) -> None:
        """Send what was gathered; call it before anything else is written to the transport, or closes it."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered and self._transport is not None:
            self._transport.write(b"".join(gathered))

    def answer(self, request: Request, code: int = ResponseCode.OK, **fields: Any) -> None:
        """Answer a request.

        Args:
            request: the request.
            code: the answer's response code.
            fields: the answer's own fields.
        """
        answer: Answer = _ANSWERS[request.KEY | ANSWER](request.correlation_id, code, **fields)
        self.send(answer.encode())

    def correlation(self) -> int:
        """Return the correlation id of the next request to the peer, from 0 on."""
        return next(self._correlation) % 2**32

    # --- the frames that come

    @abstractmethod
    def proceed(self) -> None:
        """Handle the frames that have come, as far as that is allowed now."""

    @abstractmethod
    def fail(self, code: int, reason: str) -> None:
        """End the connection: Close with a code and a reason, and the socket once the peer has answered."""


MOST_PIECES: Final = 512
"""The most pieces of one system call, which accepts at least 1,024."""


class ScatteredWriter:
    """Writes to the socket of a transport while the transport has nothing to write itself, else to the transport.

    Args:
        transport: the transport of a stream socket, with TLS or without.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        secret = transport.get_extra_info("sslcontext") is not None
        self._socket: socket.socket | None = None if secret else transport.get_extra_info("socket").dup()

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write pieces after earlier writes; the transport keeps those that the socket does not accept at once."""
        if self._socket is None:
            self._transport.writelines(pieces)
            return
        for piece in self._past_transport(self._socket, list(pieces)):
            self._transport.write(piece)

    def _past_transport(self, own: socket.socket, pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Write to the socket itself; return the pieces that it did not accept."""
        at = 0
        while at < len(pieces):
            if self._transport.get_write_buffer_size() or self._transport.is_closing():
                break
            try:
                sent = own.sendmsg(pieces[at : at + MOST_PIECES])
            except OSError:
                break  # it is full; or it is broken, which the transport notices and handles by itself
            while at < len(pieces) and sent >= len(pieces[at]):
                sent -= len(pieces[at])
                at += 1
            if sent:
                pieces[at] = memoryview(pieces[at])[sent:]
        return pieces[at:]

    def close(self) -> None:
        """Close the writer's own descriptor of the socket, because the transport has ended."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
