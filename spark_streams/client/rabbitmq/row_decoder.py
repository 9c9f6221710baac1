"""Decodes the records of chunks into rows, in columns, whatever the bytes are, and filters them.

By convention a message is a sequence of AMQP 1.0 sections. A message that begins with no section becomes a row whose
value is the bytes themselves; one that begins with a section and is broken is an error, for the columns that need the
broken part. All records of a chunk share its timestamp.

Spec: docs/specifications.md, S-34, S-36, S-41 to S-44, S-91.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.event_rows import Columns, first_unreadable, matching_columns, unreadable
from spark_streams.client.log_client import RangeRead
from spark_streams.client.rabbitmq.pushdown import FilterValues, PushedFilter
from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.row_columns import columns_needed, message_columns
from spark_streams.offsets import format_offset, offset_column
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.wire.amqp.columns.block import MessageBlock, chosen, foreign
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.plain_bodies import plain_body_columns
from spark_streams.wire.amqp.columns.properties import in_microseconds
from spark_streams.wire.amqp.columns.single_message import Overflow
from spark_streams.wire.columnar.arrays import fixed_width, repeated
from spark_streams.wire.columnar.byte_view import Positions, Words, run_ends
from spark_streams.wire.columnar.gather import gather
from spark_streams.wire.rabbitmq.chunk import ChunkRecords

_OURS: Final = frozenset({"stream", "partition", "offset", "timestamp", "timestamp_ms"})
"""Columns that do not come out of the message."""
_MAPS: Final = ("application_properties", "message_annotations")
NO_TIMESTAMP: Final = -(2**63)
"""The time of a chunk with records that have no timestamp: only the reference log has such chunks."""

_LARGE_BYTES: Final = 1 << 19
"""A chunk of this size or more is not copied to lie beside its neighbours; decoding a smaller one alone costs more."""

Longs = NDArray[np.int64]


class RowDecoder:
    """Decodes the records of one range.

    Args:
        read: the range and its columns.
        pushed: the filter of the rows.
        max_rows: rows of a batch at most.
        max_bytes: bytes of a batch's messages at most, but at least one message.

    Raises:
        LocalProtocolError: filter values are taken from a column that does not exist.
        FilterError: an expression refers to something that messages cannot have.
    """

    def __init__(self, read: RangeRead, pushed: PushedFilter, max_rows: int, max_bytes: int) -> None:
        self._read = read
        self._pushed = pushed
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._schema = pa.schema([FULL_MESSAGE_SCHEMA.field(c) for c in read.columns])
        # The columns that the filters refer to.
        self._needed = set() if pushed.residual is None else set(columns_needed(pushed.residual))
        if pushed.values is not None:
            self._needed.add(_column_of(pushed.values.taken_from))
        self._texts = {"stream": read.stream, "partition": read.partition}
        # pa.array imports pandas, which a query without filter values can do without.
        self._values = None if pushed.values is None else pa.array(pushed.values.values, pa.string())

    def batches(self, chunks: Sequence[ChunkRecords]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some chunks, each with a record or more, in their order, in batches that are not empty.

        Args:
            chunks: all but the last one fit into one batch together. The last one may have any size; where it does not
                fit too, it is decoded by itself, without a copy.
        """
        rows = sum(chunk.starts.size for chunk in chunks)
        size = sum(map(_size, chunks))
        fits = rows <= self._max_rows and size <= self._max_bytes
        for together in [chunks] if fits else [chunks[:-1], chunks[-1:]]:
            for group in _groups(together):
                yield from self._cut(group)

    def _cut(self, chunks: Sequence[ChunkRecords]) -> Iterator[pa.RecordBatch]:
        block = _joined(chunks)
        offsets = np.concatenate([chunk.offsets for chunk in chunks])
        times = np.repeat([chunk.header.timestamp_ms for chunk in chunks], [chunk.starts.size for chunk in chunks])
        ends = run_ends(np.asarray(block.ends) - block.starts[0], self._max_bytes, self._max_rows)
        for rows in map(slice, [0, *ends], ends):
            yield from self._batches(chosen(block, rows), offsets[rows], times[rows])

    def _batches(self, block: MessageBlock, offsets: Longs, times: Longs) -> Iterator[pa.RecordBatch]:
        """Yield the rows that match; before an error about one of them, those before it."""

        def some(rows: slice) -> Iterator[pa.RecordBatch]:
            return self._matching(chosen(block, rows), offsets[rows], times[rows])

        try:
            yield from list(some(slice(None)))
        except RemoteProtocolError as reason:
            row, fault = first_unreadable(len(offsets), lambda rows: list(some(rows)))
            yield from some(slice(row))
            raise unreadable(self._read, format_offset(int(offsets[row])), fault or reason) from reason

    def _matching(self, block: MessageBlock, offsets: Longs, times: Longs) -> Iterator[pa.RecordBatch]:
        """Yield the rows that match, if there are any."""

        def columns_of(rows: Positions | None, names: Sequence[str]) -> Columns:
            at = slice(None) if rows is None else rows
            return self._columns(names, chosen(block, at), offsets[at], times[at])

        def passed(columns: Columns) -> pa.BooleanArray | None:
            return self._passed(columns, len(offsets))

        names = self._read.columns
        columns = matching_columns(self._read, names, self._needed, passed, columns_of)
        if columns is not None:
            yield pa.RecordBatch.from_arrays([columns[name] for name in names], schema=self._schema)

    def _columns(self, names: Sequence[str], block: MessageBlock, offsets: Longs, times: Longs) -> Columns:
        """Return columns of rows, which have these messages, offsets and times in milliseconds."""
        inner = [name for name in names if name not in _OURS]
        columns = decoded_or_raw(block, inner, self._read.timestamp_overflow) if inner else {}
        for name in _OURS & set(names):
            if name in self._texts:
                columns[name] = repeated(self._texts[name], len(offsets))
            elif name == "offset":
                columns[name] = offset_column(offsets)
            else:
                columns[name] = fixed_width(times, pa.int64(), times != NO_TIMESTAMP)
                if name == "timestamp":
                    columns[name] = in_microseconds(columns[name], "its chunk's time", self._read.timestamp_overflow)
        return {name: columns[name] for name in names}

    def _passed(self, columns: Columns, count: int) -> pa.BooleanArray | None:
        """Return which of ``count`` rows match the filters; None without a filter."""
        values, residual = self._pushed.values, self._pushed.residual
        passed = None if values is None else pc.fill_null(self._wanted(values, columns), False)
        if residual is None:
            return passed
        matching = mask(residual, message_columns(columns), count)
        return matching if passed is None else pc.and_(passed, matching)

    def _wanted(self, filters: FilterValues, columns: Columns) -> pa.BooleanArray:
        kind, _, name = filters.taken_from.partition(".")
        column = columns[_column_of(filters.taken_from)]
        if kind in _MAPS:
            column = pc.map_lookup(column, pa.scalar(name), "first")
        elif kind == "properties":
            column = pc.struct_field(column, name)
        if not pa.types.is_binary(column.type):  # user_id is binary, and need not be text
            column = column.cast(pa.string())
        assert self._values is not None  # there are filter values here
        wanted = pc.is_in(column, value_set=self._values.cast(column.type))
        return pc.or_(wanted, column.is_null()) if filters.match_unfiltered else wanted


def _column_of(taken_from: str) -> str:
    kind, _, name = taken_from.partition(".")
    fields = {f.name for f in FULL_MESSAGE_SCHEMA.field("properties").type}
    if taken_from == "key" or (kind in _MAPS and name) or (kind == "properties" and name in fields):
        return kind
    raise LocalProtocolError(f"filter values taken from '{taken_from}': there is no such thing")


def _groups(chunks: Sequence[ChunkRecords]) -> Iterator[list[ChunkRecords]]:
    """Yield the chunks in groups that are decoded together: those of one buffer, and small ones, which are copied."""
    group: list[ChunkRecords] = []
    for chunk in chunks:
        if group and chunk.buffer is not group[-1].buffer and max(_size(chunk), _size(group[-1])) >= _LARGE_BYTES:
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _size(chunk: ChunkRecords) -> int:
    return int(chunk.ends[-1]) - int(chunk.starts[0])


def _joined(chunks: Sequence[ChunkRecords]) -> MessageBlock:
    """Return the messages of several chunks in one buffer: the one that they are in, or a copy."""
    buffer = chunks[0].buffer
    if all(chunk.buffer is buffer for chunk in chunks):
        starts, ends = [chunk.starts for chunk in chunks], [chunk.ends for chunk in chunks]
        return MessageBlock(buffer, np.concatenate(starts), np.concatenate(ends))
    parts, starts, ends, at = [], [], [], 0
    for chunk in chunks:
        first, end = int(chunk.starts[0]), int(chunk.ends[-1])
        parts.append(memoryview(chunk.buffer)[first:end])
        starts.append(chunk.starts + (at - first))
        ends.append(chunk.ends + (at - first))
        at += end - first
    return MessageBlock(b"".join(parts), np.concatenate(starts), np.concatenate(ends))


def decoded_or_raw(block: MessageBlock, names: Sequence[str], overflow: Overflow) -> Columns:
    """Decode columns of messages; a message that is not AMQP becomes a row with its bytes as ``value``.

    Args:
        block: the messages.
        names: names of ``COLUMN_TYPES``, without those that only deliveries have.
        overflow: as for ``decode_columns``.

    Raises:
        RemoteProtocolError: a message that is AMQP cannot be decoded.
        TimestampOverflow: as ``decode_columns``.
    """
    columns = plain_body_columns(block, names)
    if columns is not None:
        return columns
    raw = foreign(block)
    if not raw.any():
        return decode_columns(block, names, overflow=overflow)
    starts, ends = np.asarray(block.starts), np.asarray(block.ends)
    good, rows = np.flatnonzero(~raw), np.flatnonzero(raw)
    columns = decode_columns(chosen(block, good), names, overflow=overflow)
    place = np.zeros(len(raw), np.int64)
    place[good] = np.arange(len(good))
    mixed = {name: column.take(pa.array(place, mask=raw)) for name, column in columns.items()}
    for name in mixed.keys() & {"value", "message"}:
        place[rows] = len(good) + np.arange(len(rows))
        words = Words(np.frombuffer(block.buffer, np.uint8))
        bodies = gather(words, starts[rows], ends[rows] - starts[rows], columns[name].type)
        mixed[name] = pa.concat_arrays([columns[name], bodies]).take(pa.array(place))
    return mixed
