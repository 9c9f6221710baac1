"""Found by Spark: it imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``."""

from spark_streams.sources.feedapi import FeedDataSource as DefaultSource

__all__ = ["DefaultSource"]
