"""The reference log: one durable, partitioned log in files of its own, which the doors of the server serve."""

from spark_streams.log.config import LogConfig, StreamConfig
from spark_streams.log.format.record_batch import NO_TIMESTAMP, Header, TimestampRefused
from spark_streams.log.format.records import Records
from spark_streams.log.reference_log import ReferenceLog
from spark_streams.log.state_store import StateStore
from spark_streams.log.storage.batch_walk import StoredBatch
from spark_streams.log.storage.partition import Appended, Partition
from spark_streams.log.stream import Stream
from spark_streams.offsets import format_offset

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
