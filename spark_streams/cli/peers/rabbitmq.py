"""RabbitMQ peers of the command line."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.cli.peers.log_peer import LogPeer, messages
from spark_streams.cli.peers.peer import TIMEOUT_MS, PeerWriter
from spark_streams.client import RabbitClient, RabbitPublishing, StreamDescription, TaskPublisher
from spark_streams.errors import NotFound

__all__ = ["RabbitPeer"]


class RabbitPeer(LogPeer):
    """A stream or a super stream of a RabbitMQ broker."""

    kind: ClassVar = "RabbitMQ broker"
    no_list: ClassVar = "the RabbitMQ stream protocol has no command that lists the streams of a broker"

    def client(self) -> RabbitClient:
        """Return a client of the stream, or of the super stream; see ``LogPeer.client``."""
        return RabbitClient(self.endpoint, super_stream=self.is_super_stream(), timeout_ms=TIMEOUT_MS)

    def peer_client(self) -> RabbitClient:
        """Return a client of the broker; to be closed."""
        return RabbitClient(self.endpoint, timeout_ms=TIMEOUT_MS)

    def is_super_stream(self) -> bool:
        """Ask the broker whether the name is a super stream's; one that is neither is taken for a stream."""
        with RabbitClient(self.endpoint, super_stream=True, timeout_ms=TIMEOUT_MS) as client:
            try:
                client.partitions(self.stream)
            except NotFound:
                return False
        return True

    def stream_kind(self, description: StreamDescription) -> str:
        """Return what the stream is called; the one partition of a stream is the stream itself."""
        plain = {*description.partitions, *description.unavailable} == {self.stream}
        return "RabbitMQ stream" if plain else "RabbitMQ super stream"

    def open_writer(self) -> PeerWriter:
        """Return a writer; see ``Peer.open_writer``."""
        return _RabbitWriter(self)


class _RabbitWriter(PeerWriter):
    def __init__(self, peer: RabbitPeer) -> None:
        self._stream = None if peer.is_super_stream() else peer.stream
        if self._stream is not None:
            with RabbitClient(peer.endpoint, timeout_ms=TIMEOUT_MS) as client:
                client.check(self._stream)
        how = RabbitPublishing(super_stream=peer.stream if self._stream is None else None, timeout_ms=TIMEOUT_MS)
        self._publisher = TaskPublisher(peer.endpoint, how, None)
        super().__init__(self._publisher)

    def send(self, rows: pa.RecordBatch) -> None:
        # What has no key stays together with what it was together with, and so in its order.
        keys = pc.coalesce(rows.column("key"), rows.column("partition"))
        places = keys if self._stream is None else self._stream
        self._publisher.send(messages(rows), places, None, self._label(rows))

    def flush(self) -> None:
        self._publisher.flush()
