"""Decodes the records of chunks into rows, in columns, whatever the bytes are, and filters them.

By convention a message is a sequence of AMQP 1.0 sections. Any other message becomes a row whose value is the bytes
themselves. All records of a chunk share its timestamp.

With a filter, the decoder first decodes the columns that the filter refers to, and the others only for matching rows.

Spec: docs/specifications.md, S-34, S-36, S-41 to S-44, S-91.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.digested_rows import run_ends
from spark_streams.client.log_client import RangeRead
from spark_streams.client.rabbitmq.pushdown import FilterValues, PushedFilter
from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.row_columns import columns_needed, message_columns
from spark_streams.offsets import offset_column
from spark_streams.rows import FULL_MESSAGE_SCHEMA, TIMESTAMP
from spark_streams.wire.amqp.columns.block import MessageBlock, chosen
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.columns.plain_bodies import plain_body_columns
from spark_streams.wire.amqp.columns.single_message import TimestampOverflow
from spark_streams.wire.columnar.arrays import fixed_width, repeated
from spark_streams.wire.columnar.byte_view import Words
from spark_streams.wire.columnar.gather import gather
from spark_streams.wire.rabbitmq.chunk import ChunkRecords

_OURS: Final = frozenset({"stream", "partition", "offset", "timestamp"})
"""Columns that do not come out of the message."""
_MAX_MS: Final = (2**63 - 1) // 1000
_MAPS: Final = ("application_properties", "message_annotations")
NO_TIMESTAMP: Final = -(2**63)
"""The time of a chunk with records that have no timestamp: only the reference log has such chunks."""

_LARGE_BYTES: Final = 1 << 19
"""A chunk of this size or more is not copied to lie beside its neighbours; to decode a smaller one alone costs more."""

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
        # The columns that the filters refer to, in the order of the schema.
        needed = set() if pushed.residual is None else set(columns_needed(pushed.residual))
        if pushed.values is not None:
            needed.add(_column_of(pushed.values.taken_from))
        self._needed = pa.schema([field for field in FULL_MESSAGE_SCHEMA if field.name in needed])
        self._names: dict[str, pa.StringArray] = {}
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
            batch = self._batch(chosen(block, rows), offsets[rows], times[rows])
            if batch is not None:
                yield batch

    def _batch(self, block: MessageBlock, offsets: Longs, times: Longs) -> pa.RecordBatch | None:
        """Return the rows that match; None for none."""
        columns = self._columns(self._needed.names, block, offsets, times)
        passed = self._passed(columns, len(offsets))
        if passed is not None and passed.true_count < len(passed):
            if not passed.true_count:
                return None
            rows = np.flatnonzero(passed.to_numpy(zero_copy_only=False))
            columns = {name: column.filter(passed) for name, column in columns.items()}
            block, offsets, times = chosen(block, rows), offsets[rows], times[rows]
        missing = [name for name in self._read.columns if name not in columns]
        columns |= self._columns(missing, block, offsets, times)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._read.columns], schema=self._schema)

    def _columns(self, names: Sequence[str], block: MessageBlock, offsets: Longs, times: Longs) -> dict[str, pa.Array]:
        """Return columns of rows, which have these messages, offsets and times in milliseconds."""
        inner = tuple(sorted(set(names) - _OURS))
        columns = decoded_or_raw(block, inner, self._read.timestamp_overflow) if inner else {}
        for name in names:
            if name in ("stream", "partition"):
                columns[name] = self._repeated(name, len(offsets))
            elif name == "offset":
                columns[name] = offset_column(offsets)
            elif name == "timestamp":
                columns[name] = self._timestamps(times)
        return columns

    def _repeated(self, name: str, count: int) -> pa.StringArray:
        """Return the stream's or the partition's name ``count`` times: a part of a column that other batches share."""
        column = self._names.get(name)
        if column is None or len(column) < count:
            text = self._read.stream if name == "stream" else self._read.partition
            column = self._names[name] = repeated(text, count)
        return column.slice(0, count)

    def _passed(self, columns: dict[str, pa.Array], count: int) -> pa.BooleanArray | None:
        """Return which of ``count`` rows match the filters; None without a filter."""
        values, residual = self._pushed.values, self._pushed.residual
        passed = None if values is None else pc.fill_null(self._wanted(values, columns), False)
        if residual is None:
            return passed
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._needed.names], schema=self._needed)
        matching = mask(residual, message_columns(batch), count)
        return matching if passed is None else pc.and_(passed, matching)

    def _timestamps(self, times: Longs) -> pa.Array:
        absent = (times > _MAX_MS) | (times < -_MAX_MS)  # ``NO_TIMESTAMP`` is among them
        if not absent.any():
            return fixed_width(times * 1000, TIMESTAMP)
        beyond = absent & (times != NO_TIMESTAMP)
        if beyond.any() and self._read.timestamp_overflow == "fail":
            raise TimestampOverflow(
                f"column 'timestamp': a chunk's time, {int(times[beyond][0])} ms, does not fit microseconds; option "
                "'timestampOverflow' set to 'null' makes it NULL"
            )
        return fixed_width(np.where(absent, 0, times) * 1000, TIMESTAMP, ~absent)

    def _wanted(self, filters: FilterValues, columns: dict[str, pa.Array]) -> pa.BooleanArray:
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


def decoded_or_raw(block: MessageBlock, names: Sequence[str], overflow: Any) -> dict[str, pa.Array]:
    """Decode columns of messages; a message that is not AMQP becomes a row with its bytes as ``value``.

    Args:
        block: the messages.
        names: names of ``COLUMN_TYPES``, without those that only deliveries have.
        overflow: ``fail`` or ``null``, as for ``decode_columns``.
    """
    columns = plain_body_columns(block, names)
    if columns is not None:
        return columns
    starts, ends = np.asarray(block.starts), np.asarray(block.ends)
    empty = starts == ends
    # An AMQP section begins with byte 0: a message that begins otherwise is not AMQP.
    raw = ~empty
    raw[raw] = np.frombuffer(block.buffer, np.uint8)[starts[raw]] != 0
    try:
        columns = _mixed(block, names, overflow, raw)
    except TimestampOverflow:
        raise
    except RemoteProtocolError:
        good = np.flatnonzero(~raw)
        raw[good] = incoming_columns(MessageBlock(block.buffer, starts[good], ends[good]), thorough=True).malformed
        columns = _mixed(block, names, overflow, raw)
    if "value" in columns and empty.any():
        # A message without bytes has no sections; its body is empty.
        columns["value"] = pc.if_else(pa.array(empty), pa.scalar(b""), columns["value"])
    return columns


def _mixed(block: MessageBlock, names: Sequence[str], overflow: Any, raw: NDArray[np.bool_]) -> dict[str, pa.Array]:
    if not raw.any():
        return decode_columns(block, names, overflow=overflow)
    starts, ends = np.asarray(block.starts), np.asarray(block.ends)
    good, rows = np.flatnonzero(~raw), np.flatnonzero(raw)
    columns = decode_columns(MessageBlock(block.buffer, starts[good], ends[good]), names, overflow=overflow)
    place = np.zeros(len(raw), np.int64)
    place[good] = np.arange(len(good))
    mixed = {name: column.take(pa.array(place, mask=raw)) for name, column in columns.items()}
    for name in mixed.keys() & {"value", "message"}:
        place[rows] = len(good) + np.arange(len(rows))
        words = Words(np.frombuffer(block.buffer, np.uint8))
        bodies = gather([words], starts[rows], ends[rows] - starts[rows], columns[name].type)
        mixed[name] = pa.concat_arrays([columns[name], bodies]).take(pa.array(place))
    return mixed
