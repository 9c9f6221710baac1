"""AMQP peers of the command line."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from spark_streams.cli.peers.log_peer import LogPeer, messages
from spark_streams.cli.peers.peer import TIMEOUT_MS, Peer, PeerWriter
from spark_streams.client import AmqpClient, StreamDescription

__all__ = ["AmqpPeer"]


class AmqpPeer(LogPeer):
    """An event stream of an AMQP peer."""

    kind: ClassVar = "AMQP peer"
    no_list: ClassVar = "AMQP has no way to ask a peer which event streams it has"

    def client(self) -> AmqpClient:
        """Return a client of the peer; to be closed."""
        return AmqpClient(self.endpoint, timeout_ms=TIMEOUT_MS)

    def stream_kind(self, description: StreamDescription) -> str:
        """Return what the stream is called."""
        return "AMQP event stream"

    def open_writer(self) -> PeerWriter:
        """Return a writer; see ``Peer.open_writer``."""
        return _AmqpWriter(self)


class _AmqpWriter(PeerWriter):
    def __init__(self, peer: Peer) -> None:
        client = AmqpClient(peer.endpoint, timeout_ms=TIMEOUT_MS)
        super().__init__(client)
        try:
            self._publisher = client.publisher(peer.stream)
        except BaseException:
            client.close()
            raise

    def send(self, rows: pa.RecordBatch) -> None:
        self._publisher.send(messages(rows), self._label(rows))

    def flush(self) -> None:
        self._publisher.flush()
