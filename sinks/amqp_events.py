"""The sink of format ``amqp-events``: it sends rows as unsettled AMQP 1.0 messages and waits until they are accepted.

docs/amqp-events-sink.md is for users; docs/adr/0007-sink-delivery.md has the decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_streams.client import AmqpClient, Publisher
from spark_streams.client.retry import LONG_BACKOFF
from spark_streams.errors import PeerError, SchemaError, TransportError
from spark_streams.options.amqp_events import AmqpSinkOptions, dialect_named, exchange_address
from spark_streams.spark.schemas import STRING, check_schema
from spark_streams.spark.sink.columns import encoded, identify, message_columns, named_texts, require_streams
from spark_streams.spark.sink.sink import KeepAlive, TaskName, check_once, kept_connections, stream_label

MAX_OPEN_LINKS: Final = 64
"""Sender links that a task keeps open when its rows go to many streams; it closes the least recently used."""
MAX_ENDED_LINKS: Final = 4
"""A task with more links ends them with its connection: to end each takes a round trip, to connect anew takes five."""
ROUTING_KEY: Final = "routing_key"
"""The column of ``Outlet.send`` with the routing keys of an exchange."""
FILTER_VALUE: Final = "filter_value"

Label = Callable[[int], str]
"""Names row i of some rows, for errors."""


@dataclass(frozen=True)
class AmqpSink:
    """The destination of the rows of one write; it is pickled to the tasks.

    The guarantee is **at least once**: rows that are written again are delivered again, with the same message-id
    ``<query id>/<batch>/<Spark partition>/<row>``, by which a reader drops duplicates.

    Args:
        options: checked.
    """

    options: AmqpSinkOptions
    repeats_of_batch: ClassVar = "goes out again, under the same message-ids"
    repeats_of_stream: ClassVar = repeats_of_batch

    @property
    def label(self) -> str:
        """The format and where the rows go, for log lines."""
        chosen = self.options
        name = chosen.stream or chosen.super_stream
        if chosen.exchange is not None:
            return f"amqp-events exchange '{chosen.exchange}'"
        return f"amqp-events {stream_label(name)}"

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns.

        Raises:
            SchemaError: a column is unknown, has the wrong type, or is missing; a super stream needs column ``key``.
        """
        chosen = self.options
        extra = {name: STRING for name in (chosen.filter_value_column, chosen.routing_key_column) if name is not None}
        somewhere = chosen.stream or chosen.super_stream or chosen.exchange
        check_schema(schema, stream_option=somewhere is not None, keyed=chosen.super_stream is not None, extra=extra)

    def check(self) -> AmqpSink:
        """Attach to the stream or exchange and detach again; do nothing where each row names its own. See ``Sink``.

        Raises:
            NotFound: there is no such stream or exchange.
            AuthenticationFailed: the peer does not take the credentials.
            Refused: the peer does not let us send there.
        """
        chosen = self.options
        name = chosen.stream or chosen.super_stream or chosen.exchange

        def attach() -> None:
            with connect(chosen) as client:
                if chosen.super_stream is not None:
                    client.writable_partitions(chosen.super_stream)
                else:
                    exchange = None if chosen.exchange is None else exchange_address(chosen.exchange, "")
                    client.publisher(str(name), exchange=exchange).close()

        if name is not None:
            what = "stream" if chosen.exchange is None else "exchange"
            check_once((chosen.endpoint.url, chosen.endpoint.username, what, name), f"{what} '{name}'", attach)
        return self

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns to encode, with ``message_id``: the row's own, or one that its number determines."""
        chosen, columns = self.options, message_columns(rows)
        identify(columns, name.prefix, first_row)
        named = {FILTER_VALUE: chosen.filter_value_column, ROUTING_KEY: chosen.routing_key_column}
        return columns | named_texts(rows, named)

    def open(self, name: TaskName, streaming: bool) -> AmqpOutlet:
        """Return the outlet of one task."""
        return AmqpOutlet(self.options)


def connect(options: AmqpSinkOptions, **more: Any) -> AmqpClient:
    """Return a client for the peer that the options name; ``more`` are arguments of ``AmqpClient``."""
    dialect = dialect_named(options.dialect, options.key_annotation)
    return AmqpClient(options.endpoint, timeout_ms=options.request_timeout_ms, dialect=dialect, **more)


def _chosen(label: Label, rows: pa.Array) -> Label:
    """Return a function that names row i of a selection of rows, for errors."""
    return lambda i: label(rows[i].as_py())


class AmqpOutlet:
    """One task's connection, with a sender link to each place that its rows go to; the first rows open it.

    It may be a connection of an earlier task.

    Args:
        options: checked.
    """

    def __init__(self, options: AmqpSinkOptions) -> None:
        self._options = options
        self._kept = kept_connections()
        self._client = connect(options, kept=self._kept, backoff=LONG_BACKOFF)
        self._settled = False
        self._partitions: tuple[str, ...] = ()
        self._publishers: OrderedDict[tuple[str, str | None], Publisher] = OrderedDict()
        self._keep_alive = KeepAlive(self._serve)

    def _serve(self) -> None:
        with suppress(TransportError, PeerError):  # the next task on this connection attaches anew
            self._client.turn()

    def send(self, columns: Mapping[str, pa.Array], label: Label) -> None:
        """Send rows, in their order within each stream and partition, and wait while the peer gives no credit.

        Raises:
            DeliveryFailed: the peer did not accept one of these rows, or an earlier one.
            DeadlineExceeded: the peer gave no credit within option ``requestTimeout``.
            SchemaError: a row cannot be encoded, or it names no stream and no option does.
            NotFound: a row names a stream that does not exist.
            TransportError: the connection could not be opened, or it broke.
            AuthenticationFailed: the peer does not take the credentials.
        """
        self._settled = False
        columns = dict(columns)
        streams, keys = columns.pop("stream", None), columns.pop(ROUTING_KEY, None)
        with self._keep_alive.paused():
            if self._options.exchange is not None:
                self._send_to_exchange(columns, keys, label)
                return
            for rows, stream in self._streams(columns, streams, label):
                some = columns if rows is None else {name: column.take(rows) for name, column in columns.items()}
                self._send_to_stream(stream, some, label if rows is None else _chosen(label, rows))

    def _streams(
        self, columns: Mapping[str, pa.Array], streams: pa.Array | None, label: Label
    ) -> Iterator[tuple[pa.Array | None, str]]:
        """Yield which rows (None for all) go to which stream."""
        if self._options.stream is not None:
            yield None, self._options.stream
            return
        if self._options.super_stream is not None:
            streams = self._routed(columns["key"].cast(pa.string()), label)
        elif streams is None or streams.null_count:
            require_streams(streams, label, "option 'stream' is not given")
        assert streams is not None, "check_schema asks for the column"
        for stream in streams.unique().to_pylist():
            yield pc.indices_nonzero(pc.equal(streams, stream)), stream

    def _routed(self, keys: pa.StringArray, label: Label) -> pa.StringArray:
        """Return the partition of a super stream that each row goes to."""
        name = str(self._options.super_stream)
        if keys.null_count:
            row = pc.index(keys.is_null(), True).as_py()
            raise SchemaError(f"{label(row)} has null in column 'key', which decides the partition of '{name}'")
        from spark_streams.client import key_hash  # RabbitMQ's, which no other peer needs

        self._partitions = self._partitions or self._client.writable_partitions(name)
        numbers = key_hash(self._options.routing)(keys, len(self._partitions))
        return pa.array(self._partitions).take(pa.array(np.asarray(numbers, np.int64)))

    def _send_to_stream(self, stream: str, columns: Mapping[str, pa.Array], label: Label) -> None:
        partitions = columns.get("partition") if self._client.dialect.partition_in_address else None
        if partitions is None or partitions.null_count == len(partitions):
            payloads = encoded(columns, label, self._client.encode)
            self._publisher(stream).send(payloads, label)
            return
        for partition in partitions.unique().to_pylist():
            where = partitions.is_null() if partition is None else pc.equal(partitions, partition)
            rows = pc.indices_nonzero(where)
            some, named = {name: column.take(rows) for name, column in columns.items()}, _chosen(label, rows)
            payloads = encoded(some, named, partial(self._client.encode, for_partition=partition is not None))
            self._publisher(stream, partition).send(payloads, named)

    def _send_to_exchange(self, columns: dict[str, pa.Array], keys: pa.StringArray | None, label: Label) -> None:
        exchange = str(self._options.exchange)
        without = exchange_address(exchange, "")
        if keys is not None:
            _check_addressable(columns, label)
            distinct = keys.dictionary_encode()
            addresses = [exchange_address(exchange, key or "") for key in distinct.dictionary.to_pylist()]
            columns["to"] = pc.fill_null(pa.array(addresses, pa.string()).take(distinct.indices), without)
        payloads = encoded(columns, label, self._client.encode)
        self._publisher(exchange, exchange=without if keys is None else "").send(payloads, label)

    def flush(self) -> None:
        """Return once the peer has accepted every row.

        Raises:
            DeliveryFailed: the peer did not accept a row.
            DeadlineExceeded: the peer did not settle all messages within option ``requestTimeout``.
            TransportError: the connection broke.
        """
        with self._keep_alive.paused():
            for publisher in self._publishers.values():
                publisher.flush()
        self._settled = True

    def close(self) -> None:
        """Disconnect, or leave the connection to the next task."""
        self._keep_alive.stop()
        if self._kept is not None and self._settled and len(self._publishers) <= MAX_ENDED_LINKS:
            for publisher in self._publishers.values():
                publisher.close()
            self._client.leave()
        else:
            self._client.close()

    def _publisher(self, stream: str, partition: str | None = None, *, exchange: str | None = None) -> Publisher:
        publisher = self._publishers.get((stream, partition))
        if publisher is not None:
            self._publishers.move_to_end((stream, partition))
            return publisher
        if len(self._publishers) >= MAX_OPEN_LINKS:
            _, idle = self._publishers.popitem(last=False)
            idle.flush()
            idle.close()
        publisher = self._client.publisher(stream, partition=partition, exchange=exchange)
        self._publishers[stream, partition] = publisher
        return publisher


def _check_addressable(columns: Mapping[str, pa.Array], label: Label) -> None:
    """Check that rows do not set property ``to``, from which RabbitMQ takes the routing key.

    Raises:
        SchemaError: a row sets it.
    """
    properties, whole = columns.get("properties"), columns.get("message")
    taken = None
    if properties is not None and properties.type.get_field_index("to") >= 0:
        taken, what = pc.struct_field(properties, "to"), "a value in 'properties.to'"
    if whole is not None and whole.null_count < len(whole):
        taken, what = whole, "a whole 'message'"
    if taken is not None and taken.null_count < len(taken):
        row = pc.index(taken.is_valid(), True).as_py()
        raise SchemaError(
            f"{label(row)} has {what}: with 'routingKeyColumn' the property 'to' carries exchange and routing key"
        )
