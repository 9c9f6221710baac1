"""The sink of format ``rabbitmq-stream``: rows become messages, published and confirmed.

Streaming queries write exactly once, batch writes at least once. docs/rabbitmq-stream-sink.md is for users;
docs/adr/0010-rabbitmq-exactly-once.md has the argument.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client import RabbitClient, RabbitPublishing, TaskIdentity, TaskPublisher, encode_columns
from spark_streams.errors import OptionError, SchemaError, SparkStreamsError
from spark_streams.options import RabbitSinkOptions, parse_rabbit_sink
from spark_streams.spark.sink.columns import message_columns
from spark_streams.spark.sink.schema import MESSAGE_SINK_COLUMNS, check_schema
from spark_streams.spark.sink.writer import BatchWriter, StreamWriter, TaskName

__all__ = ["RabbitOutlet", "RabbitSink", "batch_writer", "stream_writer"]

_log = logging.getLogger(__name__)

FILTER_VALUE: Final = "filter_value"
"""The column of ``Outlet.send`` that has the filter values."""

KEEP_ALIVE_S: Final = 1.0
"""How often an idle connection is served; the broker's heartbeats are tens of seconds."""

MAX_PARTITIONS: Final = 200
"""Spark partitions of an exactly-once write: each has a reference of its own, and a broker remembers the last ids of
the 255 references that wrote last to a stream. The rest is left to other publishers (docs/adr/0010)."""

_checked: Final[dict[tuple[str, str | None, str], tuple[tuple[str, int], ...]]] = {}
"""Url, user and stream of what was checked, to the nodes that the broker named then."""


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> BatchWriter:
    """Return what ``df.write.format("rabbitmq-stream")`` runs.

    Args:
        options: as the user gave them.
        schema: the DataFrame's, a ``StructType``.
        overwrite: whether the save mode is ``overwrite``.

    Raises:
        OptionError: an option is unknown, missing or has a value that cannot be used, or the mode is ``overwrite``.
        SchemaError: the sink does not know a column or its type.
        NotFound: there is no such stream or super stream.
        AuthenticationFailed: the broker does not take the credentials.
    """
    if overwrite:
        raise OptionError("mode", "'overwrite' cannot be done, events in a log are never replaced: use mode 'append'")
    return BatchWriter(_sink(options, schema))


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> StreamWriter:
    """Return what ``df.writeStream.format("rabbitmq-stream")`` runs.

    Args:
        options: as the user gave them.
        schema: the DataFrame's, a ``StructType``.
        overwrite: whether the output mode is ``complete``.

    Raises:
        OptionError: as ``batch_writer``; the output mode that cannot be done is ``complete``.
        SchemaError, NotFound, AuthenticationFailed: as ``batch_writer``.
    """
    if overwrite:
        raise OptionError(
            "outputMode",
            "'complete' cannot be done, events in a log are never replaced: use 'append', or 'update' to add an event "
            "for each row that changed",
        )
    return StreamWriter(_sink(options, schema))


def _sink(options: Mapping[str, str], schema: Any) -> RabbitSink:
    sink = RabbitSink(parse_rabbit_sink(options))
    chosen = sink.options
    column = chosen.filter_value_column
    extra = {} if column is None else {column: MESSAGE_SINK_COLUMNS["key"]}  # a STRING, as the key is
    somewhere = chosen.stream is not None or chosen.super_stream is not None
    check_schema(schema, stream_option=somewhere, extra=extra)
    if chosen.super_stream is not None and "key" not in schema.fieldNames():
        raise SchemaError(
            "there is no column 'key' (STRING), which decides what partition of the super stream a row goes to: name "
            'one, such as df.selectExpr("customer AS key", "to_json(struct(*)) AS value")'
        )
    return sink.check()


@dataclass(frozen=True)
class RabbitSink:
    """Where the rows of one write go; it is pickled to the tasks.

    Args:
        options: checked.
    """

    options: RabbitSinkOptions

    def check(self) -> RabbitSink:
        """Ask for the stream, so that a wrong name fails on the driver, before any task starts.

        It is done once a process and stream: Spark makes a writer for every micro-batch. Trouble of the network is
        left to the tasks, which Spark tries again. Nothing is checked when each row names its stream.

        Returns:
            This sink, which knows the nodes that the broker has named: tasks go there when no host of ``url`` answers.

        Raises:
            NotFound: there is no such stream.
            AuthenticationFailed: the broker does not take the credentials.
            Refused: the broker does not let us in.
        """
        chosen = self.options
        name = chosen.super_stream or chosen.stream
        if name is None:
            return self
        key = (f"{chosen.endpoint.url} {chosen.super_stream is not None}", chosen.endpoint.username, name)
        if key not in _checked:
            try:
                with RabbitClient(
                    chosen.endpoint, super_stream=chosen.super_stream is not None, timeout_ms=chosen.request_timeout_ms
                ) as client:
                    client.check(name)
                    _checked[key] = client.told
            except SparkStreamsError as fault:
                if not fault.retriable:
                    raise
                _log.warning("stream '%s' could not be checked before the write: %s", name, fault)
                return self
        return replace(self, options=replace(chosen, endpoint=chosen.endpoint.with_told(_checked[key])))

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns that are encoded, and the filter values; rows need no ids of ours, the broker counts."""
        extra = self.options.filter_value_column
        filters = None
        if extra is not None:
            filters = rows.column(extra).cast(pa.string())
            if extra not in MESSAGE_SINK_COLUMNS:
                rows = rows.drop_columns([extra])
        columns = message_columns(rows)
        if filters is not None:
            columns[FILTER_VALUE] = filters
        return columns

    def open(self, name: TaskName, streaming: bool) -> RabbitOutlet:
        """Connect, for one task.

        Raises:
            OptionError: exactly once cannot be kept: too many Spark partitions, or Spark tells this task no query id.
        """
        return RabbitOutlet(self.options, _identity(name) if streaming else None)

    def repetition(self, streaming: bool) -> str:
        """Return what becomes of rows that are written again."""
        if streaming:
            return "What is written again is dropped by the broker where it has it already"
        return "What is written again goes out again: a batch write is at least once"


def _identity(name: TaskName) -> TaskIdentity:
    if not name.stable:
        raise OptionError(
            "rabbitmq-stream",
            "Spark tells this task neither its query nor its micro-batch, so it cannot write exactly once: use "
            "foreachBatch with df.write, which is at least once",
        )
    if name.partition >= MAX_PARTITIONS:
        raise OptionError(
            "rabbitmq-stream",
            f"this is Spark partition {name.partition}, and exactly once works for {MAX_PARTITIONS}: a broker "
            f"remembers the last ids of 255 publishers of a stream. Write df.coalesce({MAX_PARTITIONS}), or fewer",
        )
    return TaskIdentity(f"spark/{name.query}/{name.partition}", int(name.batch))


class RabbitOutlet:
    """One task's connection, with a publisher for each stream that its rows go to.

    While the task waits for its next rows a thread keeps the connection alive: a broker drops one that is silent for
    longer than two heartbeats, and Spark may well compute for minutes between two batches.

    Args:
        options: checked.
        identity: of the task, None for at least once.
    """

    def __init__(self, options: RabbitSinkOptions, identity: TaskIdentity | None) -> None:
        self._options = options
        how = RabbitPublishing(
            super_stream=options.super_stream,
            routing=options.routing,
            compression=options.compression,
            sub_entry_size=options.sub_entry_size,
            max_in_flight=options.max_in_flight,
            timeout_ms=options.request_timeout_ms,
        )
        self._publisher = TaskPublisher(options.endpoint, how, identity)
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._fault: SparkStreamsError | None = None
        self._keeper = threading.Thread(target=self._keep_alive, name="spark-streams-keep-alive", daemon=True)
        self._keeper.start()

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Send rows, in their order within each stream; waits while too many are not confirmed.

        Raises:
            DeliveryFailed: the broker refused a row, of these or of earlier ones; the rows are not those of an earlier
                attempt; or a key leads to no partition.
            SchemaError: a row cannot be encoded, or it names no stream.
            NotFound: a row names a stream that does not exist.
            TransportError: no connection, or it broke.
        """
        columns = dict(columns)
        streams = columns.pop("stream", None)
        columns.pop("partition", None)
        filters = columns.pop(FILTER_VALUE, None)
        try:
            payloads = encode_columns(columns)
        except SchemaError as fault:
            raise SchemaError(f"{fault} (counted from {label(0)})") from fault
        with self._served():
            self._publisher.send(payloads, self._destinations(columns, streams, label), filters, label)

    def _destinations(
        self, columns: Mapping[str, pa.Array], streams: pa.Array | None, label: Callable[[int], str]
    ) -> pa.StringArray | str:
        if self._options.super_stream is not None:
            return columns["key"].cast(pa.string())
        if self._options.stream is not None:
            return self._options.stream
        if streams is None or streams.null_count:
            row = label(0 if streams is None else pc.index(streams.is_null(), True).as_py())
            raise SchemaError(
                f"{row} has null in column 'stream', and neither option 'stream' nor 'superStream' is given: nothing "
                "says where it goes"
            )
        return streams.cast(pa.string())

    def flush(self) -> None:
        """Return once the broker has confirmed every row.

        Raises:
            DeliveryFailed: it refused one, or did not confirm all within option ``requestTimeout``.
            TransportError: the connection broke.
        """
        with self._served():
            self._publisher.flush()

    def close(self) -> None:
        """Disconnect."""
        self._closing.set()
        self._keeper.join()
        self._publisher.close()

    @contextmanager
    def _served(self) -> Iterator[None]:
        with self._turn:
            if self._fault is not None:
                raise self._fault
            yield

    def _keep_alive(self) -> None:
        while not self._closing.wait(KEEP_ALIVE_S):
            with self._turn:
                try:
                    self._publisher.turn()
                except SparkStreamsError as fault:
                    self._fault = fault  # told to the task when it comes back
                    return
