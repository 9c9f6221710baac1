"""Holds the client of feeds over HTTP: FeedAPI version 2 and ZeroEventHub, blocking, without Spark.

It exports the types of the wire format that the client returns, so that layers above it need not import the codec.
"""

from spark_streams.wire.feed.discovery import Discovery, FeedPartition
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import Lines

__all__ = ["Dialect", "Discovery", "FeedPartition", "Lines"]
