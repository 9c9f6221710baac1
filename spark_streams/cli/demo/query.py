"""The streaming query of the demo: orders in, priced orders out."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import spark_streams
from spark_streams.cli.demo.orders import VAT_PERCENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["new_session", "start_query"]


def new_session() -> SparkSession:
    """Start Spark; its settings are those of conf/spark-defaults.conf, which Spark reads itself.

    Only the JVM's temporary folder is set here, so that what it unpacks goes with the demo.
    """
    from pyspark.sql import SparkSession

    options = f"-XX:-UsePerfData -Djava.io.tmpdir={tempfile.gettempdir()}"
    builder = SparkSession.builder.appName("spark-streams-demo").config("spark.driver.extraJavaOptions", options)
    spark = builder.getOrCreate()
    spark_streams.register(spark)
    return spark


def start_query(spark: SparkSession, url: str, source: str, sink: str, checkpoint: str) -> StreamingQuery:
    """Read ``source`` from its beginning, price each order, and write it to ``sink`` under the same key and time."""
    from pyspark.sql import functions as F

    orders = (
        spark.readStream.format("amqp-events")
        .option("url", url)
        .option("stream", source)
        .option("startingOffsets", "earliest")
        .schema("value binary, key string, timestamp timestamp")
        .load()
    )
    order = F.from_json(
        F.col("value").cast("string"),
        "order long, customer string, item string, quantity int, price_cents long, country string",
    )
    net = F.col("o.quantity") * F.col("o.price_cents")
    priced = orders.withColumn("o", order).select(
        F.to_json(
            F.struct(
                "o.*",
                net.alias("net_cents"),
                F.round(net * VAT_PERCENT / 100).cast("long").alias("vat_cents"),
                F.when(F.col("timestamp") < F.lit("1970-01-01").cast("timestamp"), "ledger")
                .otherwise("shop")
                .alias("origin"),
            )
        ).alias("value"),
        "key",
        "timestamp",
    )
    return (
        priced.writeStream.format("amqp-events")
        .queryName("price-orders")
        .option("url", url)
        .option("stream", sink)
        .option("checkpointLocation", checkpoint)
        .start()
    )
