"""Searches a partition for the first record that matches a filter: by the indexes, then by a scan in columns.

Bounds on ``offset`` give the search its beginning and end; a lower bound on ``publish_time`` skips earlier records by
the time indexes, whole segments too, without reading them. The other records are decoded in blocks, and only in the
columns that the filter needs.

Records are read as rows of ``amqp-events``: their values are AMQP messages.

Spec: docs/specifications.md, E-18, Z-22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.intervals import Intervals, intervals_of, offsets_of, within
from spark_streams.filters.limits import check
from spark_streams.filters.row_columns import columns_needed, message_columns
from spark_streams.filters.split import Inexpressible, Split, split
from spark_streams.filters.tree import OFFSET, PARTITION, PUBLISH_TIME, Expression, Predicate, Reference
from spark_streams.filters.tree import ValueType as Type
from spark_streams.log.format.records import Records, message_columns_of
from spark_streams.log.format.timestamps import NO_TIMESTAMP
from spark_streams.log.storage.partition import Partition
from spark_streams.offsets import offset_column

BLOCK_BYTES: Final = 1 << 20
"""Bytes to decode at a time: enough that columns pay, few enough that an early match is found early."""
_LAST: Final = 2**63 - 1
_OWN: Final = frozenset({"offset", "partition", "timestamp"})
"""Columns that come from the record's place in the log, not from its message."""


@dataclass(frozen=True)
class SearchRange:
    """The records that a filter may be true of.

    Args:
        first: the first offset, inclusive.
        end: the last offset, exclusive.
        from_ms: no timestamp is earlier; ``NO_TIMESTAMP``: any, and records without one.
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
        None when no record matches that is there at the time of this call.

    Raises:
        FilterError: the filter looks at what messages cannot have.
        CorruptLog: a check failed.
        PartitionClosed: the log was closed, or the stream deleted.
    """
    check(expression)
    needed = columns_needed(expression)
    bounds = search_range_of(expression)
    offset, end = max(start, bounds.first), min(bounds.end, partition.next_offset)
    while offset < end:
        if bounds.from_ms != NO_TIMESTAMP:
            offset = partition.skip_to_time(offset, bounds.from_ms)
            if offset >= end:
                break
        records = partition.read(offset, BLOCK_BYTES)
        if records is None:
            break
        records = records.slice(0, int(np.searchsorted(records.offsets, end)))
        matching = _matching(records, expression, needed, partition.id)
        if matching.true_count:
            return int(records.offsets[pc.index(matching, True).as_py()])
        offset = int(records.offsets[-1]) + 1 if len(records) else end
    return None


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
    """Search ranges as a target of a filter; each is a superset, so the filter still tests every record in it."""

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
