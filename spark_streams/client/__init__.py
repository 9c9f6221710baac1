"""Clients: blocking connections out, one object a task. Nothing here imports Spark or the server.

``encode_columns`` is the codec's: what a publisher sends is made by it, and sinks see no wire.
"""

from spark_streams.client.amqp import AmqpClient
from spark_streams.client.model import Bounds, Consumer, FilterValues, RangeRead, StreamDescription
from spark_streams.client.publisher import Publisher
from spark_streams.client.rabbit.client import RabbitClient
from spark_streams.client.rabbit.task_publisher import RabbitPublishing, TaskIdentity, TaskPublisher
from spark_streams.client.walk import OffsetWalk
from spark_streams.wire.columns import encode_columns

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
