"""Format ``amqp-events``: AMQP 1.0 event streams (OASIS Event Stream Extensions), for reading and writing.

docs/amqp-events.md tells users about options, rows and guarantees.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_streams.client import AmqpClient
from spark_streams.options import RedactedOptions, SourceOptions, parse_sink_options, parse_source, validate
from spark_streams.options.amqp_events import AmqpSourceOptions
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.schemas import spark_schema
from spark_streams.spark.source.reader import LogSource, StreamReader, batch_reader

FORMAT = "amqp-events"


def connect(options: SourceOptions) -> AmqpClient:
    """Return a client for the peer that the options name."""
    chosen = cast(AmqpSourceOptions, options)
    return AmqpClient(
        chosen.endpoint,
        timeout_ms=chosen.request_timeout_ms,
        consumer_group=chosen.consumer_group,
        epoch=chosen.epoch,
    )


class AmqpEventsDataSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("amqp-events")``, and the same for ``readStream``, ``write`` and ``writeStream``.

    Args:
        options: as Spark hands them over.

    Raises:
        OptionError: an option that is unknown, has a bad value, or contradicts another.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        validate(options)
        super().__init__(RedactedOptions(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the default rows, for a reader whose user gives no schema."""
        validate(self.options, reading=True)
        return spark_schema(MESSAGE_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = parse_source(self.options, streaming=False)
        return batch_reader(options, schema, FULL_MESSAGE_SCHEMA, LogSource(connect))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        options = parse_source(self.options, streaming=True)
        return StreamReader(options, schema, FULL_MESSAGE_SCHEMA, LogSource(connect))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a batch query."""
        from spark_streams.sinks.amqp_events import AmqpSink

        from spark_streams.spark.sink.writer import batch_writer

        return batch_writer(AmqpSink(parse_sink_options(self.options)), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a stream."""
        from spark_streams.sinks.amqp_events import AmqpSink

        from spark_streams.spark.sink.writer import stream_writer

        return stream_writer(AmqpSink(parse_sink_options(self.options)), schema, overwrite)
