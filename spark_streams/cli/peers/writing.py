"""Writing rows to a peer of any protocol: at least once, and confirmed when ``flush`` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.cli.peers.peer import TIMEOUT_MS, Peer
from spark_streams.client import AmqpClient, RabbitClient, RabbitPublishing, TaskPublisher, encode_columns
from spark_streams.client.digested_rows import PART_SCHEMA
from spark_streams.client.feed.publisher import FeedPublisher, HttpFeed

__all__ = ["PeerWriter", "open_writer"]


class PeerWriter(ABC):
    """Takes rows, in their order.

    Args:
        closing: is closed with this.
    """

    def __init__(self, closing: AmqpClient | TaskPublisher | HttpFeed) -> None:
        self._closing = closing
        self._rows = 0

    def __enter__(self) -> PeerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @abstractmethod
    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows, with columns of ``MESSAGE_SCHEMA``; those that a feed does not have are left out there."""

    @abstractmethod
    def flush(self) -> None:
        """Return once the peer has confirmed everything."""

    def _label(self, rows: pa.RecordBatch) -> Callable[[int], str]:
        """Return what names rows in errors: by their number, from 1, over all that were sent."""
        first, self._rows = self._rows + 1, self._rows + rows.num_rows
        return lambda row: f"event {first + row}"


def open_writer(peer: Peer) -> PeerWriter:
    """Return a writer; to be closed.

    Raises:
        NotFound: there is no such stream.
        SparkStreamsError: the peer cannot be reached, or takes nothing.
    """
    if peer.is_feed:
        return _FeedWriter(peer)
    return _RabbitWriter(peer) if peer.is_rabbit else _AmqpWriter(peer)


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
        self._publisher.send(_messages(rows), self._label(rows))

    def flush(self) -> None:
        self._publisher.flush()


class _RabbitWriter(PeerWriter):
    def __init__(self, peer: Peer) -> None:
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
        self._publisher.send(_messages(rows), places, None, self._label(rows))

    def flush(self) -> None:
        self._publisher.flush()


class _FeedWriter(PeerWriter):
    """A publisher of feeds holds its last part back until the end, so there is one for each flush."""

    def __init__(self, peer: Peer) -> None:
        self._stream = peer.stream
        self._target = HttpFeed(peer.endpoint, TIMEOUT_MS)
        super().__init__(self._target)
        try:
            self._target.check()
        except BaseException:
            self._target.close()
            raise
        self._publisher = FeedPublisher(self._target, self._stream, None)

    def send(self, rows: pa.RecordBatch) -> None:
        columns = [rows.column(field.name).cast(field.type) for field in PART_SCHEMA]
        batch = pa.RecordBatch.from_arrays(columns, schema=PART_SCHEMA)
        self._publisher.send(batch, self._label(rows))

    def flush(self) -> None:
        self._publisher.flush()
        self._publisher = FeedPublisher(self._target, self._stream, None)


def _messages(rows: pa.RecordBatch) -> pa.LargeBinaryArray:
    """Encode rows as Spark's sinks do; stream, partition, offset and timestamp are the other side's to say."""
    names = [n for n in rows.schema.names if n not in ("stream", "partition", "offset", "timestamp")]
    return encode_columns({name: rows.column(name) for name in names})
