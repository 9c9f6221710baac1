"""The state that all connections of the RabbitMQ door share: the log, its topology, appends, chunks and settings."""

from __future__ import annotations

import asyncio
from functools import partial

from spark_streams.log.publisher_sequences import Sequences
from spark_streams.server.door import DoorNode
from spark_streams.server.partition_readers import PartitionReader, PartitionReaders
from spark_streams.server.rabbitmq.chunk_cache import ChunkCache
from spark_streams.server.rabbitmq.chunks import Chunks
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.server.rabbitmq.publish_append import PUBLISHERS
from spark_streams.server.rabbitmq.single_active import Groups
from spark_streams.server.rabbitmq.stored_offsets import StoredOffsets
from spark_streams.server.rabbitmq.topology import Served, Topology
from spark_streams.server.turns import Worker


class RabbitNode(DoorNode):
    """A served log; see ``DoorNode``.

    Attributes:
        sequences: the publishers of all partitions, with their last publishing ids.
        publish_lock: held while entries are inflated, and until they are stored.
        topology: the streams.
        offsets: the offsets that consumers store.
        groups: the single active consumers.
        readers: the partitions that subscriptions read.
    """

    config: RabbitConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        log, config, loop = self.log, self.config, self.loop
        self.sequences = Sequences(log, config.max_publishers, PUBLISHERS)
        self.publish_lock = asyncio.Lock()
        # A thread of its own: computations need not wait for the disk.
        self._disk = Worker("spark-streams-changes")
        self.topology = Topology(log, config.max_super_stream_partitions, self._disk)
        self.offsets = StoredOffsets(log, loop, self._disk, config.max_stored_offsets)
        self.groups = Groups()
        self.readers = PartitionReaders(loop, PartitionReader)
        self._chunks: dict[str, Chunks] = {}
        self._chunk_cache = ChunkCache(log.data_dir)

    def chunks(self, served: Served) -> Chunks:
        """Return a stream's chunks, which all subscriptions share."""
        found = self._chunks.get(served.key)
        if found is None:
            found = self._chunks[served.key] = Chunks(served.partition, self._chunk_cache)
        return found

    def follow(self) -> None:
        """Report to all connections which streams are gone; one that was deleted and created again counts as gone."""
        gone = self.topology.changed()
        if not gone:
            return
        for connection in list(self.connections):
            connection.guarded(partial(connection.streams_gone, gone))
        streams = self.log.streams()
        partitions = {f"{stream.incarnation}/{name}" for stream in streams for name in stream.partitions}
        for key in self._chunks.keys() - partitions:
            self._chunks.pop(key).close()
        deleted = {key.partition("/")[0] for key in gone.values()} - {stream.incarnation for stream in streams}
        for incarnation in deleted:
            self.sequences.forget(incarnation)
            self.offsets.forget(incarnation)

    def close(self) -> None:
        """Write durable state to the log; call it after all connections have ended."""
        self._disk.close()
        super().close()
        for chunks in self._chunks.values():
            chunks.close()
        self.offsets.close()
        self.sequences.close()
