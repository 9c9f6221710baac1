"""Searches a partition for the records that match a filter: by the indexes, then by a scan in columns.

Bounds on ``offset`` give the search its beginning and end; a lower bound on ``publish_time`` skips earlier records by
the time indexes, whole segments too, without reading them. The other records are decoded in blocks, and only in the
columns that the filter needs.

Records are read as rows of ``amqp-events``: their values are AMQP messages.

Spec: docs/specifications.md, E-18, Z-22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.intervals import Intervals, intervals_of, offsets_of, within
from spark_streams.filters.limits import check
from spark_streams.filters.row_columns import columns_needed, message_columns
from spark_streams.filters.split import Inexpressible, Split, split
from spark_streams.filters.tree import OFFSET, PARTITION, PUBLISH_TIME, Expression, Predicate, Reference
from spark_streams.filters.tree import ValueType as Type
from spark_streams.log.format.record_batch import NO_TIMESTAMP
from spark_streams.log.format.records import Records, message_columns_of
from spark_streams.log.storage.partition import Partition
from spark_streams.offsets import offset_column

BLOCK_BYTES: Final = 1 << 20
"""Bytes to decode at a time: enough that columns pay, few enough that an early match is found early."""
_LAST: Final = 2**63 - 1
_NOWHERE: Final = np.empty(0, np.int64)
_NONE: Final = Records(_NOWHERE, _NOWHERE, b"", _NOWHERE, _NOWHERE, _NOWHERE, _NOWHERE, ())
_OWN: Final = frozenset({"offset", "partition", "timestamp"})
"""Columns that come from the record's place in the log, not from its message."""


@dataclass(frozen=True)
class SearchRange:
    """The records that a filter may be true of.

    Args:
        first: the first offset, inclusive.
        end: the end of the offsets, exclusive.
        from_ms: the earliest timestamp, inclusive, in ms; ``NO_TIMESTAMP``: any, and records without a timestamp too.
    """

    first: int = 0
    end: int = _LAST
    from_ms: int = NO_TIMESTAMP


def search_range_of(expression: Expression) -> SearchRange:
    """Return a range that holds every record that a filter is true of."""
    return split(expression, _SearchRanges()).pushed or SearchRange()


def first_matching(partition: Partition, expression: Expression, start: int = 0) -> int | None:
    """Return the offset of the first record of a partition, in log order, that a filter is true of.

    The indexes answer its bounds on ``offset`` and its lower bounds on ``publish_time``: no record that these exclude
    is read. The others are decoded in columns until one matches.

    Args:
        partition: the partition.
        expression: the filter; ``spark_streams.filters.parse`` makes one of text.
        start: where to begin, inclusive.

    Returns:
        The offset; None when no record that exists at the time of this call matches.

    Raises:
        FilterError: the filter looks at what messages cannot have.
        CorruptLog: a check failed.
        PartitionClosed: the log was closed, or the stream deleted.
    """
    search = Search(partition, expression)
    offset, end = max(start, search.bounds.first), min(search.bounds.end, partition.next_offset)
    while offset < end:
        block = search.block(offset, end)
        if len(block.matching):
            return int(block.matching.offsets[0])
        offset = block.following
    return None


class Block(NamedTuple):
    """The result of one step of a search.

    Args:
        matching: the records that match.
        following: where the next step begins; the end of the search when it has ended.
        records: how many records were examined.
        size: the bytes of their values.
    """

    matching: Records
    following: int
    records: int
    size: int


class Search:
    """A search of a partition, block by block; other work can be done between two of them.

    Args:
        partition: the partition.
        expression: the filter; None: every record matches.

    Attributes:
        expression: as it was given.
        bounds: where the records that may match are.

    Raises:
        FilterError: the filter looks at what messages cannot have.
    """

    def __init__(self, partition: Partition, expression: Expression | None) -> None:
        self._partition = partition
        self.expression = expression
        self._needed: tuple[str, ...] = ()
        self.bounds = SearchRange()
        if expression is not None:
            check(expression)
            self._needed = columns_needed(expression)
            self.bounds = search_range_of(expression)

    def skipped(self, offset: int) -> int:
        """Return the first offset, from ``offset`` on, where a record may match by the time indexes; read no record.

        Raises:
            CorruptLog: a check failed.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        if self.bounds.from_ms == NO_TIMESTAMP:
            return offset
        return self._partition.skip_to_time(offset, self.bounds.from_ms)

    def block(self, offset: int, end: int, size: int | None = None) -> Block:
        """Search some records.

        Args:
            offset: where to begin, inclusive.
            end: where the search ends, exclusive.
            size: about how many bytes of them, at least one stored batch; None: ``BLOCK_BYTES``.

        Raises:
            CorruptLog: a check failed.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        offset = self.skipped(offset)
        records = self._partition.read(offset, size or BLOCK_BYTES) if offset < end else None
        if records is not None:
            records = records.slice(0, int(np.searchsorted(records.offsets, end)))
        if not records:
            return Block(_NONE, end, 0, 0)
        following = int(records.offsets[-1]) + 1
        read = int(records.value_ends[-1] - records.value_starts[0])
        if self.expression is None:
            return Block(records, following, len(records), read)
        matching = _matching(records, self.expression, self._needed, self._partition.id)
        return Block(records.take(np.flatnonzero(np.asarray(matching))), following, len(records), read)


def _matching(records: Records, expression: Expression, needed: tuple[str, ...], partition: str) -> pa.BooleanArray:
    decoded = tuple(name for name in needed if name not in _OWN)
    columns = message_columns_of(records, decoded) if decoded else {}
    rows = len(records)
    of_messages = message_columns(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))

    def lookup(reference: Reference) -> pa.Array:
        if reference == OFFSET:
            return offset_column(records.offsets)
        if reference == PARTITION:
            return pa.repeat(pa.scalar(partition, pa.string()), rows)
        if reference == PUBLISH_TIME:
            return pa.array(records.timestamps, mask=records.timestamps == NO_TIMESTAMP)
        return of_messages(reference)

    return mask(expression, lookup, rows)


class _SearchRanges:
    """Search ranges as a target of ``split``; each is a superset, so the filter still tests every record in it."""

    def both(self, left: SearchRange, right: SearchRange) -> SearchRange:
        return SearchRange(max(left.first, right.first), min(left.end, right.end), max(left.from_ms, right.from_ms))

    def either(self, left: SearchRange, right: SearchRange) -> SearchRange:
        return SearchRange(min(left.first, right.first), max(left.end, right.end), min(left.from_ms, right.from_ms))

    def test(self, predicate: Predicate) -> Split[SearchRange]:
        if predicate.reference == OFFSET:
            found = _of_offsets(offsets_of(predicate))
        elif predicate.reference == PUBLISH_TIME and predicate.type is not Type.STRING:
            found = _of_times(intervals_of(predicate))
        else:
            raise Inexpressible
        return Split(found, predicate)


def _of_offsets(offsets: Intervals) -> SearchRange:
    possible = within(offsets, 0, _LAST - 1)
    if not possible:
        return SearchRange(end=0)
    first, last = possible[0][0], possible[-1][1]
    return SearchRange(first or 0, _LAST if last is None else last + 1)


def _of_times(times: Intervals) -> SearchRange:
    if not times:
        return SearchRange(end=0)
    earliest = times[0][0]
    return SearchRange(from_ms=NO_TIMESTAMP if earliest is None else max(earliest, NO_TIMESTAMP + 1))
