"""Exports the clients of logs: blocking, one object per task. Nothing here imports Spark or the server.

Each name is imported when it is first used, so a reader of RabbitMQ does not load the engine of AMQP.

``encode_columns`` belongs to the codec: it encodes what a publisher sends, so that sinks need not import ``wire``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_streams.client.amqp.client import AmqpClient as AmqpClient
    from spark_streams.client.amqp.publisher import Publisher as Publisher
    from spark_streams.client.digested_rows import TaskIdentity as TaskIdentity
    from spark_streams.client.log_client import Bounds as Bounds
    from spark_streams.client.log_client import OffsetWalk as OffsetWalk
    from spark_streams.client.log_client import RangeRead as RangeRead
    from spark_streams.client.log_client import StreamDescription as StreamDescription
    from spark_streams.client.rabbitmq.client import RabbitClient as RabbitClient
    from spark_streams.client.rabbitmq.pushdown import FilterValues as FilterValues
    from spark_streams.client.rabbitmq.routing import key_hash as key_hash
    from spark_streams.client.rabbitmq.subscription import Consumer as Consumer
    from spark_streams.client.rabbitmq.task_publisher import TaskPublisher as TaskPublisher
    from spark_streams.wire.amqp.columns.encode import encode_columns as encode_columns
    from spark_streams.wire.rabbitmq.publish_encode import RabbitPublishing as RabbitPublishing

_HOMES: Final = {
    "spark_streams.client.amqp.client": ("AmqpClient",),
    "spark_streams.client.log_client": ("Bounds", "OffsetWalk", "RangeRead", "StreamDescription"),
    "spark_streams.client.rabbitmq.subscription": ("Consumer",),
    "spark_streams.client.rabbitmq.pushdown": ("FilterValues",),
    "spark_streams.client.amqp.publisher": ("Publisher",),
    "spark_streams.client.rabbitmq.client": ("RabbitClient",),
    "spark_streams.client.rabbitmq.task_publisher": ("TaskPublisher",),
    "spark_streams.client.digested_rows": ("TaskIdentity",),
    "spark_streams.client.rabbitmq.routing": ("key_hash",),
    "spark_streams.wire.amqp.columns.encode": ("encode_columns",),
    "spark_streams.wire.rabbitmq.publish_encode": ("RabbitPublishing",),
}
"""Module to the names that it exports; none is the name of a module of this package, which Python would set."""

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(home), name)
    return value
