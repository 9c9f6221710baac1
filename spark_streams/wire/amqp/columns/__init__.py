"""Decode blocks of messages to Arrow columns, and encode columns to messages; this package's interface.

``decode_columns`` and ``incoming_columns`` read, ``encode_columns`` and ``delivery_annotations`` write.
"""

from __future__ import annotations

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES, decode_columns
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.columns.from_producers import Incoming, incoming_columns
from spark_streams.wire.amqp.columns.single_message import Overflow, TimestampOverflow
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP, delivery_annotations

__all__ = [
    "COLUMN_TYPES",
    "NO_TIMESTAMP",
    "Incoming",
    "MessageBlock",
    "Overflow",
    "TimestampOverflow",
    "decode_columns",
    "delivery_annotations",
    "encode_columns",
    "incoming_columns",
]
