"""Makes the pages of one partition: lines of events, and checkpoints behind the events that they cover."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_streams.log import Partition
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.feed.cursors import Cursors
from spark_streams.server.feed.http_requests import HttpError
from spark_streams.server.feed.rendered_events import Blocks
from spark_streams.server.feed.rendering import checkpoint


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
        blocks: the partition's rendered events.
        cursors: cursors of the stream under the client's filters.
        position: the next event to read; it advances with the pages.
        config: the door's settings.
    """

    blocks: Blocks
    cursors: Cursors
    position: int
    config: FeedConfig

    def checkpoint(self) -> bytes:
        """Return the line of a checkpoint at the present position."""
        cursor = self.cursors.encode(self.blocks.partition, self.position)
        return checkpoint(self.blocks.fetch, cursor)

    @property
    def behind(self) -> bool:
        """Whether the partition has records from the position on."""
        return self.position < self.blocks.partition.next_offset

    @property
    def ended(self) -> bool:
        """Whether the partition is closed, and has no records from the position on."""
        return self.blocks.partition.closed and not self.behind

    def page(self, events: int, max_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the next page in pieces, and advance the position; the last line is a checkpoint.

        A piece is what the page takes of one block, which may be nothing; a response joins small ones.

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
            if self.position < self.blocks.partition.first_offset:
                raise events_lost(self.blocks.partition)
            block = self.blocks.find(self.position)
            if block is None:
                break
            if self.blocks.fetch.filters:
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
