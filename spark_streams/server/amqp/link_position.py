"""Keeps the position of one link in one partition, and finds the next events that match the link's filters."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import CorruptLog
from spark_streams.filters.predicates.conditions import Always, Condition, bounds, by_cost, fields_of, freeze, mask
from spark_streams.server.amqp.transfer_block import READ_BYTES, SEARCHED_BYTES, BlockReader, TransferBlock
from spark_streams.wire.amqp.columns.block import MessageBlock as Messages
from spark_streams.wire.amqp.columns.typed import timestamp_column, typed_columns
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS

_SPARSE: Final = 4
"""Where at most one in so many events of a block, from the position on, matches, only these are prepared."""


class LinkPosition:
    """A position in a partition, with a filter.

    Args:
        reader: the partition's reader.
        predicate: the conjunction of the link's filters; None: all events from ``latest`` on.
        latest: the offset that ``@latest`` means (A-8).
        position: the offset at which a durable terminus continues; None begins at the first offset that can match.

    Attributes:
        next_offset: offset of the next event to look at; all events below were sent or do not match.
        again: events to send again, as (offset, delivery count), ascending.
    """

    def __init__(
        self, reader: BlockReader, predicate: Condition | None, *, latest: int, position: int | None = None
    ) -> None:
        self.reader = reader
        self.latest = latest
        self.again: deque[tuple[int, int]] = deque()
        partition = reader.partition
        frozen = freeze(predicate or Always(True), next_offset=latest, partition=partition.id)
        begin, self._end = bounds(frozen, self._at_time)
        self._quick, self._deep = by_cost(frozen)
        self._fields = fields_of(frozen)
        if predicate is None:
            begin = latest
        self.next_offset = begin if position is None else position
        self._block: TransferBlock | None = None
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)
        self._row = 0
        self._past = 0

    @property
    def reached(self) -> int:
        """The offset below which nothing is left to send; the next event's, where no later one can match."""
        end = self.reader.partition.next_offset
        return end if self.next_offset >= self._end else min(self.next_offset, end)

    def advance(self) -> bool:
        """Find matching events; read and skip at most one block.

        Returns:
            True when there are matching events, or when the next call may find some; False at the end of the log.

        Raises:
            CorruptLog: the stored bytes fail their check.
        """
        if self._row < len(self._rows):
            return True
        partition = self.reader.partition
        # Events that retention removed are skipped: a filter applies to retained events.
        position = max(self.next_offset, partition.first_offset)
        if position >= min(partition.next_offset, self._end):
            self._block, self._rows, self._row = None, self._rows[:0], 0
            return False
        block = self.reader.block(position, READ_BYTES if self._deep == Always(True) else SEARCHED_BYTES)
        if block is None:
            return False
        first = max(0, position - block.first)
        self._past = block.last + 1
        rows = self._matching(block, first)
        if rows.size and rows.size * _SPARSE <= len(block.offsets) - first:
            block, rows = block.only(rows), np.arange(rows.size)
        self._block, self._rows, self._row = block, rows, 0
        if not len(rows):
            self.next_offset = self._past
        return True

    def _matching(self, block: TransferBlock, first: int) -> NDArray[np.int64]:
        """Return the rows from ``first`` on that match; read messages only where offset and timestamp match."""
        offsets, timestamps = block.offsets[first:], block.timestamps[first:]
        rows: NDArray[np.int64] = np.flatnonzero(mask(self._quick, offsets, timestamps)) + first
        if not rows.size or self._deep == Always(True):
            return rows
        records = block.records
        offsets, timestamps = records.offsets[rows], records.timestamps[rows]
        messages = Messages(records.buffer, records.value_starts[rows], records.value_ends[rows])
        columns = typed_columns(messages, [f for f in self._fields if f.section != DELIVERY_ANNOTATIONS])
        for field in self._fields - columns.keys():
            columns[field] = timestamp_column(timestamps)
        return rows[mask(self._deep, offsets, timestamps, columns)]

    def _at_time(self, timestamp_ms: int) -> int:
        partition = self.reader.partition
        end = partition.next_offset  # read before the search, which does not cover events that come meanwhile
        try:
            found = partition.offset_for_time(timestamp_ms)
        except (CorruptLog, OSError):
            return 0  # reading raises it
        return end if found is None else found[0]

    @property
    def available(self) -> int:
        """How many events ``advance`` has not examined, or wait to be sent."""
        partition = self.reader.partition
        unseen = min(partition.next_offset, self._end) - max(self.next_offset, partition.first_offset)
        return len(self.again) + max(0, unseen, len(self._rows) - self._row)

    def take(self, limit: int) -> tuple[TransferBlock, NDArray[np.int64]] | None:
        """Return up to ``limit`` matching events, as a block and rows, and step over them; None: call ``advance``."""
        block = self._block
        if block is None or self._row >= len(self._rows):
            return None
        rows = self._rows[self._row : self._row + limit]
        self._row += len(rows)
        if self._row >= len(self._rows):
            self.next_offset = self._past
        else:
            self.next_offset = int(block.offsets[rows[-1]]) + 1
        return block, rows

    def give_back(self, count: int) -> None:
        """Go back to the first of the last ``count`` events that were taken and not sent."""
        if count and self._block is not None:
            self._row -= count
            self.next_offset = int(self._block.offsets[self._rows[self._row]])

    def release(self, offset: int, deliveries: int) -> None:
        """Send an event again before any event that was not sent yet.

        Args:
            offset: the event's offset.
            deliveries: how many deliveries of it have failed.
        """
        self.again.append((offset, deliveries))
        if len(self.again) > 1 and self.again[-2][0] > offset:
            self.again = deque(sorted(self.again))
