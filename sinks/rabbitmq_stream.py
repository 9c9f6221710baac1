"""The sink of format ``rabbitmq-stream``: it publishes rows as messages and waits until the broker confirms them.

Streaming queries write exactly once, batch writes at least once. docs/rabbitmq-stream-sink.md is for users;
docs/adr/0010-rabbitmq-exactly-once.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_streams.client import RabbitClient, TaskIdentity, TaskPublisher
from spark_streams.options.rabbitmq_stream import RabbitSinkOptions
from spark_streams.spark.schemas import STRING, check_schema
from spark_streams.spark.sink.columns import encoded, message_columns, named_texts, require_streams
from spark_streams.spark.sink.sink import (
    GOES_OUT_AGAIN,
    KeepAlive,
    TaskName,
    check_once,
    kept_connections,
    stream_label,
)

FILTER_VALUE: Final = "filter_value"
"""The column of ``Outlet.send`` with the filter values."""

MAX_PARTITIONS: Final = 200
"""Most Spark partitions of an exactly-once write: each has its own reference, and a broker remembers the last ids of
the 255 references that wrote last to a stream. The other 55 remain for other publishers (docs/adr/0010)."""

REMEMBERED: Final = "a broker remembers the last ids of 255 publishers of a stream"
"""The reason for the limit, in the error."""


@dataclass(frozen=True)
class RabbitSink:
    """The destination of the rows of one write; it is pickled to the tasks.

    Args:
        options: checked.
    """

    options: RabbitSinkOptions
    repeats_of_batch: ClassVar = GOES_OUT_AGAIN
    repeats_of_stream: ClassVar = "is dropped by the broker where it has it already"

    @property
    def label(self) -> str:
        """The format and where the rows go, for log lines."""
        return f"rabbitmq-stream {stream_label(self.options.stream or self.options.super_stream)}"

    def check_schema(self, schema: StructType) -> None:
        """Check the DataFrame's columns.

        Raises:
            SchemaError: a column is unknown, has the wrong type, or is missing; a super stream needs column ``key``.
        """
        chosen = self.options
        column = chosen.filter_value_column
        extra = {} if column is None else {column: STRING}
        keyed = chosen.super_stream is not None
        check_schema(schema, stream_option=chosen.stream is not None or keyed, keyed=keyed, extra=extra)

    def check(self) -> RabbitSink:
        """Check that the stream exists; do nothing when each row names its stream. See ``Sink``.

        Returns:
            This sink with the nodes that the broker has named: tasks connect to them when no host of ``url`` answers.

        Raises:
            NotFound: there is no such stream.
            AuthenticationFailed: the broker does not accept the credentials.
            Refused: the broker refuses access.
        """
        chosen = self.options
        routed = chosen.super_stream is not None

        def nodes(name: str) -> tuple[tuple[str, int], ...]:
            client = RabbitClient(chosen.endpoint, super_stream=routed, timeout_ms=chosen.request_timeout_ms)
            with client:
                client.check(name)
                return client.advertised

        name = chosen.super_stream or chosen.stream
        if name is None:
            return self
        key = (chosen.endpoint.url, routed, chosen.endpoint.username, name)
        named = check_once(key, f"stream '{name}'", lambda: nodes(name)) or ()
        return replace(self, options=replace(chosen, endpoint=chosen.endpoint.with_advertised(named)))

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns to encode and the filter values; it adds no ids, since messages have publishing ids."""
        return message_columns(rows) | named_texts(rows, {FILTER_VALUE: self.options.filter_value_column})

    def open(self, name: TaskName, streaming: bool) -> RabbitOutlet:
        """Return the outlet of one task.

        Raises:
            OptionError: exactly once is impossible: too many Spark partitions, or Spark gives this task no query id.
        """
        identity = name.identity("rabbitmq-stream", MAX_PARTITIONS, REMEMBERED) if streaming else None
        return RabbitOutlet(self.options, identity)


class RabbitOutlet:
    """One task's connection, which may be an earlier task's, with a publisher for each stream that its rows go to.

    Args:
        options: checked.
        identity: the task's identity for exactly once; None for at least once.
    """

    def __init__(self, options: RabbitSinkOptions, identity: TaskIdentity | None) -> None:
        self._options = options
        self._publisher = TaskPublisher(options.endpoint, options, identity, kept_connections())
        self._keep_alive = KeepAlive(self._publisher.turn)

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Send rows, in their order within each stream, and wait while too many are not confirmed.

        Raises:
            DeliveryFailed: the broker refused one of these rows or an earlier one; the rows differ from those of an
                earlier attempt; or a key leads to no partition.
            SchemaError: a row cannot be encoded, or it names no stream.
            NotFound: a row names a stream that does not exist.
            TransportError: the connection could not be opened, or it broke.
        """
        columns = dict(columns)
        streams = columns.pop("stream", None)
        columns.pop("partition", None)
        filters = columns.pop(FILTER_VALUE, None)
        payloads = encoded(columns, label)
        with self._keep_alive.paused():
            if self._options.super_stream is not None:
                places = columns["key"].cast(pa.string())
            elif self._options.stream is not None:
                places = self._options.stream
            else:
                require_streams(streams, label, "neither option 'stream' nor 'superStream' is given")
                places = streams.cast(pa.string())
            self._publisher.send(payloads, places, filters, label)

    def flush(self) -> None:
        """Return once the broker has confirmed every row.

        Raises:
            DeliveryFailed: the broker refused a row, or did not confirm all within option ``requestTimeout``.
            TransportError: the connection broke.
        """
        with self._keep_alive.paused():
            self._publisher.flush()

    def close(self) -> None:
        """Disconnect, or leave the connection to the next task."""
        self._keep_alive.stop()
        self._publisher.close()
