"""Exports the clients of logs: blocking, one object a task. Nothing here imports Spark or the server.

``encode_columns`` belongs to the codec: it encodes what a publisher sends, so that sinks need not import ``wire``.
"""

from spark_streams.client.amqp.client import AmqpClient
from spark_streams.client.amqp.publisher import Publisher
from spark_streams.client.digested_rows import TaskIdentity
from spark_streams.client.log_client import Bounds, OffsetWalk, RangeRead, StreamDescription
from spark_streams.client.rabbitmq.client import RabbitClient
from spark_streams.client.rabbitmq.pushdown import FilterValues
from spark_streams.client.rabbitmq.subscription import Consumer
from spark_streams.client.rabbitmq.task_publisher import RabbitPublishing, TaskPublisher
from spark_streams.wire.amqp.columns.encode import encode_columns

__all__ = [
    "AmqpClient",
    "Bounds",
    "Consumer",
    "FilterValues",
    "OffsetWalk",
    "Publisher",
    "RabbitClient",
    "RabbitPublishing",
    "RangeRead",
    "StreamDescription",
    "TaskIdentity",
    "TaskPublisher",
    "encode_columns",
]
