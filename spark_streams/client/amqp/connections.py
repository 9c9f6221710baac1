"""Keeps the connections of one client, and runs operations on them: on any host of the url, and where redirects lead.

A connection takes a limited number of sessions, one for each link; when it is full, another one is opened beside it.

Spec: AMQP 1.0 part 2 §2.7.1 (channel-max), §2.8.18 (redirect); Event Stream Extensions §4.1 (ES-101).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.errors import LinkRedirected
from spark_streams.client.hosts import Hosts
from spark_streams.client.kept_connections import KeptConnections
from spark_streams.client.retry import DEFAULT_BACKOFF, Backoff, retrying
from spark_streams.endpoint import Endpoint
from spark_streams.errors import DeadlineExceeded, LocalProtocolError, Refused
from spark_streams.wire.amqp.dialects import Dialect

_T = TypeVar("_T")

MAX_REDIRECTS: Final = 5
"""Redirects that are followed for one link; more mean that containers redirect to each other."""


class Reached(NamedTuple):
    """Where an operation runs: an open connection, and the address that a redirect named; None without a redirect."""

    connection: Connection
    at: str | None = None


Operation = Callable[[Reached], _T]


class Connections:
    """The connections of one client; the first operation opens one.

    Args:
        endpoint: the container, with credentials and TLS; any one of several hosts will do.
        timeout_ms: how many milliseconds the peer may be silent whenever it owes an answer.
        dialect: the dialect that the peer speaks; None to recognise it.
        kept: the connections of tasks that are over; None if there is none.
        backoff: how many times to try while the peer was never reached.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeout_ms: int,
        dialect: Dialect | None,
        kept: KeptConnections[Connection] | None,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self._backoff = backoff
        self._endpoint = endpoint
        self._timeout_ms = timeout_ms
        self._dialect = dialect
        self._kept = kept or KeptConnections(0)
        self._key = self._kept.key(endpoint, timeout_ms, dialect)
        self._hosts = Hosts(endpoint, timeout_ms)
        self._open: list[Connection] = []
        self._closed = False

    def close(self) -> None:
        """Close all with AMQP's close; never raise."""
        self._closed = True
        for connection in self._open:
            connection.close()
        self._open.clear()

    def leave(self) -> None:
        """Keep one connection that no redirect led to, whose links are all closed, for a later client; close the rest.

        Where connections are not kept, this is ``close``.
        """
        own = next((each for each in self._open if each.server_name is None and not each.broken), None)
        if own is not None:
            self._open.remove(own)
            own.streams.clear()  # a queue may be deleted and created again as one of another type
            self._kept.give_back(self._key, own)
        self.close()

    def turn(self) -> None:
        """Serve all connections once, without waiting.

        Raises:
            TransportError, PeerError, RemoteProtocolError: a connection broke; it is of no further use.
        """
        for connection in self._open:
            if not connection.broken:
                connection.turn()

    def retrying(self, operation: Operation[_T]) -> _T:
        """Run an operation, as ``run``, and retry it while its errors are retriable."""
        return retrying(lambda: self.run(operation), self._backoff, was_reached=lambda: bool(self._open))

    def run(self, operation: Operation[_T]) -> _T:
        """Run an operation on a connection, and follow redirects.

        Raises:
            Refused: there were too many redirects.
            SparkStreamsError: the operation's own error, or no connection.
        """
        connect: Callable[[], Connection] = self._any
        address: str | None = None
        for _ in range(MAX_REDIRECTS + 1):
            connection = connect()
            try:
                return operation(Reached(connection, address))
            except LinkRedirected as redirect:
                # Scheme, credentials and TLS stay: a redirect may move a link, but not make it less safe.
                endpoint = self._endpoint.at((redirect.network_host, redirect.port))
                connect = partial(self._connection, endpoint, redirect.hostname)
                address = redirect.address or address
            except DeadlineExceeded:
                connection.abandon()  # no other link may receive what the peer still sends
                raise
        raise Refused(
            "amqp:link:redirect",
            f"{MAX_REDIRECTS} redirects were followed, the last to {endpoint.address}",
            "attach" if address is None else f"attach to '{address}'",
        )

    def _any(self) -> Connection:
        """Return a connection to any host of the url: an open one with room for a link, if there is one."""
        for host in self._endpoint.hosts:
            connection = self._with_room(host, None)
            if connection is not None:
                return connection
        kept = None if self._closed else self._kept.take(self._key)
        if kept is not None:
            self._open.append(kept)
            return kept
        return self._hosts.connect(lambda host, connect_ms: self._connection(host, None, connect_ms))

    def _with_room(self, endpoint: Endpoint, server_name: str | None) -> Connection | None:
        place = endpoint.host, endpoint.port, server_name
        for each in self._open:
            there = each.endpoint.host, each.endpoint.port, each.server_name
            if there == place and not (each.broken or each.full):
                return each
        return None

    def _connection(self, endpoint: Endpoint, server_name: str | None, connect_ms: int | None = None) -> Connection:
        if self._closed:
            raise LocalProtocolError(f"the client of {self._endpoint.address} is closed")
        connection = self._with_room(endpoint, server_name)
        if connection is None:
            connection = Connection(
                endpoint,
                timeout_ms=self._timeout_ms,
                connect_ms=connect_ms,
                server_name=server_name,
                dialect=self._dialect,
            )
            self._open = [*(each for each in self._open if not each.broken), connection]
        return connection
