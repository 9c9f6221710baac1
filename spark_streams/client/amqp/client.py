"""Reads and publishes AMQP event streams: blocking, one client object per task, without Spark.

The client opens a connection when it first needs it, and keeps it. When the peer redirects a link, the client attaches
it at the named container (ES-101).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

import pyarrow as pa

from spark_streams import filters
from spark_streams.client.amqp.connection import Connection
from spark_streams.client.amqp.connections import Connections, Reached
from spark_streams.client.amqp.dialects import Inquiries
from spark_streams.client.amqp.dialects.event_hubs import EventHubsInquiries
from spark_streams.client.amqp.dialects.event_streams import EventStreamsInquiries
from spark_streams.client.amqp.dialects.rabbitmq import RabbitInquiries, of_each_partition
from spark_streams.client.amqp.links import Binding, Link, StartRefused, attach_sender
from spark_streams.client.amqp.management import change_stream
from spark_streams.client.amqp.offset_walk import AmqpOffsetWalk
from spark_streams.client.amqp.publisher import Publisher
from spark_streams.client.amqp.pushdown import PushedFilter, is_about_filters, nothing_pushed
from spark_streams.client.amqp.range_reader import RangeReader
from spark_streams.client.amqp.receivers import Receivers
from spark_streams.client.kept_connections import KeptConnections
from spark_streams.client.log_client import Pushdown, RangeRead, StreamDescription
from spark_streams.client.retry import DEFAULT_BACKOFF, Backoff
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import LocalProtocolError, Refused
from spark_streams.filters.tree import Expression
from spark_streams.position import EARLIEST, After, At, Earliest, Position
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.dialects import EVENT_HUBS, EVENT_STREAMS, RABBITMQ, Dialect
from spark_streams.wire.amqp.management import CREATE, DELETE, PARTITIONS

_T = TypeVar("_T")

_SEARCHED_ROWS: Final = 4_096
"""Events of one batch of a search, for peers that do not find the first match themselves."""


class AmqpClient(contextlib.AbstractContextManager["AmqpClient"]):
    """A client of one AMQP container with event logs, for one thread at a time.

    Args:
        endpoint: the container, with credentials and TLS; the client connects to any one of several hosts.
        timeout_ms: how many milliseconds the peer may be silent whenever it owes an answer.
        dialect: the peer's dialect; None to recognise it, and then reading from a peer that shows none is an error
            (ES-012).
        consumer_group: the group that the links of ``fetch`` join; None if there is none.
        epoch: the epoch with which these links claim a partition within the group; None if there is none.
        rabbitmq: how to query RabbitMQ: whether names are super streams (None: either), and where filter values are.
        kept: the connections of finished tasks: the client uses one, and may give it back (``leave``); None for none.
        backoff: how many times to try while the peer was never reached.
    """

    advertised: tuple[Node, ...] = ()
    """Empty: AMQP containers name no other nodes, except in a redirect of a link."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_ms: int = 30_000,
        dialect: Dialect | None = None,
        consumer_group: str | None = None,
        epoch: int | None = None,
        rabbitmq: RabbitInquiries | None = None,
        kept: KeptConnections[Connection] | None = None,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        self._timeout_ms = timeout_ms
        self._dialect = dialect
        self._connections = Connections(endpoint, timeout_ms, dialect, kept, backoff)
        self._address = endpoint.address
        self._membership = consumer_group, epoch
        self._receivers = Receivers()
        self._by_dialect: dict[str, Inquiries] = {
            EVENT_STREAMS.name: EventStreamsInquiries(),
            RABBITMQ.name: rabbitmq or RabbitInquiries(super_stream=None),
            EVENT_HUBS.name: EventHubsInquiries(consumer_group),
        }

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections with AMQP's close; never raise. Reads that are still open end with errors."""
        self._connections.close()

    def leave(self) -> None:
        """Leave one connection, whose links are all closed, to a later client; see ``Connections.leave``."""
        self._connections.leave()

    def turn(self) -> None:
        """Serve all connections once, without waiting, so that heartbeats go out while the caller is busy elsewhere.

        Raises:
            TransportError, PeerError, RemoteProtocolError: a connection broke; it is of no further use.
        """
        self._connections.turn()

    @property
    def dialect(self) -> Dialect:
        """The peer's dialect; the client connects to recognise it.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        if self._dialect is None:
            self._dialect = self._connections.retrying(lambda to: to.connection.dialect)
        return self._dialect

    @property
    def numeric_offsets(self) -> bool:
        """Whether offsets are numbers in the peer's dialect; those of event streams are opaque (ES-301)."""
        return self.dialect.numeric_offsets

    def describe(self, stream: str, *, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions of a stream and what they retain, as the peer reports it now.

        ``certain`` has no effect: the bounds of all partitions are certain.

        Raises:
            NotFound: the peer has no such stream.
            ConnectFailed, AuthenticationFailed: no connection, or the peer does not accept the credentials.
            DeadlineExceeded, RemoteProtocolError: the peer does not answer in time, or breaks the protocol.
        """
        return self._connections.retrying(lambda to: self._inquiries(to).describe(to, stream))

    def capabilities(self) -> dict[str, str | list[str]]:
        """Return the peer's properties, with the capabilities that it offers under the key ``capabilities``.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._connections.retrying(lambda to: _shown(to.connection))

    def streams(self) -> list[str] | None:
        """Return the names of the streams that we may read; None for a peer that does not list them.

        AMQP has no request for it: only the log of this project answers.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._connections.retrying(lambda to: self._inquiries(to).list_streams(to.connection))

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return how many retained events there are after each position; for ``At``, the event there counts too.

        The count is None where the peer does not report it, or where the position is a time or an expression.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._connections.retrying(lambda to: self._inquiries(to).remaining(to, stream, positions))

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        """Return the offset of the first event, in log order, whose timestamp is not earlier than ``timestamp_ms``.

        Returns:
            None when there is no such event now. It is the peer's answer, never a guess from its silence.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """

        def ask(to: Reached) -> str | None:
            inquiries, binding = self._inquiries(to), Binding(stream, partition)
            return inquiries.first_at_time(to.connection, binding, timestamp_ms, partial(self._receivers.attach, to))

        try:
            return self._connections.retrying(ask)
        except (StartRefused, Refused) as fault:
            if timestamp_ms >= 0 or (isinstance(fault, Refused) and not is_about_filters(fault)):
                raise
            # The peer filters only with SQL, which has no instant before 1970. Nearly always the first event is later.
            return self.first_matching(stream, partition, filters.read_filter(f"publish_time >= {timestamp_ms}"))

    def first_matching(self, stream: str, partition: str, expression: Expression) -> str | None:
        """Return the offset of the first event, in log order, for which an expression is true.

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
        """Return the part of a filter that the peer accepts, as its echo shows, and the part that ``fetch`` checks.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        partitions = self.describe(stream).partitions

        def ask(to: Reached) -> Pushdown:
            pushed = self._push(to, expression)
            if pushed.filters and partitions:
                binding, starts = Binding(stream, next(iter(partitions))), to.connection.dialect.starts(EARLIEST)
                link = self._receivers.attach(to, binding, starts, pushed)
                link.close()
                if not pushed.in_force(link.taken):
                    return Pushdown(None, expression)
            return Pushdown(pushed.words, pushed.residual)

        return self._connections.retrying(ask)

    def _inquiries(self, to: Reached) -> Inquiries:
        to.connection.peer.check_dialect()
        return self._by_dialect[to.connection.dialect.name]

    def _push(self, to: Reached, expression: Expression | None, read: RangeRead | None = None) -> PushedFilter:
        """Split a filter for the peer; push nothing of a filter that it has refused."""
        if expression in self._receivers.refused:
            return nothing_pushed(expression)
        return self._inquiries(to).push(expression, to.connection, read)

    def log_identity(self, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return, for each offset, a text that identifies the event there: another event there has another text.

        This recognises an older copy of a log, which may have the same incarnation and, once it has grown, the same
        offsets. The result is empty for most peers.

        Raises:
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._connections.retrying(lambda to: self._inquiries(to).log_identity(to, stream, offsets))

    def offsets(self, stream: str, partition: str, start: Position, end: str | None) -> AmqpOffsetWalk:
        """Return a walk over the offsets from ``start`` to ``end`` (inclusive; None for no end)."""
        binding = Binding(stream, partition)

        def attach(at: Earliest | At | After, behind: Earliest | After) -> Link:
            return self._connections.run(
                lambda to: self._receivers.attach(to, binding, to.connection.dialect.starts(at, behind))
            )

        return AmqpOffsetWalk(attach, _startable(start), end)

    def fetch(self, read: RangeRead, *, max_rows: int = 65_536, max_bytes: int = 8 << 20) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in log order, none twice; memory stays bounded whatever the range's size.

        Args:
            read: the range and its columns.
            max_rows: rows of a batch at most.
            max_bytes: a batch takes no further message once it has this many encoded bytes.

        Returns:
            Batches that are not empty, with the columns of ``read.columns`` in that order, typed as in ``rows``; they
            have the events for which ``read.filter`` is true. The peer checks what it can of the filter, the client
            the rest.

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
        def attach(at: Earliest | At | After, behind: Earliest | After, whole: bool) -> Link:
            def receiver(to: Reached) -> Link:
                pushed = nothing_pushed(read.filter) if whole else self._push(to, read.filter, read)
                starts = to.connection.dialect.starts(at, behind)
                return self._receivers.attach(to, binding, starts, pushed, reads=True)

            return self._connections.run(receiver)

        def has_event(offset: str) -> bool:
            with contextlib.closing(self.offsets(read.stream, read.partition, At(offset), offset)) as walk:
                return walk.take(1) == [offset]

        _startable(read.start)
        describe = partial(self.describe, read.stream)
        return RangeReader(read, attach, describe, self._address, has_event, max_rows=max_rows, max_bytes=max_bytes)

    def encode(self, columns: Mapping[str, pa.Array], *, for_partition: bool = False) -> pa.LargeBinaryArray:
        """Encode one message for each row, in the layout of the peer's dialect; see ``encode_columns``.

        Args:
            columns: as for ``encode_columns``.
            for_partition: whether the link is bound to a partition; in a dialect that names the partition in the
                address, the key then goes into property group-id.
        """
        dialect = self.dialect
        if for_partition and dialect.partition_in_address:
            return encode_columns(columns, replace(dialect.places, key=None))
        return encode_columns(columns, dialect.places)

    def writable_partitions(self, super_stream: str) -> tuple[str, ...]:
        """Return the names of the partitions of a RabbitMQ super stream; this needs no permission to read.

        Raises:
            NotFound: there is no queue of the first partition's name.
            Refused: the user may not write there.
        """
        return tuple(of_each_partition(super_stream, lambda name: self.publisher(name).close()))

    def create(self, stream: str, partitions: int | None, settings: Mapping[str, str | int]) -> bool:
        """Have our log create a stream of one or more partitions, with its settings; see ``Management.change``.

        Return False if the stream exists already.
        """
        given = {PARTITIONS: partitions, **settings}
        return change_stream(self._connected(), CREATE, stream, given) == HTTPStatus.CREATED

    def delete(self, stream: str) -> None:
        """Have our log delete a stream with all its events; see ``Management.change``."""
        change_stream(self._connected(), DELETE, stream, None)

    def _connected(self) -> Connection:
        """Return an open connection for a request that is sent once, as only its first answer shows what it did."""
        return self._connections.retrying(lambda to: to.connection)

    def settings(self, stream: str) -> dict[str, Any]:
        """Return the settings of a stream, by the names that its peer has for them.

        Raises:
            Refused: the peer does not tell them; the text says who does.
            NotFound, ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return self._connections.retrying(lambda to: self._inquiries(to).settings(to.connection, stream))

    def publisher(self, stream: str, *, partition: str | None = None, exchange: str | None = None) -> Publisher:
        """Return an at-least-once sender.

        Args:
            stream: the stream to send to.
            partition: the partition to bind the link to; None leaves the choice to each message and the peer.
            exchange: the address of a RabbitMQ exchange to send to instead of the stream; empty where each message has
                its address in property ``to``; None to send to the stream.

        Raises:
            NotFound, Refused: there is no such stream, or the peer refused the link.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """

        def attach(to: Reached) -> Link:
            connection = to.connection
            if partition is not None:
                connection.peer.check_dialect()
            address = to.at or connection.dialect.target_address(stream, partition)
            if exchange is not None:
                address = exchange
            return attach_sender(connection, address, Binding(stream, partition))

        link = self._connections.retrying(attach)
        return Publisher(link, stream, self._timeout_ms, lambda: self._connections.run(attach))


def _shown(connection: Connection) -> dict[str, str | list[str]]:
    peer = connection.peer
    dialect = "none that is known" if peer.recognised is None else peer.recognised.name
    return {**peer.properties, "capabilities": list(peer.offered), "dialect": dialect}


def _startable(start: Position) -> Earliest | At | After:
    if isinstance(start, (Earliest, At, After)):
        return start
    raise LocalProtocolError(f"a read cannot start {start}: expected earliest, at an offset or after one")
