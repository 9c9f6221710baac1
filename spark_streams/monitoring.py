"""Shows the lag, rates, pushed filters, losses and retries of every query of a session.

::

    from spark_streams.monitoring import PrometheusMetrics, StreamProgressListener, observed

    spark.streams.addListener(StreamProgressListener(PrometheusMetrics()))
    orders = observed(spark.readStream.format("amqp-events").options(**options).load())

Guide: docs/monitoring.md.
"""

from spark_streams.client.data_loss import DataLoss
from spark_streams.spark.progress.listener import PartitionProgress, Progress, StreamProgressListener, observed
from spark_streams.spark.progress.opentelemetry import OpenTelemetryMetrics
from spark_streams.spark.progress.prometheus import PrometheusMetrics

__all__ = [
    "DataLoss",
    "OpenTelemetryMetrics",
    "PartitionProgress",
    "Progress",
    "PrometheusMetrics",
    "StreamProgressListener",
    "observed",
]
