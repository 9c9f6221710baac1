"""Format ``feedapi``: feeds over HTTP, FeedAPI version 2 and ZeroEventHub, for reading and writing.

docs/feedapi.md tells users about options, rows and guarantees.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_streams.options import RedactedOptions
from spark_streams.options.feedapi import parse_feed_sink, parse_feed_source, validate_feed
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.feed.reader import FeedSource
from spark_streams.spark.schemas import spark_schema
from spark_streams.spark.source.reader import StreamReader, batch_reader

FORMAT = "feedapi"


class FeedDataSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("feedapi")``, and the same for ``readStream``, ``write`` and ``writeStream``.

    Args:
        options: as Spark hands them over.

    Raises:
        OptionError: an option that is unknown, has a bad value, or contradicts another.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        validate_feed(options)
        super().__init__(RedactedOptions(options))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the default rows, for a reader whose user gives no schema."""
        validate_feed(self.options, reading=True)
        return spark_schema(COMMON_SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = parse_feed_source(self.options, streaming=False)
        return batch_reader(options, schema, COMMON_SCHEMA, FeedSource())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        options = parse_feed_source(self.options, streaming=True)
        return StreamReader(options, schema, COMMON_SCHEMA, FeedSource())

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a batch query."""
        from spark_streams.sinks.feedapi import FeedSink

        from spark_streams.spark.sink.writer import batch_writer

        return batch_writer(FeedSink(parse_feed_sink(self.options)), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a stream."""
        from spark_streams.sinks.feedapi import FeedSink

        from spark_streams.spark.sink.writer import stream_writer

        return stream_writer(FeedSink(parse_feed_sink(self.options)), schema, overwrite)
