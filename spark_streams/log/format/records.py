"""Decodes stored batches into columns: where each value and key lies, without a Python object per record."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.log.format.record_batch import BatchFault, BatchHeader, Header, from_stored
from spark_streams.log.format.record_bounds import record_bounds
from spark_streams.log.format.varint import Longs, decode_varint, decode_varints
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns

Rows = slice | Longs


@dataclass(frozen=True)
class Records:
    """n records in log order, as columns.

    Args:
        offsets: int64[n], the numbers of the events; rising, without gaps within one call.
        timestamps: int64[n], ms since the epoch; ``NO_TIMESTAMP`` for none.
        buffer: the bytes that the starts and ends point into.
        value_starts, value_ends: int64[n], ``buffer[start:end]`` is the value; a null value is an empty one.
        key_starts, key_ends: int64[n], ``buffer[start:end]`` is the key; both are -1 for a null key.
        batch_rows: the rows at which a stored batch begins, rising. Row 0 is always among them, also where a slice
            begins inside of a batch; empty when there is no row.
    """

    offsets: Longs
    timestamps: Longs
    buffer: bytes
    value_starts: Longs
    value_ends: Longs
    key_starts: Longs
    key_ends: Longs
    batch_rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def value(self, row: int) -> bytes:
        """Return one value; for tests and tools, not for hot paths."""
        return self.buffer[int(self.value_starts[row]) : int(self.value_ends[row])]

    def key(self, row: int) -> bytes | None:
        """Return one key, or None; for tests and tools, not for hot paths."""
        start = int(self.key_starts[row])
        return None if start < 0 else self.buffer[start : int(self.key_ends[row])]

    def slice(self, start: int, stop: int | None = None) -> Records:
        """Return rows ``start`` (inclusive) to ``stop`` (exclusive) over the same buffer."""
        rows = np.s_[start:stop]
        first, last, _ = rows.indices(len(self.offsets))
        within = self.batch_rows[bisect_right(self.batch_rows, first) : bisect_left(self.batch_rows, last)]
        return self._at(rows, (0, *(row - first for row in within)) if first < last else ())

    def take(self, rows: NDArray[np.int64]) -> Records:
        """Return some rows over the same buffer; ``batch_rows`` of the result says nothing of stored batches.

        Args:
            rows: int64, rising.
        """
        return self._at(rows, (0,) if len(rows) else ())

    def _at(self, rows: Rows, batch_rows: tuple[int, ...]) -> Records:
        return Records(
            self.offsets[rows],
            self.timestamps[rows],
            self.buffer,
            self.value_starts[rows],
            self.value_ends[rows],
            self.key_starts[rows],
            self.key_ends[rows],
            batch_rows,
        )


def decode_batches(buffer: bytes, batches: list[tuple[int, BatchHeader]]) -> Records:
    """Decode verified batches that lie in one buffer.

    Args:
        buffer: holds the batches.
        batches: position and header of each, in log order.

    Raises:
        BatchFault: a record does not fit its batch.
    """
    starts, ends = record_bounds(buffer, batches)
    raw = np.frombuffer(buffer, np.uint8)
    counts = np.array([h.records_count for _, h in batches], np.int64)

    def spread(values: list[int]) -> Longs:
        return np.repeat(np.array(values, np.int64), counts)

    try:
        delta, at = decode_varints(raw, starts + 1)
        offset_delta, at = decode_varints(raw, at)
        key_size, at = decode_varints(raw, at)
        key_starts, key_ends = np.full(len(at), -1), np.full(len(at), -1)
        if (key_size != -1).any():
            # Differences, not sums: a size near 2^63 would wrap around and seem to fit.
            if (key_size < -1).any() or (key_size > ends - at).any():
                raise ValueError("a key runs past its record")
            known = key_size >= 0
            np.copyto(key_starts, at, where=known)
            at = at + np.maximum(key_size, 0)
            np.copyto(key_ends, at, where=known)
        value_size, value_starts = decode_varints(raw, at)
        if (value_size < -1).any() or (np.maximum(value_size, 0) >= ends - value_starts).any():
            raise ValueError("a value runs past its record")
        value_ends = value_starts + np.maximum(value_size, 0)
    except ValueError as fault:
        raise BatchFault(str(fault)) from fault
    firsts = np.cumsum(counts) - counts
    expected = np.arange(len(starts), dtype=np.int64) - np.repeat(firsts, counts)
    if not np.array_equal(offset_delta, expected):
        raise BatchFault("the records' offset deltas do not count up from 0")
    appended = np.array([h.append_time for _, h in batches], np.bool_)
    extended = np.array([h.extended for _, h in batches], np.bool_)
    highest = np.array([h.max_timestamp for _, h in batches], np.int64)
    if appended.all():
        timestamps = np.repeat(from_stored(highest, extended), counts)
    else:
        created = spread([h.base_timestamp for _, h in batches]) + delta  # modulo 2^64, as NumPy adds arrays
        stored = np.where(np.repeat(appended, counts), np.repeat(highest, counts), created)
        timestamps = from_stored(stored, np.repeat(extended, counts))
    offsets = spread([h.base_offset for _, h in batches]) + offset_delta
    rows = tuple(firsts.tolist())
    return Records(offsets, timestamps, buffer, value_starts, value_ends, key_starts, key_ends, rows)


def record_headers(records: Records, row: int) -> list[Header]:
    """Return the headers of one record.

    Raises:
        BatchFault: they do not fit the record.
    """
    try:
        return decode_headers(records.buffer, int(records.value_ends[row]), len(records.buffer))
    except ValueError as fault:
        raise BatchFault(f"record headers: {fault}") from fault


def decode_headers(buffer: bytes, at: int, end: int) -> list[Header]:
    """Decode the headers of one record, their count first, from ``at``; ``end`` (exclusive) bounds them.

    Raises:
        ValueError: they run past ``end``.
    """
    count, at = decode_varint(buffer, at)
    if not 0 <= count <= end - at:
        raise ValueError(f"{count} headers, in {end - at} bytes")

    def sized(at: int, least: int) -> tuple[bytes | None, int]:
        size, at = decode_varint(buffer, at)
        if not least <= size <= end - at:
            raise ValueError(f"{size} bytes of a header, {end - at} are there")
        return (None, at) if size < 0 else (buffer[at : at + size], at + size)

    headers: list[Header] = []
    for _ in range(count):
        name, at = sized(at, 0)
        value, at = sized(at, -1)
        headers.append((name or b"", value))
    return headers


def message_columns_of(records: Records, names: tuple[str, ...]) -> dict[str, pa.Array]:
    """Decode columns of stored AMQP messages.

    A door does not check bodies, so there may be messages that cannot be decoded. The value of such a message is its
    stored bytes, and its other columns are null; an instant beyond int64 microseconds is null too.

    Args:
        records: of one partition; their values are AMQP messages.
        names: of ``COLUMN_TYPES`` in ``wire/amqp/columns/decode.py``.

    Returns:
        Name to array, in the order of ``names``, each with one row per record.
    """
    try:
        return decode_columns(
            MessageBlock(records.buffer, records.value_starts, records.value_ends), names, overflow="null"
        )
    except RemoteProtocolError:
        half = len(records) // 2
        if half:
            parts = [message_columns_of(each, names) for each in (records.slice(0, half), records.slice(half))]
            return {name: pa.concat_arrays([part[name] for part in parts]) for name in names}
        none = np.empty(0, np.int64)
        return {
            name: pa.array([records.value(0)] if name == "value" else [None], column.type)
            for name, column in decode_columns(MessageBlock(b"", none, none), names).items()
        }
