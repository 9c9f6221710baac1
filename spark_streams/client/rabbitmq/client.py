"""Reads RabbitMQ streams: blocking, one client object per task, without Spark.

The client opens a connection when it first needs it, and keeps it. It reads a stream on a node that has a member of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Final, cast

import pyarrow as pa

from spark_streams.client.log_client import Bounds, Pushdown, RangeRead, StreamDescription
from spark_streams.client.rabbitmq import bounds
from spark_streams.client.rabbitmq.cluster import Cluster
from spark_streams.client.rabbitmq.errors import present, refusal
from spark_streams.client.rabbitmq.pushdown import FilterValues, push, split_for
from spark_streams.client.rabbitmq.range_reader import RangeReader
from spark_streams.client.rabbitmq.routing import partitions_of
from spark_streams.client.rabbitmq.stream_changes import create_stream, delete_stream
from spark_streams.client.rabbitmq.subscription import Consumer, properties_of
from spark_streams.endpoint import Endpoint, Node
from spark_streams.errors import LocalProtocolError, NotFound, OptionError, SparkStreamsError
from spark_streams.filters.tree import Expression
from spark_streams.offsets import format_offset, offset_number
from spark_streams.position import EARLIEST, Position
from spark_streams.wire.rabbitmq.connection_commands import COMMANDS
from spark_streams.wire.rabbitmq.consumer_commands import StoreOffset
from spark_streams.wire.rabbitmq.frames import ResponseCode
from spark_streams.wire.rabbitmq.publish_decode import MAX_REFERENCE_BYTES, PUBLISH_KEY
from spark_streams.wire.rabbitmq.stream_commands import Metadata, MetadataAnswer

_NAMES: Final = {PUBLISH_KEY: "Publish"} | {key: kind.__name__ for (key, _), kind in COMMANDS.items()}
_FILTERS_SINCE: Final = 2
"""The version of Publish that has filter values: brokers that accept it can filter."""
_SEARCH_ROWS: Final = 16_384
_SEARCH_BYTES: Final = 2 << 20
"""Rows and bytes of a batch while a search looks for the first match: the rows after it are decoded in vain."""


class RabbitClient(AbstractContextManager["RabbitClient"]):
    """A client of one broker, for one thread at a time.

    Args:
        endpoint: the broker, with credentials, virtual host and TLS; the client connects to any one of several hosts.
        super_stream: whether the names of streams are names of super streams.
        timeout_ms: how many milliseconds the broker may be silent whenever it owes an answer.
        filters: the messages that ``fetch`` returns, and where messages have their filter values, so that the client
            can push ``RangeRead.filter`` to the broker; None for all messages, and for an unknown place.
        consumer: the name under which it reads, None if there is none.
    """

    numeric_offsets = True
    """Offsets are numbers, so that distances between them can be computed."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        super_stream: bool = False,
        timeout_ms: int = 30_000,
        filters: FilterValues | None = None,
        consumer: Consumer | None = None,
    ) -> None:
        self._super_stream = super_stream
        self._filters = filters
        self._consumer = consumer
        self._cluster = Cluster(endpoint, timeout_ms)
        self._gone: frozenset[str] = frozenset()

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections with Close; never raise."""
        self._cluster.close()

    @property
    def advertised(self) -> tuple[Node, ...]:
        """The nodes that the broker has named and ``endpoint`` does not (``Endpoint.advertised``)."""
        return self._cluster.advertised

    # --- what there is

    def partitions(self, stream: str) -> tuple[str, ...]:
        """Return the streams that a name means: itself, or the partitions of the super stream, in their order.

        Raises:
            NotFound: there is no such super stream.
        """
        return partitions_of(self._cluster.any(), stream) if self._super_stream else (stream,)

    def check(self, stream: str) -> None:
        """Check that there is such a stream, or super stream.

        Raises:
            NotFound: there is none.
            Refused: the user has no permission, or a partition stayed unavailable.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        try:
            self._cluster.retrying(lambda: self._cluster.check(self.partitions(stream)))
        except NotFound as fault:
            raise self._of_another_kind(stream, fault) from None

    def describe(self, stream: str, *, certain: Collection[str] = ()) -> StreamDescription:
        """Return the partitions of a stream and what they retain, as the broker reports them now.

        A node may lag behind another one. For ``certain`` partitions the client asks the leader.

        The client waits for a partition of a super stream that does not exist, or is unreachable for a moment. A
        partition that does not come back is ``unavailable``, and the client does not wait for it again; a partition
        that exists without a reachable member is an error: its messages are not lost.

        Raises:
            NotFound: there is no such stream, or the super stream has partitions and none of them exists.
            Refused: the user has no permission, or a partition stayed unavailable.
            ConnectFailed, AuthenticationFailed: no connection, or the broker does not accept the credentials.
            DeadlineExceeded, RemoteProtocolError: the broker does not answer in time, or breaks the protocol.
        """
        found: StreamDescription | None = None
        cluster, settled = self._cluster, partial(bounds.settled, last_chunks={})

        def ask() -> StreamDescription:
            nonlocal found
            found = None
            names = self.partitions(stream)
            outcomes = cluster.near_all([name for name in names if name not in certain], bounds.extents)
            outcomes |= cluster.at_leaders([name for name in names if name in certain], settled)
            there: dict[str, Bounds] = {}
            gone: dict[str, NotFound] = {}
            for name in names:
                outcome = outcomes[name]
                if not isinstance(outcome, NotFound):
                    there[name] = Bounds.of_numbers(outcome.first, outcome.last)
                elif self._super_stream:
                    gone[name] = outcome
                else:
                    raise outcome
            found = StreamDescription(stream, None, there, {name: fault.condition for name, fault in gone.items()})
            awaited = [fault for name, fault in gone.items() if not there or name not in self._gone]
            if awaited:
                # The super stream lists the partition: it may come back, or leave the super stream as well.
                awaited[0].retriable = True
                raise awaited[0]
            return found

        try:
            described = cluster.retrying(ask)
        except NotFound as fault:
            if found is None:
                raise self._of_another_kind(stream, fault) from None
            if not found.partitions:
                raise
            described = found
        self._gone = frozenset(described.unavailable)
        return described

    def _of_another_kind(self, stream: str, fault: NotFound) -> NotFound:
        """Return the error for a name that does not exist: it says so if the name exists as the other kind."""
        try:
            if self._super_stream:
                self._cluster.check((stream,))
                what, kind, option = f"super stream '{stream}'", "a stream", "'stream' in place of 'superStream'"
            else:
                count = len(partitions_of(self._cluster.any(), stream))
                what, kind = f"stream '{stream}'", f"a super stream, of {count} partition{'s' * (count > 1)}"
                option = "'superStream' in place of 'stream'"
        except SparkStreamsError:  # the other kind does not exist either, or cannot be looked up
            return fault
        why = f"the name is that of {kind}: give it as option {option}"
        return cast(NotFound, refusal(ResponseCode.STREAM_DOES_NOT_EXIST, what, why))

    def capabilities(self) -> dict[str, str | list[str]]:
        """Return the broker's properties, and ``commands``: the names of those that it accepts, with versions.

        Before RabbitMQ 3.11 a broker does not report its commands.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        connection = self._cluster.retrying(self._cluster.any)
        commands = [
            f"{_NAMES.get(key, f'0x{key:02x}')} {highest}" for key, highest in sorted(connection.versions.items())
        ]
        return {**connection.properties, "commands": commands}

    def streams(self) -> list[str] | None:
        """Return the names of the streams that we may read; None for a peer that does not list them.

        The protocol has no command for it: only the log of this project answers a Metadata request without names.

        Raises:
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """

        def ask() -> list[str] | None:
            connection = self._cluster.any()
            if not connection.is_reference_log:
                return None
            answer = connection.request(Metadata(()), MetadataAnswer, "the list of streams: metadata")
            return [each.stream for each in answer.streams if each.code == ResponseCode.OK]

        return self._cluster.retrying(ask)

    def remaining(self, stream: str, positions: Mapping[str, Position]) -> dict[str, int | None]:
        """Return how many offsets there are from each position on; None where the position is not an offset."""
        described = self.describe(stream).partitions
        return {p: described[p].count_from(position) if p in described else None for p, position in positions.items()}

    def first_at_time(self, stream: str, partition: str, timestamp_ms: int) -> str | None:
        """Return the first offset of the first chunk that is not earlier than ``timestamp_ms``.

        Returns:
            None when there is no such chunk now. It is the broker's answer, never a guess from its silence.

        Raises:
            NotFound, Refused: there is no such stream, no permission, or no reachable member.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        found = self._cluster.near_retrying(partition, partial(bounds.first_at_time, timestamp_ms=timestamp_ms))
        return None if found is None else format_offset(found)

    def first_matching(self, stream: str, partition: str, expression: Expression) -> str | None:
        """Return the offset of the first message, in the order of the stream, for which an expression is true.

        The client reads the stream from its beginning, or from the lowest offset that can match, up to the first match.
        The broker leaves chunks out if the expression requires a filter value, and ``filters`` tells where messages
        have it.

        Returns:
            None when no present message matches.

        Raises:
            FilterError: the expression refers to something that messages cannot have.
            NotFound, Refused, RemoteProtocolError, TransportError: as for ``describe`` and ``fetch``.
        """
        last = self._cluster.near_retrying(partition, bounds.extent).last
        if last is None:
            return None
        read = RangeRead(
            stream, partition, EARLIEST, format_offset(last), ("offset",), fail_on_data_loss=False, filter=expression
        )
        place = None if self._filters is None else replace(self._filters, values=())
        rows = self._fetch(read, place, None, _SEARCH_ROWS, _SEARCH_BYTES)
        found = next(rows, None)
        return None if found is None else str(found.column("offset")[0])

    def pushdown(self, stream: str, expression: Expression) -> Pushdown:
        """Return the parts of a filter that the broker and ``fetch`` would check; no message is read.

        Raises:
            ConnectFailed, AuthenticationFailed, Refused, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        has_filters = self._cluster.retrying(lambda: self._cluster.any().versions.get(PUBLISH_KEY, 1) >= _FILTERS_SINCE)
        split = split_for(expression, self._filters if has_filters else None)
        return Pushdown(split.words, split.residual)

    def log_identity(self, stream: str, offsets: Mapping[str, str]) -> dict[str, str | None]:
        """Return the identity of the chunk at each offset, which changes in a stream created again; None for no chunk.

        RabbitMQ gives a stream no identity. The time of the chunk that holds an offset changes when the stream is
        deleted and created again.

        Raises:
            NotFound, Refused: there is no such stream, no permission, or no reachable member.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        numbers = {partition: offset_number(offset) for partition, offset in offsets.items()}

        def ask() -> dict[str, str | None]:
            found = self._cluster.near_all(tuple(numbers), partial(bounds.identities, offsets=numbers))
            return {partition: present(identity) for partition, identity in found.items()}

        return self._cluster.retrying(ask)

    # --- creating and deleting

    def create(self, stream: str, partitions: int | None, arguments: Mapping[str, str]) -> bool:
        """Create a stream, or a super stream whose partitions are ``<stream>-0`` and so on, with binding keys 0, 1 ….

        Args:
            stream: its name.
            partitions: how many; one or None makes a stream, which is no super stream.
            arguments: the broker's, such as ``max-length-bytes``.

        Returns:
            False if there is a stream or super stream of one of the names already.

        Raises:
            Refused: the user lacks the permission, or the broker does not take an argument or has no super streams.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        return create_stream(self._cluster, stream, partitions, arguments)

    def delete(self, stream: str) -> None:
        """Delete a stream, or a super stream with its partitions, with all its messages.

        Raises:
            NotFound: there is none.
            Refused: the user lacks the permission, or it is one partition of a super stream.
            ConnectFailed, AuthenticationFailed, DeadlineExceeded, RemoteProtocolError: as for ``describe``.
        """
        delete_stream(self._cluster, stream, is_super=self._super_stream)

    # --- reading

    def fetch(self, read: RangeRead, *, max_rows: int = 65_536, max_bytes: int = 8 << 20) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows of a range, in log order, none twice; memory stays bounded whatever its size.

        Args:
            read: the range, its filter and its columns.
            max_rows: rows of a batch at most.
            max_bytes: a batch takes no further chunk, and no further row of a chunk, once it has this many bytes.

        Returns:
            Batches that are not empty, with the columns of ``read.columns`` in that order, typed as in ``rows``.

        Raises:
            FilterError: the filter refers to something that messages cannot have.
            PositionLost: events of the range are gone, matching or not (only with ``read.fail_on_data_loss``).
            NotFound, Refused: there is no such stream, or the broker refused to deliver it.
            RemoteProtocolError: the broker broke a rule.
            ConnectionLost, DeadlineExceeded: the connection broke too often, or the broker was silent for too long.
        """
        return self._fetch(read, self._filters, self._consumer, max_rows, max_bytes)

    def _fetch(
        self, read: RangeRead, filters: FilterValues | None, consumer: Consumer | None, max_rows: int, max_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        pushed = push(read.filter, filters)
        properties = properties_of(pushed.pushed, consumer, read.stream if self._super_stream else None)
        return RangeReader(read, pushed, self._cluster, properties, max_rows, max_bytes).batches()

    def store_offsets(self, offsets: Mapping[str, str]) -> None:
        """Store the consumer's offsets at the broker, for tools that show its lag; the client never reads them.

        Args:
            offsets: partition to the last offset that was read (inclusive).

        Raises:
            LocalProtocolError: the client has no consumer.
            OptionError: the consumer's name has more than 255 bytes.
            TransportError: no connection. The broker does not report whether it stored the offsets.
        """
        if self._consumer is None:
            raise LocalProtocolError("storing offsets needs a consumer's name")
        if len(self._consumer.name.encode()) > MAX_REFERENCE_BYTES:
            # Brokers drop such an offset silently, or close the connection.
            raise OptionError("consumerName", f"expected up to {MAX_REFERENCE_BYTES} bytes, to store offsets under it")
        for partition, offset in offsets.items():
            command = StoreOffset(self._consumer.name, partition, offset_number(offset))
            connection = self._cluster.any()
            connection.send(command.encode())
        self._cluster.any().turn()
