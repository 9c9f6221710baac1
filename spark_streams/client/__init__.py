"""Exports the clients of logs: blocking, one object a task. Nothing here imports Spark or the server.

Each name is imported when it is first used: who reads RabbitMQ does not load the engine of AMQP.

``encode_columns`` belongs to the codec: it encodes what a publisher sends, so that sinks need not import ``wire``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_streams.client.amqp.client import AmqpClient
    from spark_streams.client.amqp.publisher import Publisher
    from spark_streams.client.digested_rows import TaskIdentity
    from spark_streams.client.log_client import Bounds, OffsetWalk, RangeRead, StreamDescription
    from spark_streams.client.rabbitmq.client import RabbitClient
    from spark_streams.client.rabbitmq.pushdown import FilterValues
    from spark_streams.client.rabbitmq.routing import key_hash
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
    "key_hash",
]

_HOMES: Final = {
    "spark_streams.client.amqp.client": ("AmqpClient",),
    "spark_streams.client.log_client": ("Bounds", "OffsetWalk", "RangeRead", "StreamDescription"),
    "spark_streams.client.rabbitmq.subscription": ("Consumer",),
    "spark_streams.client.rabbitmq.pushdown": ("FilterValues",),
    "spark_streams.client.amqp.publisher": ("Publisher",),
    "spark_streams.client.rabbitmq.client": ("RabbitClient",),
    "spark_streams.client.rabbitmq.task_publisher": ("RabbitPublishing", "TaskPublisher"),
    "spark_streams.client.digested_rows": ("TaskIdentity",),
    "spark_streams.client.rabbitmq.routing": ("key_hash",),
    "spark_streams.wire.amqp.columns.encode": ("encode_columns",),
}
"""Module to what is exported from it; no name is that of a module of this package, which Python would put there."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(home), name)
    return value
