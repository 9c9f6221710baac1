"""Where one link stands in one partition: the next event to look at, and which events match."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from spark_streams.filters.event_streams import PaddedDecimalOrder, Predicate, freeze, mask, seek
from spark_streams.server.partition_feed import Block, Feed

__all__ = ["Cursor"]

_ORDER: Final = PaddedDecimalOrder(20)


class Cursor:
    """A position in a partition, with a filter.

    Args:
        feed: the partition.
        predicate: what the link's filters say; None: only events after ``latest``.
        latest: the event number that ``@latest`` stands for (A-8).
        position: where to go on, for a durable terminus; None begins where the filter allows.

    Attributes:
        position: number of the next event to look at; all below were sent or do not match.
        again: events to be sent once more, as (number, delivery count), ascending.

    """

    def __init__(self, feed: Feed, predicate: Predicate | None, *, latest: int, position: int | None = None) -> None:
        self.feed = feed
        self.latest = latest
        self.again: deque[tuple[int, int]] = deque()
        partition = feed.partition
        if predicate is None:
            self._predicate = None
            begin = latest
        else:
            self._predicate = freeze(predicate, next_offset=latest, partition=partition.id)
            begin = seek(self._predicate, _ORDER)
        self.position = begin if position is None else position
        self._block: Block | None = None
        self._rows: list[int] = []
        self._row = 0

    def advance(self) -> bool:
        """Have matching events at hand, reading and skipping at most one block.

        Returns:
            Whether there are some, or whether calling again may find some; False at the end of what there is now.

        Raises:
            CorruptLog: what is stored cannot be served.

        """
        if self._row < len(self._rows):
            return True
        partition = self.feed.partition
        # What retention removed is skipped: a filter speaks about retained events.
        position = max(self.position, partition.first_offset)
        if position >= partition.next_offset:
            self._block, self._rows, self._row = None, [], 0
            return False
        block = self.feed.block(position)
        if block is None:
            return False
        first = max(0, position - block.first)
        if self._predicate is None:
            rows = range(first, len(block.offsets))
            self._rows = list(rows)
        else:
            matches = mask(self._predicate, block.offsets[first:], block.timestamps[first:], _ORDER)
            self._rows = (np.flatnonzero(matches) + first).tolist()
        self._block, self._row = block, 0
        if not self._rows:
            self.position = block.last + 1
        return True

    @property
    def behind(self) -> bool:
        """Whether the log goes on past what was looked at."""
        if self.again or self._row < len(self._rows):
            return True
        return max(self.position, self.feed.partition.first_offset) < self.feed.partition.next_offset

    def take(self, limit: int) -> tuple[Block, list[int]] | None:
        """Take up to ``limit`` matching events that are at hand, and step over them; None when ``advance`` is due."""
        block = self._block
        if block is None or self._row >= len(self._rows):
            return None
        rows = self._rows[self._row : self._row + limit]
        self._row += len(rows)
        if self._row >= len(self._rows):
            self.position = block.last + 1
        else:
            self.position = int(block.offsets[rows[-1]]) + 1
        return block, rows

    def back_to(self, offset: int) -> None:
        """Go back to an event that was taken and not sent."""
        self.position = offset
        self._block, self._rows, self._row = None, [], 0

    def release(self, offset: int, deliveries: int) -> None:
        """Have an event sent again, before any that was not sent yet.

        Args:
            offset: its number.
            deliveries: how many deliveries of it have failed.

        """
        self.again.append((offset, deliveries))
        if len(self.again) > 1 and self.again[-2][0] > offset:
            self.again = deque(sorted(self.again))
