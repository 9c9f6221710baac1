"""Having Spark count the events and bytes of a stream: what tasks read is nowhere else in a query's progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["OBSERVATION", "observation_name", "observed"]

OBSERVATION: Final = "spark-streams"
"""Name of the observation, followed by a blank and the stream's name where that is given."""


def observation_name(stream: str | None) -> str:
    """Return the name that the observation of a stream has in ``StreamingQueryProgress.observedMetrics``."""
    return OBSERVATION if not stream else f"{OBSERVATION} {stream}"


def observed(frame: DataFrame, stream: str | None = None, partitions: Iterable[str] = ()) -> DataFrame:
    """Return a stream whose progress tells how many events and bytes each micro-batch had.

    It is ``DataFrame.observe``: Spark's own aggregates over the rows, which cost what a ``sum`` costs, in every
    deployment, Spark Connect too. Apply it to what ``load()`` returns, before anything drops rows.

    Args:
        frame: a stream of any format, with column ``value``; with ``partition`` where partitions are named.
        stream: its name, as in column ``stream``; needed only in a query with several streams.
        partitions: those whose bytes are told one by one; others are in the sum only.
    """
    from pyspark.sql import functions as f

    size = f.octet_length("value")

    def total(of: Column, name: str) -> Column:
        return f.coalesce(f.sum(of), f.lit(0)).alias(name)

    each = [total(f.when(f.col("partition") == name, size), f"bytes of {name}") for name in partitions]
    count = f.count(f.lit(1)).alias("events")
    return frame.observe(observation_name(stream), count, total(size, "bytes"), *each)
