"""Format ``rabbitmq-stream``: streams and super streams of RabbitMQ, for reading and writing.

docs/rabbitmq-stream.md tells users about options, rows and guarantees.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_streams.client import Consumer, FilterValues, RabbitClient
from spark_streams.options import (
    RabbitSourceOptions,
    RedactedOptions,
    SourceOptions,
    parse_rabbit_sink,
    parse_rabbit_source,
    validate_rabbit,
)
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.schemas import spark_schema
from spark_streams.spark.source.reader import LogSource, StreamReader, batch_reader

FORMAT = "rabbitmq-stream"


def connect(options: SourceOptions) -> RabbitClient:
    """Return a client for the broker that the options name."""
    chosen = cast(RabbitSourceOptions, options)
    filters = None
    if chosen.filter_value_from is not None:
        filters = FilterValues(chosen.filter_values, chosen.match_unfiltered, chosen.filter_value_from)
    consumer = None
    if chosen.consumer_name is not None:
        consumer = Consumer(chosen.consumer_name, chosen.single_active_consumer)
    return RabbitClient(
        chosen.endpoint,
        super_stream=chosen.super_stream,
        timeout_ms=chosen.request_timeout_ms,
        filters=filters,
        consumer=consumer,
    )


def connect_store(options: SourceOptions) -> RabbitClient:
    """Return a client that stores offsets under the consumer's name; it is in no group and reads all messages."""
    chosen = cast(RabbitSourceOptions, options)
    return connect(replace(chosen, filter_values=(), single_active_consumer=False))


class RabbitStreamDataSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("rabbitmq-stream")``, and the same for ``readStream``, ``write`` and ``writeStream``.

    Args:
        options: as Spark hands them over.

    Raises:
        OptionError: an option that is unknown, has a bad value, or contradicts another.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        validate_rabbit(options)
        super().__init__(RedactedOptions(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the default rows, for a reader whose user gives no schema."""
        validate_rabbit(self.options, reading=True)
        return spark_schema(MESSAGE_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = parse_rabbit_source(self.options, streaming=False)
        return batch_reader(options, schema, FULL_MESSAGE_SCHEMA, LogSource(connect))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        options = parse_rabbit_source(self.options, streaming=True)
        store = connect_store if options.store_offsets else None
        return StreamReader(options, schema, FULL_MESSAGE_SCHEMA, LogSource(connect, store))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a batch query."""
        from spark_streams.sinks.rabbitmq_stream import RabbitSink

        from spark_streams.spark.sink.writer import batch_writer

        return batch_writer(RabbitSink(parse_rabbit_sink(self.options)), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a stream."""
        from spark_streams.sinks.rabbitmq_stream import RabbitSink

        from spark_streams.spark.sink.writer import stream_writer

        return stream_writer(RabbitSink(parse_rabbit_sink(self.options)), schema, overwrite)
