"""The reference log: one durable, partitioned log in our own files; it knows nothing of the doors that stand on it."""

from spark_streams.log.config import LogConfig, StreamConfig
from spark_streams.log.offsets import format_offset
from spark_streams.log.partition import Appended, Partition
from spark_streams.log.record_batch import Header
from spark_streams.log.records import Records
from spark_streams.log.reference_log import ReferenceLog
from spark_streams.log.state import StateStore
from spark_streams.log.stored_batches import StoredBatch
from spark_streams.log.stream import Stream
from spark_streams.log.timestamps import NO_TIMESTAMP, TimestampRefused

__all__ = [
    "NO_TIMESTAMP",
    "Appended",
    "Header",
    "LogConfig",
    "Partition",
    "Records",
    "ReferenceLog",
    "StateStore",
    "StoredBatch",
    "Stream",
    "StreamConfig",
    "TimestampRefused",
    "format_offset",
]
