"""Decodes the deliveries of a range into rows: checks their offsets and partition, and cuts them at the range's end.

Offsets are opaque: they are compared as text, never parsed (ES-301), and always grow (ES-302).

Spec: Event Stream Extensions §4.4 (source-partition), §5.1 (offset and timestamp annotations).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.log_client import RangeRead
from spark_streams.errors import RemoteProtocolError
from spark_streams.filters.row_columns import rows_that_match, wanted_columns
from spark_streams.filters.tree import Expression
from spark_streams.position import After, At, Earliest
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.single_message import TimestampOverflow
from spark_streams.wire.columnar.arrays import FALSE, TRUE, repeated, text_scalar


def check_offsets(offsets: pa.StringArray, start: Earliest | At | After, what: str) -> None:
    """Check that a column of offsets is complete, begins where the filter said, and grows.

    Args:
        offsets: the offsets of consecutive deliveries.
        start: the earliest position where they may begin.
        what: their name in messages, such as ``stream 'orders' partition '0'``.

    Raises:
        RemoteProtocolError: the peer broke one of the rules.
    """
    if offsets.null_count:
        raise RemoteProtocolError(f"{what}: a delivery has no event-streams-offset annotation (ES-300)")
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
    """

    batch: pa.RecordBatch
    first: str | None
    last: str | None
    done: bool


@dataclass
class RowDecoder:
    """Decodes blocks of one range, in order, and checks that the offsets only grow.

    Args:
        read: the range and its columns.
        start: where this link begins, later than ``read.start`` after a reconnect; then, where it goes on.
        residual: the part of the filter that the client checks; None for nothing.
        dropped: for a link whose peer has no filter for ``start``, the earlier position where it begins: the decoder
            drops what lies before ``start``; then ``After`` the last event that was dropped.

    Raises:
        FilterError: the residual refers to something that rows of messages cannot have.
    """

    read: RangeRead
    start: Earliest | At | After
    residual: Expression | None = None
    dropped: Earliest | After | None = None

    def __post_init__(self) -> None:
        # A batch that is made of no columns has no rows.
        self._columns = wanted_columns(self.read.columns, self.residual) or ("offset",)
        self._schema = pa.schema([FULL_MESSAGE_SCHEMA.field(c) for c in self._columns])
        self._decoded = frozenset({*self._columns, "offset", "source_partition"} - {"stream", "partition"})

    def passes_end(self, block: MessageBlock) -> bool:
        """Return whether any delivery of the block is at or beyond the end of the range; decode offsets only."""
        offsets = decode_columns(block, ("offset",))["offset"]
        return rows_until(offsets, self.read.end)[1]

    def decode(self, block: MessageBlock) -> DecodedRows:
        """Decode a block.

        Raises:
            RemoteProtocolError: a delivery has no offset, offsets are out of order, or an instant of the range does not
                fit the column's microseconds and ``timestamp_overflow`` is ``fail``.
            WrongPartition: a delivery names another partition.
        """
        block = self._from_start(block)
        try:
            columns = decode_columns(block, self._decoded, overflow=self.read.timestamp_overflow)
        except TimestampOverflow as fault:
            columns = self._without_the_rest(block, fault)
        offsets = columns["offset"]
        self._check_partition(columns["source_partition"])
        check_offsets(offsets, self.start, self._what)
        if len(offsets):
            self.start = After(offsets[len(offsets) - 1].as_py())
        count, done = rows_until(offsets, self.read.end)
        constants = {"stream": self.read.stream, "partition": self.read.partition}
        arrays = [
            repeated(constants[name], count) if name in constants else columns[name].slice(0, count)
            for name in self._columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        first = offsets[0].as_py() if len(offsets) else None
        last = offsets[count - 1].as_py() if count else None
        return DecodedRows(rows_that_match(batch, self.residual, self.read.columns), first, last, done)

    def _from_start(self, block: MessageBlock) -> MessageBlock:
        """Drop the events before the start, if the link began before it."""
        if self.dropped is None or not isinstance(self.start, At):
            return block
        columns = decode_columns(block, ("offset", "source_partition"))
        offsets = columns["offset"]
        self._check_partition(columns["source_partition"])
        before, self.dropped = rows_to_drop(offsets, self.start, self.dropped, self._what)
        return MessageBlock(block.buffer, block.starts[before:], block.ends[before:])

    def _without_the_rest(self, block: MessageBlock, fault: TimestampOverflow) -> dict[str, pa.Array]:
        """Decode again without the events beyond the range: an instant there must not fail this read."""
        offsets = decode_columns(block, ("offset",))["offset"]
        count, _ = rows_until(offsets, self.read.end)
        try:
            decode_columns(MessageBlock(block.buffer, block.starts[:count], block.ends[:count]), self._decoded)
        except TimestampOverflow as inside:
            raise TimestampOverflow(
                f"{self._what}: {inside}; set option 'timestampOverflow' to 'null' to read such instants as NULL"
            ) from fault
        return decode_columns(block, self._decoded, overflow="null")

    @property
    def _what(self) -> str:
        return f"stream '{self.read.stream}' partition '{self.read.partition}'"

    def _check_partition(self, sources: Any) -> None:
        wrong = pc.index(pc.not_equal(sources, text_scalar(self.read.partition)), TRUE).as_py()
        if wrong >= 0:
            fault = WrongPartition(
                f"{self._what}: a delivery says that it comes from partition '{sources[wrong].as_py()}' (ES-118)"
            )
            fault.row = wrong
            raise fault
