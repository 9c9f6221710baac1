"""The sink of format ``amqp-events``: rows become AMQP 1.0 messages, sent unsettled, done when the peer accepted them.

docs/amqp-events-sink.md is for users; docs/adr/0007-sink-delivery.md has the decisions.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client import AmqpClient, Publisher, encode_columns
from spark_streams.errors import OptionError, SchemaError, SparkStreamsError
from spark_streams.options import SinkOptions, parse_sink_options
from spark_streams.spark.sink.columns import identify, message_columns
from spark_streams.spark.sink.schema import check_schema
from spark_streams.spark.sink.writer import BatchWriter, StreamWriter, TaskName

__all__ = ["AmqpOutlet", "AmqpSink", "batch_writer", "stream_writer"]

_log = logging.getLogger(__name__)

MAX_OPEN_LINKS: Final = 64
"""Sender links a task keeps open when column ``stream`` names many streams; the least recently used one is closed."""

KEEP_ALIVE_S: Final = 1.0
"""How often an idle connection is served; peers' idle-time-outs are tens of seconds."""

_checked: Final[set[tuple[str, str | None, str]]] = set()


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> BatchWriter:
    """Return what ``df.write.format("amqp-events")`` runs.

    Args:
        options: as the user gave them.
        schema: the DataFrame's, a ``StructType``.
        overwrite: whether the save mode is ``overwrite``.

    Raises:
        OptionError: an option is unknown, missing or has a value that cannot be used, or the mode is ``overwrite``.
        SchemaError: the sink does not know a column or its type.
        NotFound: there is no such stream.
        AuthenticationFailed: the peer does not take the credentials.
    """
    if overwrite:
        raise OptionError("mode", "'overwrite' cannot be done, events in a log are never replaced: use mode 'append'")
    return BatchWriter(_sink(options, schema))


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> StreamWriter:
    """Return what ``df.writeStream.format("amqp-events")`` runs.

    Args:
        options: as the user gave them.
        schema: the DataFrame's, a ``StructType``.
        overwrite: whether the output mode is ``complete``.

    Raises:
        OptionError: as ``batch_writer``; the output mode that cannot be done is ``complete``.
        SchemaError: as ``batch_writer``.
        NotFound: as ``batch_writer``.
        AuthenticationFailed: as ``batch_writer``.
    """
    if overwrite:
        raise OptionError(
            "outputMode",
            "'complete' cannot be done, events in a log are never replaced: use 'append', or 'update' to add an event "
            "for each row that changed",
        )
    return StreamWriter(_sink(options, schema))


def _sink(options: Mapping[str, str], schema: Any) -> AmqpSink:
    sink = AmqpSink(parse_sink_options(options))
    check_schema(schema, stream_option=sink.options.stream is not None)
    sink.check()
    return sink


@dataclass(frozen=True)
class AmqpSink:
    """Where the rows of one write go; it is pickled to the tasks.

    The guarantee is **at least once**: rows that are written again are delivered again, under the same message-id
    ``<query id>/<batch>/<Spark partition>/<row>``, by which a reader drops duplicates.

    Args:
        options: checked.
    """

    options: SinkOptions

    def check(self) -> None:
        """Attach to the stream and detach again, so that a wrong name fails on the driver, before any task starts.

        It is done once a process and stream: Spark makes a writer for every micro-batch. Trouble of the network is
        left to the tasks, which Spark tries again. Nothing is checked without option ``stream``.

        Raises:
            NotFound: there is no such stream.
            AuthenticationFailed: the peer does not take the credentials.
            Refused: the peer does not let us send there.
        """
        endpoint, stream = self.options.endpoint, self.options.stream
        if stream is None or (endpoint.url, endpoint.username, stream) in _checked:
            return
        try:
            with AmqpClient(endpoint, timeout_ms=self.options.request_timeout_ms) as client:
                client.publisher(stream, timeout_ms=self.options.request_timeout_ms).close()
        except SparkStreamsError as fault:
            if not fault.retriable:
                raise
            _log.warning("stream '%s' could not be checked before the write: %s", stream, fault)
            return
        _checked.add((endpoint.url, endpoint.username, stream))

    def columns(self, rows: pa.RecordBatch, name: TaskName, first_row: int) -> dict[str, pa.Array]:
        """Return the columns to encode, ``message_id`` among them: the row's own, or one derived from its place."""
        columns = message_columns(rows)
        identify(columns, name.prefix, first_row)
        return columns

    def open(self, name: TaskName, streaming: bool) -> AmqpOutlet:
        """Connect, for one task."""
        return AmqpOutlet(self.options)

    def repetition(self, streaming: bool) -> str:
        """Say what becomes of rows that are written again."""
        return "What is written again goes out again, under the same message-ids"


@dataclass(frozen=True)
class _Chosen:
    """Names row i of some of the rows, for errors."""

    label: Callable[[int], str]
    rows: pa.Array

    def __call__(self, i: int) -> str:
        return self.label(self.rows[i].as_py())


class AmqpOutlet:
    """One task's connection, with a sender link to each stream that its rows name; opened by the first rows.

    While the task waits for its next rows a thread keeps the connection alive: a peer drops one that is silent for
    longer than its idle-time-out, and Spark may well compute for minutes between two batches.

    Args:
        options: checked; ``stream``, where it is given, is where all rows go.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._client = AmqpClient(options.endpoint, timeout_ms=options.request_timeout_ms)
        self._publishers: OrderedDict[str, Publisher] = OrderedDict()
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._fault: SparkStreamsError | None = None
        self._keeper = threading.Thread(target=self._keep_alive, name="spark-streams-keep-alive", daemon=True)
        self._keeper.start()

    def send(self, columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> None:
        """Send rows, in their order within each stream; waits while the peer gives no credit.

        Raises:
            DeliveryFailed: the peer did not accept a row, of these or of earlier ones.
            DeadlineExceeded: no credit within option ``requestTimeout``.
            SchemaError: a row cannot be encoded, or it names no stream and option ``stream`` is not given.
            NotFound: a row names a stream that does not exist.
            TransportError: no connection, or it broke.
            AuthenticationFailed: the peer does not take the credentials.
        """
        columns = dict(columns)
        streams = columns.pop("stream", None)
        try:
            payloads = encode_columns(columns)
        except SchemaError as fault:
            raise SchemaError(f"{fault} (counted from {label(0)})") from fault
        with self._served():
            if self._options.stream is not None:
                self._publisher(self._options.stream).send(payloads, label)
                return
            if streams.null_count:
                row = label(pc.index(streams.is_null(), True).as_py())
                raise SchemaError(
                    f"{row} has null in column 'stream', and option 'stream' is not given: nothing says where it goes"
                )
            for stream in streams.unique().to_pylist():
                rows = pc.indices_nonzero(pc.equal(streams, stream))
                self._publisher(stream).send(payloads.take(rows), _Chosen(label, rows))

    def flush(self) -> None:
        """Return once the peer has accepted every row.

        Raises:
            DeliveryFailed: it did not accept one.
            DeadlineExceeded: it did not settle all within option ``requestTimeout``.
            TransportError: the connection broke.
        """
        with self._served():
            for publisher in self._publishers.values():
                publisher.flush()

    def close(self) -> None:
        """Disconnect."""
        self._closing.set()
        self._keeper.join()
        self._client.close()

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
                    self._client.turn()
                except SparkStreamsError as fault:
                    self._fault = fault  # told to the task when it comes back
                    return

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
