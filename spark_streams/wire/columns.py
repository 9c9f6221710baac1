"""Whole blocks of messages to Arrow columns and back; what the parts of this package offer to others.

``decode_columns`` and ``incoming_columns`` read, ``encode_columns`` and ``delivery_annotations`` write.
"""

from __future__ import annotations

from spark_streams.wire.annotations import delivery_annotations
from spark_streams.wire.columns_decode import COLUMN_TYPES, Block, decode_columns
from spark_streams.wire.columns_encode import encode_columns
from spark_streams.wire.columns_incoming import Incoming, incoming_columns
from spark_streams.wire.columns_row import NO_TIMESTAMP, Overflow, TimestampOverflow

__all__ = [
    "COLUMN_TYPES",
    "NO_TIMESTAMP",
    "Block",
    "Incoming",
    "Overflow",
    "TimestampOverflow",
    "decode_columns",
    "delivery_annotations",
    "encode_columns",
    "incoming_columns",
]
