"""Makes the pages of one partition: lines of events, and checkpoints after the events that they cover."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_streams.log import Partition, Records
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.cursors import Cursors
from spark_streams.server.feed.rendered_events import MOST_ROWS, EventCache, Events, Key
from spark_streams.server.http.requests import HttpError
from spark_streams.server.turns import Turn
from spark_streams.wire.feed.fetch_arguments import Fetch
from spark_streams.wire.feed.line import Dialect

READ_BYTES: Final = 256 << 10
"""Bytes to read and render at a time: enough that columns pay off, few enough that other clients need not wait long."""
FILTERED_BYTES: Final = 2 << 20
"""Bytes to read at a time for a client with filters; most of them are only searched."""
FIRST_ROWS: Final = MOST_ROWS // 4
"""Rows that such a client's first turn takes; from then on as many as a turn lasts for, and at most ``MOST_ROWS``."""


def events_lost(partition: Partition) -> HttpError:
    """Return the error for a cursor whose next events were removed."""
    return HttpError(
        410,
        f"events after this cursor were removed by retention: partition {partition.id} has events from number "
        f"{partition.first_offset} on. Start again with _first to read what is left",
    )


@dataclass(eq=False)
class Pages:
    """The pages of one client in one partition.

    Args:
        cache: the blocks of rendered events that are kept for all clients.
        partition: the partition.
        fetch: what the client requested.
        cursors: cursors of the stream under the client's filters.
        position: the next event to read; it advances with the pages.
        config: the door's settings.
    """

    cache: EventCache
    partition: Partition
    fetch: Fetch
    cursors: Cursors
    position: int
    config: FeedConfig

    def __post_init__(self) -> None:
        own = self.fetch.filters or self.fetch.headers
        self._key: Key = None if own else (self.partition, self.fetch.dialect, self.fetch.partition)
        self._events = self._bytes = 0
        self._rows = MOST_ROWS if self._key else FIRST_ROWS
        self._left: Records | None = None
        """The records of the last read that are in no block yet."""

    def checkpoint(self) -> bytes:
        """Return the line of a checkpoint at the present position."""
        cursor = self.cursors.encode(self.partition, self.position).encode()
        if self.fetch.dialect is Dialect.V1:
            return b'{"partition":%d,"cursor":"%s"}\n' % (self.fetch.partition, cursor)
        return b'{"cursor":"%s"}\n' % cursor

    @property
    def behind(self) -> bool:
        """Whether the partition has records from the position on."""
        return self.position < self.partition.next_offset

    @property
    def ended(self) -> bool:
        """Whether the partition is closed, and has no records from the position on."""
        return self.partition.closed and not self.behind

    def made(self) -> tuple[int, int]:
        """Return how many events, and bytes of their lines, were made since this was asked last."""
        made = self._events, self._bytes
        self._events = self._bytes = 0
        return made

    def page(self, events: int, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the next page in pieces, and advance the position; the last line is a checkpoint.

        A piece is the part of one block that the page takes, and may be empty; a response joins small pieces.

        Args:
            events: how many events at most.
            max_bytes: the page ends when it has as many bytes; None: the limit of the settings.

        Raises:
            HttpError: 410, retention removed the next events.
            CorruptLog: stored events cannot be read.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        left, size, scanned = events, 0, 0
        most = min(max_bytes or self.config.max_page_bytes, self.config.max_page_bytes)
        to_checkpoint = self.config.checkpoint_events
        checkpointed: int | None = None  # the position of the last checkpoint
        while left and size < most and scanned < self.config.scan_bytes:
            if self.position < self.partition.first_offset:
                raise events_lost(self.partition)
            block = self._block(self.position)
            if block is None:
                break
            if self.fetch.filters:
                scanned += block.scanned
            parts: list[bytes | memoryview] = []
            row = int(block.places.searchsorted(self.position, side="right"))
            while row < len(block.places) and left and size < most:
                stop = min(row + left, row + to_checkpoint, len(block.places))
                start_byte = int(block.line_ends[row - 1]) if row else 0
                end_byte = int(block.line_ends[stop - 1])
                parts.append(block.lines[start_byte:end_byte])
                self.position = int(block.places[stop - 1])
                size += end_byte - start_byte
                left -= stop - row
                self._events += stop - row
                self._bytes += end_byte - start_byte
                to_checkpoint -= stop - row
                row = stop
                if to_checkpoint == 0:
                    if row == len(block.places):
                        self.position = block.next
                    parts.append(self.checkpoint())
                    checkpointed = self.position
                    to_checkpoint = self.config.checkpoint_events
            if row == len(block.places):
                self.position = block.next
            yield b"".join(parts)
        if checkpointed != self.position:
            yield self.checkpoint()

    def _block(self, offset: int) -> Events | None:
        """Return a block with the record ``offset``, or, where retention removed it, the first one after it.

        It reads the log at most once, and renders at most ``MOST_ROWS``.

        Returns:
            None at the end of the log.

        Raises:
            CorruptLog: the records fail their check.
            PartitionClosed: the log was closed, or the stream deleted.
            ValueError: the offset is beyond the end.
        """
        kept = self.cache.find(self._key, offset, self.partition.first_offset)
        if kept is not None:
            return kept
        records, self._left = self._left, None
        if records is None or not records.offsets[0] <= offset <= records.offsets[-1]:
            size = FILTERED_BYTES if self.fetch.filters else READ_BYTES
            records = self.partition.read(offset, size, whole=self._key is not None)
        if records is None:
            return None
        # As long as two turns, because each block of few rows costs half a turn.
        start, turn = max(0, offset - int(records.offsets[0])) // self._rows * self._rows, Turn(share=2)
        if start + self._rows < len(records):
            self._left = records.slice(start + self._rows)
        block = Events(records.slice(start, start + self._rows), self.fetch, self._key)
        if self._key is None:  # what a row costs depends on the client's filter
            self._rows = max(1, self._rows // 2) if turn.over else min(2 * self._rows, MOST_ROWS)
        self.cache.keep(block)
        return block
