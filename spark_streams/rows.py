"""Defines the row that all three formats read and write, as an Arrow schema.

The first six columns are the same in all formats, so that a query can union streams of different brokers. Rows of AMQP
and RabbitMQ go on with the message's sections. A row has ``message``, the whole encoded message, only when the user's
schema names it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from spark_streams.wire.amqp.columns.properties import PROPERTIES_TYPE as PROPERTIES_TYPE

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Spark's TIMESTAMP in Arrow: microseconds since the epoch, in UTC."""

COMMON_SCHEMA: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("stream", pa.string()),
        ("partition", pa.string()),
        ("offset", pa.string()),
        ("timestamp", TIMESTAMP),
    ]
)
"""value, key, stream, partition, offset, timestamp."""

MESSAGE_SCHEMA: Final = pa.schema(
    [
        *COMMON_SCHEMA,
        ("properties", PROPERTIES_TYPE),
        ("application_properties", pa.map_(pa.string(), pa.string())),
        ("message_annotations", pa.map_(pa.string(), pa.string())),
    ]
)
"""The default row of ``amqp-events`` and ``rabbitmq-stream``."""

FULL_MESSAGE_SCHEMA: Final = pa.schema([*MESSAGE_SCHEMA, ("message", pa.binary())])
"""All columns that a user's schema may name; ``message`` is the whole encoded message."""
