"""Shows the lag, rates, pushed filters and losses of events of every query of a session.

::

    from spark_streams.monitoring import StreamProgressListener, observed

    spark.streams.addListener(StreamProgressListener(lambda progress: print(progress.to_json())))
    orders = observed(spark.readStream.format("amqp-events").options(**options).load())

Guide: docs/monitoring.md.
"""

from spark_streams.client.data_loss import DataLoss
from spark_streams.spark.progress.listener import PartitionProgress, Progress, StreamProgressListener, observed

__all__ = ["DataLoss", "PartitionProgress", "Progress", "StreamProgressListener", "observed"]
