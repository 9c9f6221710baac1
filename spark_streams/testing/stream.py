"""Streams of the reference log for one test: it creates, fills and reads them without Spark, or reads them with it."""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import requests

from spark_streams.client import AmqpClient, Bounds, RangeRead, encode_columns
from spark_streams.endpoint import parse_url
from spark_streams.position import EARLIEST
from spark_streams.protocols import PROTOCOLS
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.testing.log_process import LogProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIMEOUT_S: Final = 60
_WRITABLE: Final = tuple(name for name in FULL_MESSAGE_SCHEMA.names if name not in ("stream", "offset"))


class StreamFactory:
    """Creates streams that no other test uses.

    Args:
        process: the log.

    Attributes:
        created: the streams, in the order in which they were created.
    """

    def __init__(self, process: LogProcess) -> None:
        self.process = process
        self.created: list[LogStream] = []

    def __repr__(self) -> str:
        return f"<StreamFactory of {self.process!r}>"

    @property
    def event_hubs_connection_string(self) -> str:
        """The connection string with which clients of Azure Event Hubs find the log; a stream is an event hub."""
        return self.process.event_hubs_connection_string

    def create(self, name: str = "events", partitions: int = 1, **settings: str | int) -> LogStream:
        """Return a new, empty stream.

        Args:
            name: the prefix of the stream's name; a random suffix makes the name unique.
            partitions: the number of partitions.
            settings: settings of ``[log.stream]`` in conf/log.toml, such as ``timestamp_type="create"`` for events that
                keep the time that ``produce`` gives them, or ``segment_max_bytes`` and ``retention_max_bytes``.

        Raises:
            RuntimeError: the log refused it; the text has the log's reason, and for an unknown setting the nearest one.
        """
        stream = LogStream(self.process, f"{name}-{secrets.token_hex(4)}", partitions, settings)
        stream.create()
        self.created.append(stream)
        return stream


class LogStream:
    """One stream of a running log.

    Args:
        process: the log.
        name: the stream's name.
        partitions: the number of partitions that ``create`` makes.
        settings: settings of ``[log.stream]`` for ``create``.
    """

    def __init__(
        self, process: LogProcess, name: str, partitions: int, settings: Mapping[str, str | int] | None = None
    ) -> None:
        self.process = process
        self.name = name
        self.partitions = partitions
        self.settings = dict(settings or {})

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value}" for name, value in self.settings.items())
        parts = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"<LogStream '{self.name}', {parts}{settings}>"

    @property
    def window(self) -> str:
        """The address of the page that shows the stream."""
        return f"{self.process.urls['web'].rstrip('/')}/stream?stream={quote(self.name)}"

    def create(self) -> None:
        """Create the stream, for the first time or again after ``delete``.

        Raises:
            RuntimeError: the log refused it; the text has the log's reason.
        """
        self._ask("PUT", "created", {"partitions": self.partitions, **self.settings})

    def delete(self) -> None:
        """Delete the stream with all its events.

        Raises:
            RuntimeError: the log refused it; the text has the log's reason.
        """
        self._ask("DELETE", "deleted")

    def split(self, partition: str = "0", into: int = 2, *, history: bool = False) -> list[str]:
        """Split a partition, and return the new partitions.

        Args:
            partition: the partition to split; it takes no more events.
            into: the number of partitions that replace it.
            history: whether the events of the partition move to the new partitions too.

        Raises:
            RuntimeError: the log refused it; the text has the log's reason.
        """
        arguments: dict[str, str | int] = {"into": into, "history": str(history).lower()}
        answer = self._ask("POST", "split", arguments, f"/partitions/{partition}/split")
        after = [each for each in answer.json()["partitions"] if partition in _before(each)]
        return [str(each["id"]) for each in after]

    def options(self, format: str, **more: str) -> dict[str, str]:
        """Return the options by which a reader or writer of a format finds this stream.

        Args:
            format: ``amqp-events``, ``rabbitmq-stream`` or ``feedapi``.
            more: further options, such as ``startingOffsets="earliest"``.

        Raises:
            ValueError: the format is none of these.
        """
        found = next((entry for entry in PROTOCOLS.values() if entry.format == format and entry.door), None)
        if found is None:
            known = [entry.format for entry in PROTOCOLS.values() if entry.door]
            raise ValueError(f"'{format}' is no format: expected {', '.join(known[:-1])} or {known[-1]}")
        url = self.process.urls[found.name]
        if found.path == "any":
            return {"url": f"{url}/{self.name}"} | more
        which = found.stream_option if self.partitions == 1 else found.partitioned_option or found.stream_option
        return {"url": _signed_in(url), which: self.name} | more

    def produce(self, events: Iterable[object]) -> int:
        """Append events in their order, and return when the log has them.

        Args:
            events: an iterable of events. An event is a row, that is a mapping with ``value`` and any other column that
                a sink takes (``key``, ``partition``, ``timestamp``, ``properties``, ``application_properties``,
                ``message_annotations``), or with ``message``, a whole encoded AMQP 1.0 message, instead of ``value``;
                or the value alone. A value that is neither str nor bytes becomes JSON.

        Returns:
            The number of events.

        Raises:
            TypeError: ``events`` is one event, such as a string, whose letters would be events.
            ValueError: a row has a column that cannot be written.
            SparkStreamsError: the log did not take the events.
        """
        if isinstance(events, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(events, Iterable):
            raise TypeError(
                f"produce takes events, in a list or any other iterable, and this is one {type(events).__name__}: "
                "write produce([...]) around it"
            )
        rows = [_row(event) for event in events]
        if not rows:
            return 0
        names = [name for name in _WRITABLE if any(name in row for row in rows)]
        columns = {
            name: pa.array([row.get(name) for row in rows], FULL_MESSAGE_SCHEMA.field(name).type) for name in names
        }
        with self._client() as client:
            publisher = client.publisher(self.name)
            publisher.send(encode_columns(columns), lambda row: f"event {row}")
            publisher.flush()
            publisher.close()
        return len(rows)

    def begins(self) -> dict[str, str]:
        """Return the offset of the first event of each partition that has events; retention moves it."""
        return {partition: held.earliest for partition, held in self._bounds().items() if held.earliest is not None}

    def ends(self) -> dict[str, str]:
        """Return the offset of the last event of each partition that has events."""
        return {partition: held.latest for partition, held in self._bounds().items() if held.latest is not None}

    def table(self, columns: Sequence[str] = tuple(MESSAGE_SCHEMA.names)) -> pa.Table:
        """Return all events, in the order of partitions and offsets.

        Args:
            columns: columns of ``spark_streams.rows.FULL_MESSAGE_SCHEMA``, which has the encoded ``message`` too.

        Raises:
            TypeError: ``columns`` is one string.
            ValueError: a column does not exist.
        """
        if isinstance(columns, str):
            raise TypeError(f"table takes a list of columns: write table(['{columns}'])")
        for name in columns:
            if name not in FULL_MESSAGE_SCHEMA.names:
                raise ValueError(f"there is no column '{name}': {_near(name, FULL_MESSAGE_SCHEMA.names)}")
        batches: list[pa.RecordBatch] = []
        with self._client() as client:
            for partition, last in sorted(self.ends().items(), key=lambda each: int(each[0])):
                read = RangeRead(self.name, partition, EARLIEST, last, tuple(columns))
                batches.extend(client.fetch(read))
        return pa.Table.from_batches(batches, pa.schema([FULL_MESSAGE_SCHEMA.field(name) for name in columns]))

    def values(self) -> list[str | None]:
        """Return the values of all events as text, None for NULL, in the order of partitions and offsets."""
        values = self.table(["value"]).column("value").to_pylist()
        return [None if value is None else value.decode() for value in values]

    def dataframe(self, spark: SparkSession, *columns: str) -> DataFrame:
        """Return all events as a DataFrame, for chispa's ``assert_df_equality`` and the like.

        Args:
            spark: the session.
            columns: SQL expressions over the columns of format ``amqp-events``, such as ``string(value) AS value``;
                without any, the DataFrame has all columns.
        """
        frame = spark.read.format("amqp-events").options(**self.options("amqp-events")).load()
        ordered = frame.orderBy("partition", "offset")
        return ordered.selectExpr(*columns) if columns else ordered

    def _ask(
        self, method: str, done: str, arguments: Mapping[str, str | int] | None = None, path: str = ""
    ) -> requests.Response:
        url = f"{self.process.urls['feedapi']}/{self.name}{path}"
        answer = requests.request(method, url, params=arguments, timeout=_TIMEOUT_S)
        if answer.status_code not in (200, 201, 204):
            raise RuntimeError(f"stream '{self.name}' was not {done}: {answer.status_code} {answer.text.strip()}")
        return answer

    def _bounds(self) -> Mapping[str, Bounds]:
        with self._client() as client:
            return client.describe(self.name).partitions

    def _client(self) -> AmqpClient:
        return AmqpClient(parse_url(_signed_in(self.process.urls["amqp"])))


def _before(partition: Mapping[str, Any]) -> set[str]:
    """Return the partitions that a partition of a feed's discovery replaced."""
    found = [partition.get("startsAfterPartition"), *partition.get("cursorFromPartitions", ())]
    return {str(each) for each in found if each is not None}


def _row(event: object) -> dict[str, Any]:
    row = dict(event) if isinstance(event, Mapping) and ("value" in event or "message" in event) else {"value": event}
    unknown = [name for name in row if name not in _WRITABLE]
    if unknown:
        raise ValueError(f"column '{unknown[0]}' cannot be written: {_near(unknown[0], _WRITABLE)}")
    beside = [name for name, value in row.items() if value is not None and name not in ("message", "partition")]
    if row.get("message") is not None and beside:
        raise ValueError(f"column '{beside[0]}' cannot stand beside 'message', which is a whole message: leave it out")
    value = row.get("value")
    if isinstance(value, str):
        row["value"] = value.encode()
    elif not isinstance(value, (bytes, type(None))):
        row["value"] = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return row


def _near(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown name: the nearest known name, and all known names."""
    found = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    return (f"did you mean '{found[0]}'? " if found else "") + f"expected {', '.join(known)}"


def _signed_in(url: str) -> str:
    return url.replace("//", "//guest:guest@", 1)
