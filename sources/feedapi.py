"""Format ``feedapi``: feeds over HTTP, FeedAPI version 2 and ZeroEventHub, for reading and writing.

docs/feedapi.md tells users about options, rows and guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from spark_streams.options import feedapi
from spark_streams.options.feedapi import FeedSourceOptions
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.formats import FormatDataSource

if TYPE_CHECKING:
    from spark_streams.spark.feed.reader import FeedSource
    from spark_streams.spark.sink.sink import Sink


class FeedDataSource(FormatDataSource):
    """``spark.read.format("feedapi")``, and the same for ``readStream``, ``write`` and ``writeStream``."""

    rows = COMMON_SCHEMA
    default_rows = COMMON_SCHEMA
    parsers: ClassVar = feedapi

    def source(self, options: FeedSourceOptions) -> FeedSource:
        """Return the feed as a source."""
        from spark_streams.spark.feed.reader import FeedSource

        return FeedSource()

    def sink(self) -> Sink:
        """Return the sink."""
        from spark_streams.sinks.feedapi import FeedSink

        return FeedSink(feedapi.parse_sink(self.options))
