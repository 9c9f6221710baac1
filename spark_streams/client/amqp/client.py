"""Reads and publishes AMQP event streams: blocking, one client object a task, without Spark.

The client opens a connection when it first needs it, and keeps it. When the peer redirects a link, the client attaches
it at the named container (ES-101).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa

from spark_streams import filters
from spark_streams.client.amqp import info
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.errors import LinkRedirected
from spark_streams.client.amqp.links import Binding, Link, StartRefused, attach_sender
from spark_streams.client.amqp.offset_filters import start_filters, start_filters_at_time
from spark_streams.client.amqp.offset_walk import AmqpOffsetWalk, first_offset
from spark_streams.client.amqp.publisher import Publisher
from spark_streams.client.amqp.pushdown import is_about_filters
from spark_streams.client.amqp.range_reader import RangeReader
from spark_streams.client.amqp.receivers import Receivers
from spark_streams.client.hosts import Hosts
from spark_streams.client.kept_connections import KeptConnections, kept_key
from spark_streams.client.log_client import Bounds, Pushdown, RangeRead, StreamDescription
from spark_streams.client.retry import retrying
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import DeadlineExceeded, LocalProtocolError, Refused
from spark_streams.filters.tree import Expression
from spark_streams.position import EARLIEST, After, At, Earliest, Position

_T = TypeVar("_T")

_SEARCHED_ROWS: Final = 4_096
"""Events of one batch of a search, for peers that do not find the first match themselves."""
MAX_REDIRECTS: Final = 5
"""Redirects that are followed for one link; more mean that containers redirect to each other."""


class AmqpClient(contextlib.AbstractContextManager["AmqpClient"]):
    """A client of one AMQP container with event logs, for one thread at a time.

    Args:
        endpoint: the container, with credentials and TLS; the client connects to any one of several hosts.
        timeout_ms: how many milliseconds the peer may be silent whenever it owes an answer.
        require_event_streams: whether reading from a peer that does not offer the capability
            ``AMQP_EVENT_STREAMS_V1_0`` is an error (ES-012). Plain sending needs no capability.
        consumer_group: the group that the links of ``fetch`` join; None for none.
        epoch: the epoch with which these links claim a partition within the group; None for none.
        kept: the connections of tasks that are over: one of them is used, and may go back there (``leave``); None for
            none.
    """

    numeric_offsets = False
    """Offsets are opaque (ES-301)."""
    advertised: tuple[Node, ...] = ()
    """AMQP containers name no others, except in a redirect of a link."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_ms: int = 30_000,
        require_event_streams: bool = True,
        consumer_group: str | None = None,
        epoch: int | None = None,
        kept: KeptConnections[Connection] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._kept = kept
        self._hosts = Hosts(endpoint, timeout_ms)
        self._timeout_ms = timeout_ms
        self._key = None if kept is None else kept_key(endpoint, timeout_ms)
        self._membership = consumer_group, epoch
        self._receivers = Receivers(require_event_streams)
        self._connections: dict[tuple[str, int, str | None], Connection] = {}
        self._closed = False

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections with AMQP's close; never raise. Reads that are still open end with errors."""
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def leave(self) -> None:
        """Leave the connection without a redirect, whose links are all closed, to a later client; ``close`` the rest.

        Without connections that are kept, it is ``close``.
        """
        own = [at for at, each in self._connections.items() if at[2] is None and not each.broken]
        if own and self._kept is not None:
            self._kept.give_back(self._key, self._connections.pop(own[0]))
        self.close()

    def turn(self) -> None:
        """Serve all connections once, without waiting, so that heartbeats go out while the caller is busy elsewhere.

        Raises:
            TransportError, PeerError, RemoteProtocolError: a connection broke; it is of no further use.
        """
        for connection in self._connections.values():
            if not connection.broken:
                connection.turn()

    def describe(self, stream: str, *, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions of a stream and what they retain, as the peer reports it now; all are ``certain``.

        Raises:
            NotFound: the peer has no such stream.
            ConnectFailed, AuthenticationFailed: no connection, or the peer does not accept the credentials.
            DeadlineExceeded, RemoteProtocolError: the peer does not answer in time, or breaks the protocol.
        """
        return self._retrying(info.info_address(stream), partial(info.describe, stream=stream))

    def capabilities(self) -> dict[str, str | list[str]]:
        """Return the peer's properties, and ``capabilities``: those that it offers.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._retrying(
            "", lambda connection, _: {**connection.properties, "capabilities": list(connection.offered)}
        )

    def streams(self) -> list[str] | None:
        """Return the names of the streams that we may read; None for a peer that does not list them.

        AMQP has no request for it: only the log of this project answers.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._retrying(info.STREAMS, info.list_streams)

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return how many retained events there are after each position (from it on, for ``At``).

        The count is None where the peer does not report it, or where the position is a time or an expression.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._retrying(info.info_address(stream), partial(info.remaining, stream=stream, positions=positions))

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        """Return the offset of the first event, in log order, whose timestamp is not earlier than ``timestamp_ms``.

        Returns:
            None when there is no such event now. It is the peer's answer, never a guess from its silence.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """

        def ask(connection: Connection, address: str) -> str | None:
            starts = start_filters_at_time(timestamp_ms)
            link = self._receivers.attach(connection, address, Binding(stream, partition), starts)
            return first_offset(link)

        try:
            return self._retrying(stream, ask)
        except (StartRefused, Refused) as fault:
            if timestamp_ms >= 0 or (isinstance(fault, Refused) and not is_about_filters(fault)):
                raise
            # The peer has SQL only, which has no instant before 1970; nearly always its first event is later.
            return self.first_matching(stream, partition, filters.read_filter(f"publish_time >= {timestamp_ms}"))

    def first_matching(self, stream: str, partition: str, expression: Expression) -> str | None:
        """Return the offset of the first event, in log order, that an expression is true of.

        Returns:
            None when there is no such event now. It is the peer's answer, never a guess from its silence.

        Raises:
            FilterError: the expression refers to something that events of AMQP cannot have.
            NotFound, Refused, RemoteProtocolError, TransportError: as for ``fetch``.
        """
        bounds = self.describe(stream).partitions.get(partition)
        if bounds is None or bounds.latest is None:
            return None
        read = RangeRead(
            stream, partition, EARLIEST, bounds.latest, ("offset",), fail_on_data_loss=False, filter=expression
        )
        reader = self._reader(read, Binding(stream, partition), _SEARCHED_ROWS, 8 << 20)
        with contextlib.closing(reader.batches()) as batches:
            for batch in batches:
                return str(batch.column("offset")[0].as_py())
        return None

    def pushdown(self, stream: str, expression: Expression) -> Pushdown:
        """Return the part of a filter that the peer accepts, by its echo, and the part that ``fetch`` would check.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        partitions = self.describe(stream).partitions

        def ask(connection: Connection, address: str) -> Pushdown:
            pushed = self._receivers.push(connection, expression)
            if pushed.filters and partitions:
                binding, starts = Binding(stream, next(iter(partitions))), start_filters(EARLIEST)
                link = self._receivers.attach(connection, address, binding, starts, pushed)
                link.close()
                if not pushed.in_force(link.taken):
                    return Pushdown(None, expression)
            return Pushdown(pushed.words, pushed.residual)

        return self._retrying(stream, ask)

    def log_identity(self, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return our log's text for the event at each offset, which differs for another event at that offset.

        An older copy of the log has the same incarnation in ``describe``, and once it grows, the same offsets too.
        Other peers have no such text.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._retrying(info.info_address(stream), partial(info.log_identity, stream=stream, offsets=offsets))

    def offsets(self, stream: str, partition: str, start: Position, end: str | None) -> AmqpOffsetWalk:
        """Return a walk over the offsets from ``start`` to ``end`` (inclusive; None for no end)."""
        binding = Binding(stream, partition)

        def attach(at: Earliest | At | After, behind: Earliest | After) -> Link:
            return self._run(stream, lambda c, a: self._receivers.attach(c, a, binding, start_filters(at, behind)))

        return AmqpOffsetWalk(attach, _startable(start), end)

    def fetch(self, read: RangeRead, *, max_rows: int = 65_536, max_bytes: int = 8 << 20) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in log order, none twice; memory stays bounded whatever the range's size.

        Args:
            read: the range and its columns.
            max_rows: rows of a batch at most.
            max_bytes: a batch takes no further message once it has this many encoded bytes.

        Returns:
            Batches that are not empty, with the columns of ``read.columns`` in that order, typed as in ``rows``; they
            have the events that ``read.filter`` is true of. The peer checks what it can of it; the client checks the
            rest.

        Raises:
            FilterError: the filter refers to something that events of AMQP cannot have.
            PositionLost: events of the range are gone (only with ``read.fail_on_data_loss``).
            OwnershipLost: a consumer with a higher epoch took the partition.
            NotFound, Refused: there is no such stream, or the peer refused the link.
            RemoteProtocolError: the peer broke a rule.
            ConnectionLost, DeadlineExceeded: the connection broke too often, or the peer was silent for too long.
        """
        binding = Binding(read.stream, read.partition, *self._membership)
        return self._reader(read, binding, max_rows, max_bytes).batches()

    def _reader(self, read: RangeRead, binding: Binding, max_rows: int, max_bytes: int) -> RangeReader:
        def attach(at: Earliest | At | After, behind: Earliest | After) -> Link:
            def receiver(connection: Connection, address: str) -> Link:
                pushed = self._receivers.push(connection, read.filter, read)
                return self._receivers.attach(connection, address, binding, start_filters(at, behind), pushed)

            return self._run(read.stream, receiver)

        def describe() -> Bounds | None:
            return self.describe(read.stream).partitions.get(read.partition)

        def has_event(offset: str) -> bool:
            with contextlib.closing(self.offsets(read.stream, read.partition, At(offset), offset)) as walk:
                return walk.take(1) == [offset]

        _startable(read.start)
        return RangeReader(read, attach, describe, has_event, max_rows=max_rows, max_bytes=max_bytes)

    def publisher(self, stream: str, *, partition: str | None = None, timeout_ms: int | None = None) -> Publisher:
        """Return an at-least-once sender.

        Args:
            stream: the stream to send to.
            partition: the partition to bind the link to; None leaves the choice to each message and the peer.
            timeout_ms: how many milliseconds the peer may give neither credit nor an outcome; the client's when None.

        Raises:
            NotFound, Refused: there is no such stream, or the peer refused the link.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """

        def attach(connection: Connection, address: str) -> Link:
            if partition is not None:
                self._receivers.check_capability(connection)
            return attach_sender(connection, address, Binding(stream, partition))

        link = self._retrying(stream, attach)
        return Publisher(link, stream, self._timeout_ms if timeout_ms is None else timeout_ms)

    # --- connections and redirects

    def _retrying(self, address: str, operation: Callable[[Connection, str], _T]) -> _T:
        """Run an operation, as ``_run``, and retry it while its errors are retriable."""
        return retrying(lambda: self._run(address, operation), was_reached=lambda: bool(self._connections))

    def _run(self, address: str, operation: Callable[[Connection, str], _T]) -> _T:
        """Run an operation on the connection to the container of ``address``, and follow redirects."""
        connect: Callable[[], Connection] = self._any
        for _ in range(MAX_REDIRECTS + 1):
            connection = connect()
            try:
                return operation(connection, address)
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
            f"attach to '{address}'",
        )

    def _any(self) -> Connection:
        """Return a connection to any host of the url: an open one, if there is one."""
        for host in self._endpoint.hosts:
            connection = self._connections.get((host.host, host.port, None))
            if connection is not None and not connection.broken:
                return connection
        connection = None if self._kept is None or self._closed else self._kept.take(self._key)
        if connection is not None:
            self._connections[connection.endpoint.host, connection.endpoint.port, None] = connection
            return connection
        return self._hosts.connect(lambda host, connect_ms: self._connection(host, None, connect_ms))

    def _connection(self, endpoint: Endpoint, server_name: str | None, connect_ms: int | None = None) -> Connection:
        if self._closed:
            raise LocalProtocolError(f"the client of {self._endpoint.address} is closed")
        key = (endpoint.host, endpoint.port, server_name)
        connection = self._connections.get(key)
        if connection is None or connection.broken:
            connection = Connection(
                endpoint, timeout_ms=self._timeout_ms, connect_ms=connect_ms, server_name=server_name
            )
            self._connections[key] = connection
        return connection


def _startable(start: Position) -> Earliest | At | After:
    if isinstance(start, (Earliest, At, After)):
        return start
    raise LocalProtocolError(f"a read cannot start {start}: expected earliest, at an offset or after one")
