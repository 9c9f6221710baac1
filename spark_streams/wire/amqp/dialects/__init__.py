"""The dialects of AMQP 1.0 that event logs speak: the OASIS draft, RabbitMQ 4, and Azure Event Hubs."""

from __future__ import annotations

from typing import Final

from spark_streams.wire.amqp.dialects.dialect import AUTO, Dialect, Seen
from spark_streams.wire.amqp.dialects.event_hubs import EVENT_HUBS
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.dialects.rabbitmq import RABBITMQ

DIALECTS: Final = {dialect.name: dialect for dialect in (EVENT_STREAMS, RABBITMQ, EVENT_HUBS)}
"""Name to dialect, in the order in which a peer is tried."""


def dialect_of(seen: Seen) -> Dialect | None:
    """Return the dialect of a peer by the signs that it has shown; None where none fits."""
    return next((dialect for dialect in DIALECTS.values() if dialect.recognised(seen)), None)


__all__ = ["AUTO", "DIALECTS", "EVENT_HUBS", "EVENT_STREAMS", "RABBITMQ", "Dialect", "Seen", "dialect_of"]
