"""The sink of format ``amqp-events``: it sends rows as unsettled AMQP 1.0 messages and waits until they are accepted.

docs/amqp-events-sink.md is for users; docs/adr/0007-sink-delivery.md has the decisions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from spark_streams.client import AmqpClient, Publisher
from spark_streams.options.common import SinkOptions
from spark_streams.spark.schemas import check_schema
from spark_streams.spark.sink.columns import encoded, identify, message_columns, require_streams
from spark_streams.spark.sink.sink import KeepAlive, TaskName, check_once, kept_connections

MAX_OPEN_LINKS: Final = 64
"""Sender links that a task keeps open when column ``stream`` names many streams; it closes the least recently used."""
MAX_ENDED_LINKS: Final = 4
"""A task with more links ends them with its connection: to end each takes a round trip, to connect anew takes five."""


@dataclass(frozen=True)
class AmqpSink:
    """The destination of the rows of one write; it is pickled to the tasks.

    The guarantee is **at least once**: rows that are written again are delivered again, with the same message-id
    ``<query id>/<batch>/<Spark partition>/<row>``, by which a reader drops duplicates.

    Args:
        options: checked.
    """

    options: SinkOptions
    repeats_of_batch: ClassVar = "goes out again, under the same message-ids"
    repeats_of_stream: ClassVar = repeats_of_batch

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns.

        Raises:
            SchemaError: a column is unknown, has the wrong type, or is missing.
        """
        check_schema(schema, stream_option=self.options.stream is not None)

    def check(self) -> AmqpSink:
        """Attach to the stream and detach again; do nothing without option ``stream``. See ``Sink``.

        Raises:
            NotFound: there is no such stream.
            AuthenticationFailed: the peer does not take the credentials.
            Refused: the peer does not let us send there.
        """
        endpoint, stream, timeout_ms = self.options.endpoint, self.options.stream, self.options.request_timeout_ms

        def attach(name: str) -> None:
            with AmqpClient(endpoint, timeout_ms=timeout_ms) as client:
                client.publisher(name, timeout_ms=timeout_ms).close()

        if stream is not None:
            check_once((endpoint.url, endpoint.username, stream), f"stream '{stream}'", lambda: attach(stream))
        return self

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns to encode, with ``message_id``: the row's own, or one that its number determines."""
        columns = message_columns(rows)
        identify(columns, name.prefix, first_row)
        return columns

    def open(self, name: TaskName, streaming: bool) -> AmqpOutlet:
        """Return the outlet of one task."""
        return AmqpOutlet(self.options)


def _chosen(label: Callable[[int], str], rows: pa.Array) -> Callable[[int], str]:
    """Return a function that names row i of a selection of rows, for errors."""
    return lambda i: label(rows[i].as_py())


class AmqpOutlet:
    """One task's connection, with a sender link to each stream that its rows name; the first rows open it.

    It may be a connection of an earlier task.

    Args:
        options: checked; all rows go to ``stream`` if it is set.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._kept = kept_connections()
        self._client = AmqpClient(options.endpoint, timeout_ms=options.request_timeout_ms, kept=self._kept)
        self._settled = False
        self._publishers: OrderedDict[str, Publisher] = OrderedDict()
        self._keep_alive = KeepAlive(self._client.turn)

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Send rows, in their order within each stream, and wait while the peer gives no credit.

        Raises:
            DeliveryFailed: the peer did not accept one of these rows, or an earlier one.
            DeadlineExceeded: the peer gave no credit within option ``requestTimeout``.
            SchemaError: a row cannot be encoded, or it names no stream and option ``stream`` is not given.
            NotFound: a row names a stream that does not exist.
            TransportError: the connection could not be opened, or it broke.
            AuthenticationFailed: the peer does not take the credentials.
        """
        self._settled = False
        columns = dict(columns)
        streams = columns.pop("stream", None)
        payloads = encoded(columns, label)
        with self._keep_alive.paused():
            if self._options.stream is not None:
                self._publisher(self._options.stream).send(payloads, label)
                return
            require_streams(streams, label, "option 'stream' is not given")
            for stream in streams.unique().to_pylist():
                rows = pc.indices_nonzero(pc.equal(streams, stream))
                self._publisher(stream).send(payloads.take(rows), _chosen(label, rows))

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

    def _publisher(self, stream: str) -> Publisher:
        publisher = self._publishers.get(stream)
        if publisher is not None:
            self._publishers.move_to_end(stream)
            return publisher
        if len(self._publishers) >= MAX_OPEN_LINKS:
            _, idle = self._publishers.popitem(last=False)
            idle.flush()
            idle.close()
        publisher = self._client.publisher(stream, timeout_ms=self._options.request_timeout_ms)
        self._publishers[stream] = publisher
        return publisher
