"""A pipeline as one deploys it: what to compute, apart from where events come from and go to."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


def large_orders(orders: DataFrame) -> DataFrame:
    """Return the orders above 100 euros, by customer."""
    parsed = orders.selectExpr("from_json(string(value), 'id int, customer string, eur double') AS o", "value")
    return parsed.where("o.eur > 100").selectExpr("value", "o.customer AS key")


def start(
    spark: SparkSession,
    source: tuple[str, Mapping[str, str]],
    sink: tuple[str, Mapping[str, str]],
    checkpoint: str,
    **trigger: object,
) -> StreamingQuery:
    """Start the query.

    Args:
        spark: the session.
        source: format and options of what is read.
        sink: format and options of what is written.
        checkpoint: folder of the checkpoint.
        trigger: as for ``DataStreamWriter.trigger``.
    """
    source_format, source_options = source
    sink_format, sink_options = sink
    orders = spark.readStream.format(source_format).options(**source_options).option("startingOffsets", "earliest")
    writer = large_orders(orders.load()).writeStream.format(sink_format).options(**sink_options)
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
