"""Format ``rabbitmq-stream``: streams and super streams of RabbitMQ, for reading and writing.

docs/rabbitmq-stream.md tells users about options, rows and guarantees.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from spark_streams.options import rabbitmq_stream
from spark_streams.options.common import SourceOptions
from spark_streams.options.rabbitmq_stream import RabbitSourceOptions
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.formats import FormatDataSource

if TYPE_CHECKING:
    from spark_streams.client.rabbitmq.client import RabbitClient
    from spark_streams.spark.sink.sink import Sink
    from spark_streams.spark.source.reader import LogSource


def connect(options: SourceOptions) -> RabbitClient:
    """Return a client for the broker that the options name."""
    from spark_streams.client.rabbitmq.client import RabbitClient
    from spark_streams.client.rabbitmq.pushdown import FilterValues
    from spark_streams.client.rabbitmq.subscription import Consumer

    chosen = cast(RabbitSourceOptions, options)
    filters = None
    if chosen.filter_value_from is not None:
        filters = FilterValues(chosen.filter_values, chosen.match_unfiltered, chosen.filter_value_from)
    consumer = None
    if chosen.consumer_name is not None:
        consumer = Consumer(chosen.consumer_name, chosen.single_active_consumer)
    return RabbitClient(
        chosen.endpoint,
        super_stream=chosen.super_stream,
        timeout_ms=chosen.request_timeout_ms,
        filters=filters,
        consumer=consumer,
    )


def connect_store(options: SourceOptions) -> RabbitClient:
    """Return a client that stores offsets under the consumer's name; it is in no group and reads all messages."""
    chosen = cast(RabbitSourceOptions, options)
    return connect(replace(chosen, filter_values=(), single_active_consumer=False))


class RabbitStreamDataSource(FormatDataSource):
    """``spark.read.format("rabbitmq-stream")``, and the same for ``readStream``, ``write`` and ``writeStream``.

    With ``storeOffsets`` a stream stores the positions of committed batches with the broker, over a connection of its
    own (``connect_store``).
    """

    rows = FULL_MESSAGE_SCHEMA
    default_rows = MESSAGE_SCHEMA
    parsers: ClassVar = rabbitmq_stream

    def source(self, options: RabbitSourceOptions) -> LogSource:
        """Return the stream that the options name, with a store of positions if the query has one."""
        from spark_streams.spark.source.reader import LogSource

        return LogSource(connect, connect_store if options.store_offsets else None)

    def sink(self) -> Sink:
        """Return the sink."""
        from spark_streams.sinks.rabbitmq_stream import RabbitSink

        return RabbitSink(rabbitmq_stream.parse_sink(self.options))
