"""Clients: blocking connections out, one object a task. Nothing here imports Spark or the server.

``encode_columns`` is the codec's: what a publisher sends is made by it, and sinks see no wire.
"""

from spark_streams.client.amqp import AmqpClient
from spark_streams.client.model import Bounds, RangeRead, StreamDescription
from spark_streams.client.publisher import Publisher
from spark_streams.client.walk import OffsetWalk
from spark_streams.wire.columns import encode_columns

__all__ = ["AmqpClient", "Bounds", "OffsetWalk", "Publisher", "RangeRead", "StreamDescription", "encode_columns"]
