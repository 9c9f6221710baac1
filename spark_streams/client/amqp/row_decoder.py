"""Decodes the deliveries of a range into rows: checks their offsets and partition, and cuts them at the range's end.

Offsets are compared as text, and always grow (ES-302). Those of event streams are opaque and never parsed (ES-301);
where they are numbers in the peer's dialect, a missing number is a gap, which the reader examines.

Spec: Event Stream Extensions §4.4 (source-partition), §5.1 (offset and timestamp annotations).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.event_rows import Columns, first_unreadable, matching_columns, unreadable
from spark_streams.client.log_client import RangeRead
from spark_streams.errors import RemoteProtocolError
from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.row_columns import columns_needed, message_columns
from spark_streams.filters.tree import Expression
from spark_streams.offsets import format_offset
from spark_streams.position import After, At, Earliest
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.wire.amqp.columns.block import MessageBlock, chosen
from spark_streams.wire.amqp.columns.decode import IN_MS, decode_columns
from spark_streams.wire.amqp.dialects import EVENT_STREAMS, Dialect
from spark_streams.wire.amqp.event_streams import OFFSET_KEY
from spark_streams.wire.columnar.arrays import FALSE, TRUE, fixed_width, repeated, text_scalar
from spark_streams.wire.columnar.byte_view import Positions


def check_offsets(offsets: pa.StringArray, start: Earliest | At | After, what: str, key: str = OFFSET_KEY) -> None:
    """Check that a column of offsets is complete, begins where the filter said, and grows.

    Args:
        offsets: the offsets of consecutive deliveries.
        start: the earliest position where they may begin.
        what: their name in messages, such as ``stream 'orders' partition '0'``.
        key: the annotation that they come from.

    Raises:
        RemoteProtocolError: the peer broke one of the rules.
    """
    if offsets.null_count:
        raise RemoteProtocolError(f"{what}: a delivery has no {key} annotation (ES-300)")
    if not len(offsets):
        return
    first = offsets[0].as_py()
    if (isinstance(start, After) and first <= start.offset) or (isinstance(start, At) and first < start.offset):
        raise RemoteProtocolError(f"{what}: reading was to start {start}, but the peer began at '{first}' (A-21)")
    behind = pc.index(pc.less(offsets.slice(0, len(offsets) - 1), offsets.slice(1)), FALSE).as_py()
    if behind >= 0:
        raise RemoteProtocolError(
            f"{what}: offset '{offsets[behind + 1].as_py()}' follows '{offsets[behind].as_py()}': offsets must grow "
            "(ES-302)"
        )


def rows_to_drop(
    offsets: pa.StringArray, start: At, dropped: Earliest | After, what: str
) -> tuple[int, Earliest | After]:
    """Return how many of the first rows lie before the start, for a link that began before it; and the last of them.

    Args:
        offsets: the offsets of consecutive deliveries.
        start: where the rows begin.
        dropped: the position after the rows that were dropped before.
        what: their name in messages, such as ``stream 'orders' partition '0'``.

    Returns:
        The number of rows, and the position after them, or ``dropped`` when there are none.

    Raises:
        RemoteProtocolError: the peer broke one of the rules of ``check_offsets``.
    """
    check_offsets(offsets, dropped, what)
    behind = pc.index(pc.greater_equal(offsets, text_scalar(start.offset)), TRUE).as_py()
    count = len(offsets) if behind < 0 else int(behind)
    return count, After(offsets[count - 1].as_py()) if count else dropped


def rows_until(offsets: pa.StringArray, end: str) -> tuple[int, bool]:
    """Return how many of the first rows are up to ``end`` (inclusive), and whether the rows reach or pass it."""
    beyond = pc.index(pc.greater_equal(offsets, text_scalar(end)), TRUE).as_py()
    if beyond < 0:
        return len(offsets), False
    return (beyond + 1 if offsets[beyond].as_py() == end else beyond), True


def _gap(offsets: pa.StringArray, start: Earliest | At | After) -> At | After | None:
    """Return the position after which the first number is missing, None for none; the offsets are numbers, and grow."""
    if not len(offsets):
        return None
    first, last = int(offsets[0].as_py()), int(offsets[len(offsets) - 1].as_py())
    if isinstance(start, (At, After)) and first > int(start.offset) + isinstance(start, After):
        return start
    if last - first == len(offsets) - 1:
        return None
    numbers = np.asarray(offsets.cast(pa.int64()))
    return After(format_offset(int(numbers[np.flatnonzero(np.diff(numbers) > 1)[0]])))


class WrongPartition(RemoteProtocolError):
    """A delivery names another partition than that of its link (ES-118); ``row`` is its row in the block."""

    row: int


@dataclass(frozen=True)
class DecodedRows:
    """The rows of a block that belong to the range.

    Args:
        batch: the matching rows; it may have none.
        first: offset of the first event of the block within or after the range; None where all lie before the range.
        last: offset of the block's last event within the range, None without one.
        done: whether the block reached or passed the end of the range.
        gap: the position after which the first number is missing; None if there is none, and for opaque offsets.
        fault: why the event after these rows cannot be read, if the range has one there; None where it can.
    """

    batch: pa.RecordBatch
    first: str | None
    last: str | None
    done: bool
    gap: At | After | None = None
    fault: RemoteProtocolError | None = None


@dataclass
class RowDecoder:
    """Decodes blocks of one range, in order, and checks that the offsets only grow.

    Args:
        read: the range and its columns.
        start: where this link begins, later than ``read.start`` after a reconnect; then, where it goes on.
        residual: the part of the filter that the client checks; None for nothing.
        dropped: for a link whose peer has no filter for ``start``, the earlier position where it begins: the decoder
            drops what lies before ``start``; later, ``After`` the last event that was dropped.
        dialect: the peer's.

    Raises:
        FilterError: the residual refers to something that rows of messages cannot have.
    """

    read: RangeRead
    start: Earliest | At | After
    residual: Expression | None = None
    dropped: Earliest | After | None = None
    dialect: Dialect = EVENT_STREAMS

    def __post_init__(self) -> None:
        # A batch that is made of no columns has no rows.
        self._names = self.read.columns or ("offset",)
        self._schema = pa.schema([FULL_MESSAGE_SCHEMA.field(c) for c in self._names])
        self._needed = () if self.residual is None else columns_needed(self.residual)
        self._has_source = self.dialect.places.source_partition is not None
        self._heads = {"offset", *(("source_partition",) if self._has_source else ())}

    def passes_end(self, block: MessageBlock) -> bool:
        """Return whether any delivery of the block is at or beyond the end of the range; decode offsets only."""
        try:
            return rows_until(self._offsets(block), self.read.end)[1]
        except RemoteProtocolError:
            return True  # ``decode`` says which one cannot be read

    def rows_up_to(self, offset: str, block: MessageBlock) -> int:
        """Return how many of a block's first deliveries are up to an offset, inclusive; 0 if a delivery has none."""
        try:
            return rows_until(self._offsets(block), offset)[0]
        except RemoteProtocolError:
            return 0  # ``decode`` says which one cannot be read

    def rows_left(self, last: MessageBlock | None = None) -> int:
        """Return how many more rows there are at most until the range ends, where offsets are numbers.

        Args:
            last: the last delivery that has come; None to count from where the next block begins. For a start without
                a number the result is 1, as the next row may be the last.
        """
        if last is not None:
            offset = self._offset_of(last)
            return 0 if offset is None else int(self.read.end) - int(offset)  # 0: ``decode`` says what is wrong
        if isinstance(self.start, Earliest):
            return 1
        return int(self.read.end) - int(self.start.offset) + isinstance(self.start, At)

    def _offsets(self, block: MessageBlock) -> pa.StringArray:
        return self._decoded(block, ("offset",))["offset"]

    def _decoded(self, block: MessageBlock, names: Collection[str]) -> Columns:
        wanted = set(names) - {"stream", "partition"}
        return decode_columns(block, wanted, overflow=self.read.timestamp_overflow, places=self.dialect.places)

    def decode(self, block: MessageBlock) -> DecodedRows:
        """Decode a block.

        Raises:
            RemoteProtocolError: a delivery has no offset, or offsets are out of order.
            WrongPartition: a delivery names another partition.
        """
        block = self._from_start(block)
        fault, beyond = None, False
        try:
            heads, (count, done), rows = self._rows(block, at_once=True)
        except RemoteProtocolError:
            row, reason = first_unreadable(len(block.starts), lambda rows: self._rows(chosen(block, rows)))
            if reason is not None:
                offset = self._offset_of(chosen(block, slice(row, row + 1)))
                beyond = offset is not None and offset > self.read.end
                fault = None if beyond else unreadable(self.read, offset, reason)
            heads, (count, done), rows = self._rows(chosen(block, slice(row)))
        offsets = heads["offset"]
        self._check_partition(heads)
        check_offsets(offsets, self.start, self.read.what, self.dialect.places.offset.key)
        gap = _gap(offsets, self.start) if self.dialect.numeric_offsets else None
        if len(offsets):
            self.start = After(offsets[len(offsets) - 1].as_py())
        first = offsets[0].as_py() if len(offsets) else None
        last = offsets[count - 1].as_py() if count else None
        return DecodedRows(rows, first, last, done or beyond, gap, None if done else fault)

    def _rows(self, block: MessageBlock, *, at_once: bool = False) -> tuple[Columns, tuple[int, bool], pa.RecordBatch]:
        """Return offsets and partitions of a block's events, ``rows_until`` the end, and the rows that the range wants.

        ``at_once`` decodes all columns of all events, which is faster where most match and none is broken.
        """
        first = {IN_MS.get(name, name) for name in self._needed} | self._heads
        if at_once or self.residual is None:
            first |= set(self._names) - set(self._needed)
        decoded = self._decoded(block, first)
        count, done = rows_until(decoded["offset"], self.read.end)
        texts = {"stream": self.read.stream, "partition": self.read.partition}

        def columns_of(rows: Positions | None, names: Sequence[str]) -> Columns:
            others = set(names) - texts.keys() - decoded.keys()
            columns = self._decoded(chosen(block, slice(count) if rows is None else rows), others) if others else {}
            for name in set(names) - others:
                column = repeated(texts[name], count) if name in texts else decoded[name].slice(0, count)
                columns[name] = column if rows is None else column.take(fixed_width(rows, pa.int64()))
            return {name: columns[name] for name in names}

        def passed(columns: Columns) -> pa.BooleanArray | None:
            return None if self.residual is None else mask(self.residual, message_columns(columns), count)

        columns = matching_columns(self.read, self._names, self._needed, passed, columns_of)
        none = [pa.nulls(0, field.type) for field in self._schema]
        arrays = none if columns is None else [columns[name] for name in self._names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema).select(list(self.read.columns))
        return decoded, (count, done), batch

    def _offset_of(self, event: MessageBlock) -> str | None:
        """Return the offset of an event that cannot be read as a whole; None where not even its offset can."""
        try:
            offset: str | None = self._offsets(event)[0].as_py()
        except RemoteProtocolError:
            return None
        return offset

    def _from_start(self, block: MessageBlock) -> MessageBlock:
        """Drop the events before the start, if the link began before it."""
        if self.dropped is None or not isinstance(self.start, At):
            return block
        columns = decode_columns(block, ("offset", "source_partition"), places=self.dialect.places)
        offsets = columns["offset"]
        self._check_partition(columns)
        before, self.dropped = rows_to_drop(offsets, self.start, self.dropped, self.read.what)
        return chosen(block, slice(before, None))

    def _check_partition(self, columns: Mapping[str, pa.Array]) -> None:
        if not self._has_source:
            return
        sources = columns["source_partition"]
        wrong = pc.index(pc.not_equal(sources, text_scalar(self.read.partition)), TRUE).as_py()
        if wrong >= 0:
            fault = WrongPartition(
                f"{self.read.what}: a delivery says that it comes from partition '{sources[wrong].as_py()}' (ES-118)"
            )
            fault.row = wrong
            raise fault
