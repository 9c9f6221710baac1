"""Format ``amqp-events``: AMQP 1.0 event streams (OASIS Event Stream Extensions), for reading and writing.

docs/amqp-events.md tells users about options, rows and guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from spark_streams.options import amqp_events
from spark_streams.options.amqp_events import AmqpSourceOptions, dialect_named
from spark_streams.options.common import SourceOptions
from spark_streams.rows import FULL_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.formats import FormatDataSource

if TYPE_CHECKING:
    from spark_streams.client.amqp.client import AmqpClient
    from spark_streams.spark.sink.sink import Sink
    from spark_streams.spark.source.reader import LogSource


def connect(options: SourceOptions) -> AmqpClient:
    """Return a client for the peer that the options name."""
    from spark_streams.client.amqp.client import AmqpClient
    from spark_streams.client.amqp.dialects.rabbitmq import RabbitInquiries

    chosen = cast(AmqpSourceOptions, options)
    return AmqpClient(
        chosen.endpoint,
        timeout_ms=chosen.request_timeout_ms,
        dialect=dialect_named(chosen.dialect, chosen.key_annotation),
        consumer_group=chosen.consumer_group,
        epoch=chosen.epoch,
        rabbitmq=RabbitInquiries(chosen.super_stream, chosen.filter_value_from, chosen.match_unfiltered),
    )


class AmqpEventsDataSource(FormatDataSource):
    """``spark.read.format("amqp-events")``, and the same for ``readStream``, ``write`` and ``writeStream``."""

    rows = FULL_MESSAGE_SCHEMA
    default_rows = MESSAGE_SCHEMA
    parsers: ClassVar = amqp_events

    def source(self, options: SourceOptions) -> LogSource:
        """Return the log that the options name."""
        from spark_streams.spark.source.reader import LogSource

        return LogSource(connect)

    def sink(self) -> Sink:
        """Return the sink."""
        from spark_streams.sinks.amqp_events import AmqpSink

        return AmqpSink(amqp_events.parse_sink(self.options))
