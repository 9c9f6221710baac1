"""The client of feeds over HTTP: FeedAPI version 2 and ZeroEventHub, blocking, without Spark.

What the client hands on of the wire format is named here, so that those above it need not know the codec.
"""

from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.discovery import Discovery, FeedPartition
from spark_streams.wire.feed.lines import LineBlocks, Lines, parse_lines

__all__ = ["Dialect", "Discovery", "FeedPartition", "LineBlocks", "Lines", "parse_lines"]
