"""Runs one AMQP connection: a socket, and the protocol engine that reads from it and writes to it.

::

    socket --recv_into--> [SASL, wire.amqp.sasl] --> wire.amqp.engine
    socket <----send----- [SASL, wire.amqp.sasl] <-- wire.amqp.engine

Nothing runs in the background: bytes move only within a call of ``turn`` or ``wait``.
"""

from __future__ import annotations

import contextlib
import select
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from spark_streams.client.amqp.errors import connection_fault, no_virtual_host, peer_fault
from spark_streams.client.amqp.peer import Peer
from spark_streams.client.amqp.sign_in import sign_in
from spark_streams.client.amqp.token_grants import TokenGrants
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import WOULD_BLOCK, lost, open_socket
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectionLost, DeadlineExceeded, RemoteProtocolError, SparkStreamsError
from spark_streams.wire.amqp.dialects import Dialect
from spark_streams.wire.amqp.engine.endpoints import Condition, Half
from spark_streams.wire.amqp.engine.engine import Engine, Options
from spark_streams.wire.amqp.engine.links import Session
from spark_streams.wire.amqp.event_streams import CAPABILITY

MAX_FRAME_BYTES: Final = 16_384
"""Largest frame that we accept. A session's window counts frames, so this times the window bounds its bytes."""

SESSION_BYTES: Final = 64 << 20
"""Bytes that a peer may have under way on one session; the window is this divided by the largest frame."""

_READ_BYTES: Final = 256 << 10
_LITTLE_BYTES: Final = 4 << 10
"""After a read of fewer bytes, the socket is most likely empty."""
_MUCH_BYTES: Final = 128 << 10
_MOMENT_S: Final = 0.001
_CLOSE_MS: Final = 1_000


class Connection:
    """An open AMQP connection to one endpoint, driven by the calling thread.

    Args:
        endpoint: the peer, with credentials and TLS.
        timeout_ms: how many milliseconds connecting, and each later answer of the peer, may take.
        connect_ms: a shorter limit, in milliseconds, for the network to connect; None for ``timeout_ms``.
        server_name: the name for TLS, SASL and open.hostname where it is not the endpoint's host (redirects).
        dialect: the dialect that the peer speaks; None to recognise it.

    Attributes:
        server_name: as given.
        peer: what the peer has shown of itself.
        dialect: its dialect (``Peer.dialect``).
        grants: the tokens that the peer has; None where it requires none.
        streams: the addresses of a RabbitMQ that are known to be streams' (``queue_types``).

    Raises:
        ConnectFailed: no connection, TLS failed, the peer speaks another protocol, or it has no such virtual host.
        AuthenticationFailed: the peer did not accept the credentials.
        DeadlineExceeded: the peer did not answer in time.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_ms: int,
        connect_ms: int | None = None,
        server_name: str | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.timeout_ms = timeout_ms
        self.server_name = server_name
        self._server_name = server_name or endpoint.host
        deadline = Deadline(timeout_ms)
        self._unwritten = memoryview(b"")
        self._much = False
        self.peer = Peer(endpoint.address, self._server_name, named=dialect, option=endpoint.option)
        self.dialect = self.peer.dialect
        self.broken = False
        self.grants: TokenGrants | None = None
        self.streams: set[str] = set()
        self._socket = _carrier(endpoint, Deadline(connect_ms or timeout_ms), server_name)
        try:
            signed_in = sign_in(self._socket, endpoint, self._server_name, deadline, dialect)
            self.peer = replace(self.peer, mechanisms=signed_in.mechanisms)
            self._open(signed_in.leftover, deadline)
            if signed_in.tokens is not None:
                self.grants = TokenGrants(self, signed_in.tokens)
        except BaseException:
            self.abandon()
            raise

    def _open(self, leftover: bytes, deadline: Deadline) -> None:
        vhost = self.endpoint.vhost
        hostname = self._server_name if vhost == "/" else f"vhost:{vhost}"
        container = f"spark-streams-{uuid.uuid4().hex}"
        options = Options(container, MAX_FRAME_BYTES, SESSION_BYTES, hostname, desired=(CAPABILITY,))
        engine = self._engine = Engine(options, _READ_BYTES)
        engine.open()
        if leftover:
            engine.room[: len(leftover)] = leftover
            self._push(len(leftover))
        try:
            self.wait(lambda: engine.connection.theirs is not Half.NEW, deadline, "no answer to open")
        except ConnectionLost as fault:
            raise no_virtual_host(self.endpoint) from fault
        offered, properties = engine.offered, engine.properties
        self.peer = replace(self.peer, offered=offered, properties=properties)
        self.dialect = self.peer.dialect
        self.peer.check_opened(vhost)

    def fault(self, condition: Condition | None, context: str) -> SparkStreamsError:
        """Return the error that a condition of the peer means, see ``errors.peer_fault``."""
        return peer_fault(condition, context, self.dialect.conditions)

    def turn(self, wait_s: float = 0.0) -> bool:
        """Write the pending bytes and read the received ones, once.

        Args:
            wait_s: how many seconds to wait when no bytes have come.

        Returns:
            Whether bytes came in.

        Raises:
            ConnectionLost: the connection broke. It is ``broken`` then, and of no further use.
            RemoteProtocolError: the peer sent bytes that are not AMQP; the connection is ``broken``.
            PeerError: the peer closed the connection with an error; the connection is ``broken``.
        """
        try:
            self._engine.tick(time.monotonic())
            if self.grants is not None:
                self.grants.serve()
            self._flush()
            count = self._read()
            if count is None:
                if not self._await(wait_s):
                    return False
                self._flush()
                count = self._read()
                if count is None:
                    return False
            if count == 0:
                raise self._ended("the peer closed the socket")
            self._push(count)
            if self.grants is not None:
                self.grants.serve()
            self._flush()
            return True
        except SparkStreamsError:
            self.abandon()
            raise
        except OSError as fault:
            self.abandon()
            raise lost(self.endpoint, fault) from fault

    def wait(self, done: Callable[[], bool], deadline: Deadline, what: str) -> None:
        """Turn until ``done()``.

        Raises:
            DeadlineExceeded: ``done()`` stayed false; the message begins with host and port, then ``what``.
            TransportError, PeerError, RemoteProtocolError: as for ``turn``.
        """
        while not done():
            self.turn(deadline.left_s(f"{self.endpoint.address}: {what}"))

    def grant(self, address: str) -> None:
        """Send the token for an address, where the peer requires one before the first link, and wait for its answer.

        Raises:
            AuthenticationFailed, OptionError, NotFound, TransportError: as for ``TokenGrants.grant``.
        """
        if self.grants is not None:
            self.grants.grant(address)

    def session(self) -> Session:
        """Return a new session with a window that bounds the bytes under way."""
        return self._engine.session()

    @property
    def full(self) -> bool:
        """Whether the peer takes no further session on this connection (``channel-max``)."""
        return self._engine.full

    def close(self) -> None:
        """Close with AMQP's close, and wait a second at most for the peer's answer."""
        if self.broken:
            return
        with contextlib.suppress(SparkStreamsError):
            self._engine.close()
            deadline = Deadline(min(self.timeout_ms, _CLOSE_MS))
            with contextlib.suppress(DeadlineExceeded):
                self.wait(lambda: self._engine.connection.ended, deadline, "no answer to close")
        self.abandon()

    def abandon(self) -> None:
        """Close the socket without AMQP's close; nothing more can be sent or received."""
        self.broken = True
        self._socket.close()

    def _flush(self) -> bool:
        """Write until nothing is pending; return whether the socket took no more."""
        try:
            while self._unwritten or (written := self._engine.written()):
                self._unwritten = self._unwritten or memoryview(written)
                self._unwritten = self._unwritten[self._socket.send(self._unwritten) :]
        except WOULD_BLOCK:
            return True
        return False

    def _read(self) -> int | None:
        """Read what has come, and return how many bytes; 0 at the end of the stream, None if nothing has come.

        Handling many frames takes little longer than one, so while a peer sends much, this waits a moment for more.
        """
        room, count, until = self._engine.room, 0, 0.0
        while count < len(room):
            try:
                got = self._socket.recv_into(room[count:])
            except WOULD_BLOCK:
                if not count:
                    return None
                if not self._much or count >= _MUCH_BYTES:
                    break
                until = until or time.monotonic() + _MOMENT_S
                if not self._poll(max(0.0, until - time.monotonic()), write=False):
                    break
            except OSError:
                if not count:
                    raise
                break  # the next read shows that the connection has ended
            else:
                count += got
                if not got or (got < _LITTLE_BYTES and not self._much):
                    break
        self._much = count >= _MUCH_BYTES
        return count

    def _push(self, count: int) -> None:
        try:
            self._engine.received_into(count)
        except RemoteProtocolError as fault:
            raise RemoteProtocolError(f"{self.endpoint.address}: {fault}") from fault
        connection = self._engine.connection
        if connection.ended and connection.ours is Half.OPEN:
            raise self._ended("the peer closed it")

    def _ended(self, reason: str) -> SparkStreamsError:
        """Return why the connection ended: by the peer's condition, else ``reason``."""
        if not self._engine.connection.ended:
            return lost(self.endpoint, reason)
        self._engine.close()  # a close answers a close (AMQP 1.0 part 2 §2.4.3)
        with contextlib.suppress(OSError):
            self._flush()
        return connection_fault(self._engine.connection.error, self.endpoint, self.dialect.conditions)

    def _await(self, wait_s: float) -> bool:
        """Wait until the socket is readable, or writable with bytes pending; return whether it is.

        Heartbeats go out meanwhile (AMQP 1.0 part 2 §2.4.5): the peer may take longer than its own idle time-out.

        Args:
            wait_s: how many seconds to wait at most.
        """
        end = time.monotonic() + wait_s
        while (left := end - (now := time.monotonic())) > 0:
            # The engine counts written bytes at a tick only, so each wait has a flush and then a tick before it; the
            # tick returns when the next one is due. Bytes written after a tick delay the next heartbeat by a whole
            # time-out.
            self._flush()
            due = self._engine.tick(now)
            blocked = self._flush()
            if self._poll(min(left, max(due - now, 0.0)) if due else left, write=blocked):
                return True
        return False

    def _poll(self, wait_s: float, *, write: bool) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if write else 0))
        # Round up: a wait of less than a millisecond must not become a busy loop.
        return bool(poll.poll(wait_s * 1000 + 0.999))


def _carrier(endpoint: Endpoint, deadline: Deadline, server_name: str | None) -> Any:
    if endpoint.transport == "tcp":
        return open_socket(endpoint, deadline, server_name)
    from spark_streams.client.amqp.web_socket import open_web_socket  # importing its library takes a tenth of a second

    return open_web_socket(endpoint, deadline, server_name)
