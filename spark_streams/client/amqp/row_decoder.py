"""Decodes the deliveries of a range into rows: checks their offsets and partition, and cuts them at the range's end.

Offsets are compared as text, and always grow (ES-302). Those of event streams are opaque and never parsed (ES-301);
where they are numbers in the peer's dialect, a missing number is a gap, which the reader looks into.

Spec: Event Stream Extensions §4.4 (source-partition), §5.1 (offset and timestamp annotations).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.log_client import RangeRead
from spark_streams.errors import RemoteProtocolError
from spark_streams.filters.row_columns import rows_that_match, wanted_columns
from spark_streams.filters.tree import Expression
from spark_streams.offsets import format_offset
from spark_streams.position import After, At, Earliest
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.single_message import Overflow, TimestampOverflow
from spark_streams.wire.amqp.dialects import EVENT_STREAMS, Dialect
from spark_streams.wire.amqp.event_streams import OFFSET_KEY
from spark_streams.wire.columnar.arrays import FALSE, TRUE, repeated, text_scalar


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
    """Return the position after which the first number is missing, None for none; offsets that are numbers grow."""
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
        gap: the position after which the first number is missing; None for none, and for opaque offsets.
        done: whether the block reached or passed the end of the range.
    """

    batch: pa.RecordBatch
    first: str | None
    last: str | None
    done: bool
    gap: At | After | None = None


@dataclass
class RowDecoder:
    """Decodes blocks of one range, in order, and checks that the offsets only grow.

    Args:
        read: the range and its columns.
        start: where this link begins, later than ``read.start`` after a reconnect; then, where it goes on.
        residual: the part of the filter that the client checks; None for nothing.
        dropped: for a link whose peer has no filter for ``start``, the earlier position where it begins: the decoder
            drops what lies before ``start``; then ``After`` the last event that was dropped.
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
        self._columns = wanted_columns(self.read.columns, self.residual) or ("offset",)
        self._schema = pa.schema([FULL_MESSAGE_SCHEMA.field(c) for c in self._columns])
        self._has_source = self.dialect.places.source_partition is not None
        source = {"source_partition"} if self._has_source else set[str]()
        self._decoded = frozenset({*self._columns, "offset", *source} - {"stream", "partition"})

    def passes_end(self, block: MessageBlock) -> bool:
        """Return whether any delivery of the block is at or beyond the end of the range; decode offsets only."""
        return rows_until(self._offsets(block), self.read.end)[1]

    def rows_up_to(self, offset: str, block: MessageBlock) -> int:
        """Return how many of the first deliveries of a block are up to an offset, inclusive."""
        return rows_until(self._offsets(block), offset)[0]

    def rows_left(self, last: MessageBlock | None = None) -> int:
        """Return how many more rows there are at most until the range ends, where offsets are numbers.

        Args:
            last: the last delivery that has come; None to count from where the next block begins. A start without a
                number may be a row before the end.
        """
        if last is not None:
            (offset,) = self._offsets(last).to_pylist()
            return int(self.read.end) - int(offset or 0)
        if isinstance(self.start, Earliest):
            return 1
        return int(self.read.end) - int(self.start.offset) + isinstance(self.start, At)

    def _offsets(self, block: MessageBlock) -> pa.StringArray:
        return decode_columns(block, ("offset",), places=self.dialect.places)["offset"]

    def decode(self, block: MessageBlock) -> DecodedRows:
        """Decode a block.

        Raises:
            RemoteProtocolError: a delivery has no offset, offsets are out of order, or an instant of the range does not
                fit the column's microseconds and ``timestamp_overflow`` is ``fail``.
            WrongPartition: a delivery names another partition.
        """
        block = self._from_start(block)
        try:
            columns = self._decode(block, self.read.timestamp_overflow)
        except TimestampOverflow as fault:
            columns = self._without_the_rest(block, fault)
        offsets = columns["offset"]
        self._check_partition(columns)
        check_offsets(offsets, self.start, self._what, self.dialect.places.offset.key)
        count, done = rows_until(offsets, self.read.end)
        gap = _gap(offsets, self.start) if self.dialect.numeric_offsets else None
        if len(offsets):
            self.start = After(offsets[len(offsets) - 1].as_py())
        constants = {"stream": self.read.stream, "partition": self.read.partition}
        arrays = [
            repeated(constants[name], count) if name in constants else columns[name].slice(0, count)
            for name in self._columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        first = offsets[0].as_py() if len(offsets) else None
        last = offsets[count - 1].as_py() if count else None
        return DecodedRows(rows_that_match(batch, self.residual, self.read.columns), first, last, done, gap)

    def _decode(self, block: MessageBlock, overflow: Overflow) -> dict[str, pa.Array]:
        return decode_columns(block, self._decoded, overflow=overflow, places=self.dialect.places)

    def _from_start(self, block: MessageBlock) -> MessageBlock:
        """Drop the events before the start, if the link began before it."""
        if self.dropped is None or not isinstance(self.start, At):
            return block
        columns = decode_columns(block, ("offset", "source_partition"), places=self.dialect.places)
        offsets = columns["offset"]
        self._check_partition(columns)
        before, self.dropped = rows_to_drop(offsets, self.start, self.dropped, self._what)
        return MessageBlock(block.buffer, block.starts[before:], block.ends[before:])

    def _without_the_rest(self, block: MessageBlock, fault: TimestampOverflow) -> dict[str, pa.Array]:
        """Decode again without the events beyond the range: an instant there must not fail this read."""
        count = self.rows_up_to(self.read.end, block)
        try:
            self._decode(MessageBlock(block.buffer, block.starts[:count], block.ends[:count]), "fail")
        except TimestampOverflow as inside:
            raise TimestampOverflow(
                f"{self._what}: {inside}; set option 'timestampOverflow' to 'null' to read such instants as NULL"
            ) from fault
        return self._decode(block, "null")

    @property
    def _what(self) -> str:
        return f"stream '{self.read.stream}' partition '{self.read.partition}'"

    def _check_partition(self, columns: Mapping[str, pa.Array]) -> None:
        if not self._has_source:
            return
        sources = columns["source_partition"]
        wrong = pc.index(pc.not_equal(sources, text_scalar(self.read.partition)), TRUE).as_py()
        if wrong >= 0:
            fault = WrongPartition(
                f"{self._what}: a delivery says that it comes from partition '{sources[wrong].as_py()}' (ES-118)"
            )
            fault.row = wrong
            raise fault
