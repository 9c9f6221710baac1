"""Reading a peer from a position on, again and again up to the end that there is then, in columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

import pyarrow as pa

from spark_streams.cli.peers.peer import Peer
from spark_streams.client import AmqpClient, Bounds, RabbitClient, RangeRead, StreamDescription
from spark_streams.client.feed.client import FeedClient
from spark_streams.client.feed.range_reader import BEGINNING, FeedRange, scan
from spark_streams.client.feed.row_decoder import FeedRows
from spark_streams.errors import NotFound, OptionError, PositionLost
from spark_streams.options.positions import numbered_position
from spark_streams.options.values import instant_ms
from spark_streams.position import EARLIEST, After, At, Earliest

__all__ = ["POSITIONS_EPILOG", "PeerReader", "open_reader"]

POSITIONS_EPILOG: Final = """\b
--from takes:
  earliest          all that is retained
  latest            what comes from now on
  offset:OFFSET     this event and what follows; needs --partition; not of feeds
  after:OFFSET      what follows this event; needs --partition; a feed's cursor
  timestamp:WHEN    from the first event not earlier than WHEN, which is milliseconds
                    since 1970 (negative before it) or ISO 8601; not of feeds

\b
Within a partition events come in their order; between partitions there is none.
"""


class PeerReader(ABC):
    """Where reading stands in each partition of one stream.

    Args:
        client: is closed with this.
    """

    def __init__(self, client: AmqpClient | RabbitClient | FeedClient) -> None:
        self._closing = client

    def __enter__(self) -> PeerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    @abstractmethod
    def positions(self) -> dict[str, str]:
        """Partition to where reading goes on, as ``--from`` takes it."""

    @abstractmethod
    def new_events(self) -> Iterator[pa.RecordBatch]:
        """Yield what there is to read up to the ends of now, partition by partition."""

    @abstractmethod
    def left(self) -> int | None:
        """Return how many events there are to read now, None where the peer does not tell."""


def open_reader(
    peer: Peer, start: str, only: str | None, columns: tuple[str, ...], *, fail_on_loss: bool = False
) -> PeerReader:
    """Return a reader; to be closed.

    Args:
        peer: whom to read.
        start: as the epilog says.
        only: the one partition that is wanted, or None.
        columns: of ``spark_streams.rows``; feeds have those of ``COMMON_SCHEMA`` only.
        fail_on_loss: whether events that are gone end the reading with ``PositionLost``; else a warning tells of them.

    Raises:
        OptionError: a position that is none, or that the peer does not know.
        NotFound, SparkStreamsError: there is no such stream or partition, or the peer cannot be asked.
    """
    if peer.is_feed:
        return _FeedReader(peer.feed_client(), peer.stream, only, start, columns, fail_on_loss)
    return _LogReader(peer.log_client(), peer.stream, only, start, columns, fail_on_loss)


class _LogReader(PeerReader):
    """An AMQP event log or a RabbitMQ stream, whose partitions tell where they end."""

    def __init__(
        self,
        client: AmqpClient | RabbitClient,
        stream: str,
        only: str | None,
        start: str,
        columns: tuple[str, ...],
        fail_on_loss: bool,
    ) -> None:
        super().__init__(client)
        self._client = client
        self._stream = stream
        self._only = only
        self._fail_on_loss = fail_on_loss
        self._columns = columns if "offset" in columns else (*columns, "offset")
        try:
            described = client.describe(stream)
            self._incarnation = described.incarnation
            bounds = self._partitions()
            self._positions = {p: self._begin(start, p, bounds[p], described) for p in bounds}
        except BaseException:
            client.close()
            raise

    @property
    def positions(self) -> dict[str, str]:
        words = {At: "offset:", After: "after:"}
        return {
            p: "earliest" if isinstance(at, Earliest) else f"{words[type(at)]}{at.offset}"
            for p, at in self._positions.items()
        }

    def left(self) -> int | None:
        counts = self._client.remaining(self._stream, self._positions).values()
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    def new_events(self) -> Iterator[pa.RecordBatch]:
        for partition, bounds in self._partitions().items():
            position = self._positions.get(partition, EARLIEST)
            if bounds.latest is None or (isinstance(position, (At, After)) and _beyond(position, bounds.latest)):
                continue
            where = (self._stream, partition, position, bounds.latest)
            read = RangeRead(*where, self._columns, fail_on_data_loss=self._fail_on_loss)
            for batch in self._client.fetch(read):
                self._positions[partition] = After(batch.column("offset")[-1].as_py())
                yield batch
            self._positions[partition] = After(bounds.latest)

    def _partitions(self) -> dict[str, Bounds]:
        """Return the partitions that are wanted, and their bounds now."""
        description = self._client.describe(self._stream)
        if description.incarnation != self._incarnation:
            raise PositionLost(
                self._stream, None, "in the stream as it was", "it was deleted and created again under its name"
            )
        if self._only is None:
            return dict(sorted(description.partitions.items(), key=lambda item: (len(item[0]), item[0])))
        if self._only not in description.partitions:
            known = ", ".join(sorted(description.partitions))
            raise NotFound("amqp:not-found", f"there are: {known}", f"stream '{self._stream}' partition '{self._only}'")
        return {self._only: description.partitions[self._only]}

    def _begin(self, start: str, partition: str, bounds: Bounds, described: StreamDescription) -> Earliest | At | After:
        end = EARLIEST if bounds.latest is None else After(bounds.latest)
        word, operand = _read_position(start, self._only)
        if word == "earliest":
            return EARLIEST
        if word == "latest":
            return end
        if word == "timestamp":
            found = self._client.first_at_time(self._stream, partition, instant_ms("--from", operand))
            return end if found is None else At(found)
        if self._client.numeric_offsets:
            position = numbered_position("--from", partition, {"at" if word == "offset" else "after": operand})
            assert isinstance(position, (At, After))
            return position
        fault = described.no_offset(operand)
        if fault is not None:
            raise OptionError("--from", f"'{start}': {fault}")
        return At(operand) if word == "offset" else After(operand)


class _FeedReader(PeerReader):
    """A feed, whose end is a page without events."""

    def __init__(
        self,
        client: FeedClient,
        stream: str,
        only: str | None,
        start: str,
        columns: tuple[str, ...],
        fail_on_loss: bool,
    ) -> None:
        super().__init__(client)
        self._client = client
        self._stream = stream
        self._only = only
        self._fail_on_loss = fail_on_loss
        self._columns = columns if "offset" in columns else (*columns, "offset")
        self._cursors: dict[str, str] = {}
        try:
            self._begin(start)
        except BaseException:
            client.close()
            raise

    @property
    def positions(self) -> dict[str, str]:
        return {p: "earliest" if c == BEGINNING else f"after:{c}" for p, c in self._cursors.items()}

    def left(self) -> int | None:
        return None

    def new_events(self) -> Iterator[pa.RecordBatch]:
        for partition in self._partitions():
            cursor = self._cursors.setdefault(partition, BEGINNING)
            end = self._client.last_cursor(int(partition))
            rows = FeedRows(self._stream, int(partition), self._columns)
            wanted = FeedRange(int(partition), cursor, (end,))
            for batch in scan(self._client, wanted, rows, fail_on_data_loss=self._fail_on_loss):
                self._cursors[partition] = batch.column("offset")[-1].as_py()
                yield batch
            self._cursors[partition] = end

    def _partitions(self) -> list[str]:
        names = [str(p.id) for p in self._client.discover().partitions]
        if self._only is None:
            return names
        if self._only not in names:
            raise NotFound("no partition", f"there are: {', '.join(names)}", f"feed '{self._stream}' '{self._only}'")
        return [self._only]

    def _begin(self, start: str) -> None:
        word, operand = _read_position(start, self._only)
        if word in ("offset", "timestamp"):
            raise OptionError("--from", f"'{start}': a feed starts at earliest, at latest, or after:CURSOR")
        place: Callable[[str], str] = {
            "earliest": lambda _: BEGINNING,
            "latest": lambda partition: self._client.last_cursor(int(partition)),
            "after": lambda _: operand,
        }[word]
        self._cursors = {partition: place(partition) for partition in self._partitions()}


def _read_position(start: str, only: str | None) -> tuple[str, str]:
    word, colon, operand = start.partition(":")
    if start in ("earliest", "latest"):
        return start, ""
    if word in ("offset", "after") and operand:
        if only is None:
            raise OptionError("--from", f"'{start}': an offset means nothing without --partition")
        return word, operand
    if word == "timestamp" and colon:
        return word, operand
    raise OptionError("--from", f"'{start}' is none of earliest, latest, offset:OFFSET, after:OFFSET, timestamp:WHEN")


def _beyond(position: At | After, latest: str) -> bool:
    return position.offset > latest or (isinstance(position, After) and position.offset == latest)
