"""From what a producer hands over to the batches that are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.log.config import StreamConfig
from spark_streams.log.record_batch import (
    APPEND_TIME,
    EXTENDED,
    HEADER_BYTES,
    BatchFault,
    BatchHeader,
    encode_batch,
    parse_header,
    seal,
    verify,
)
from spark_streams.log.records import decode_batches
from spark_streams.log.timestamps import NO_TIMESTAMP, TimestampRefused, to_stored

__all__ = ["Batching", "encode_records", "reframe"]

MAX_BATCH_BYTES = 1 << 20
"""A larger append is stored as several batches, so that a reader never has to decode much more than it asked for."""


@dataclass(frozen=True)
class Batching:
    """What batches of one append need to know; ``append_time_ms`` is None in a stream of create time."""

    config: StreamConfig
    next_offset: int
    append_time_ms: int | None

    @property
    def extended(self) -> bool:
        """Whether batches carry KIP-228's bit."""
        return self.config.timestamp_format == "extended"


def _binary(values: pa.Array | Sequence[bytes | None]) -> pa.LargeBinaryArray:
    array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, pa.large_binary())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if pa.types.is_large_binary(array.type) else array.cast(pa.large_binary())


def _runs(timestamps: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut rows into batches: by bytes, and wherever "no timestamp" and instants meet.

    MIN + delta would overflow if the two were mixed, so records without a timestamp get batches of their own.
    """
    none = timestamps == NO_TIMESTAMP
    cuts = set(np.flatnonzero(none[1:] != none[:-1]) + 1)
    chunk = np.cumsum(sizes) // MAX_BATCH_BYTES
    cuts |= set(np.flatnonzero(chunk[1:] != chunk[:-1]) + 1)
    edges = [0, *sorted(int(c) for c in cuts), len(timestamps)]
    yield from pairwise(edges)


def encode_records(
    values: pa.Array | Sequence[bytes],
    keys: pa.Array | Sequence[bytes | None] | None,
    timestamps: npt.NDArray[np.int64] | Sequence[int | None] | None,
    batching: Batching,
) -> list[tuple[BatchHeader, bytes]]:
    """Encode one append as batches.

    Raises:
        ValueError: no value, a null value, or lengths that differ.
        TimestampRefused: the stream's format cannot hold a timestamp.

    """
    bodies = _binary(values)
    names = None if keys is None else _binary(keys)
    if not len(bodies) or bodies.null_count:
        raise ValueError("an append needs at least one value, and none of them null")
    if timestamps is None or batching.append_time_ms is not None:
        instants = np.full(len(bodies), NO_TIMESTAMP, np.int64)
    elif isinstance(timestamps, np.ndarray):
        instants = timestamps.astype(np.int64)
    else:
        instants = np.array([NO_TIMESTAMP if t is None else t for t in timestamps], np.int64)
    if len(instants) != len(bodies) or (names is not None and len(names) != len(bodies)):
        raise ValueError(f"{len(bodies)} values, but keys or timestamps of another number")
    stored = to_stored(instants, batching.extended, batching.config.legacy_negative)
    sizes = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64)
    batches: list[tuple[BatchHeader, bytes]] = []
    offset = batching.next_offset
    for start, stop in _runs(np.where(stored < 0, instants, stored), sizes):
        encoded = encode_batch(
            bodies.slice(start, stop - start),
            None if names is None else names.slice(start, stop - start),
            stored[start:stop],
            base_offset=offset,
            extended=batching.extended,
            append_time_ms=batching.append_time_ms,
        )
        batches.append((parse_header(encoded), encoded))
        offset += stop - start
    return batches


def reframe(encoded: bytes, batching: Batching) -> list[tuple[BatchHeader, bytes]]:
    """Check batches that a producer encoded, and set what the log sets: offsets, and append time where it counts.

    Raises:
        BatchFault: bytes that are no batches, or of a kind that is not stored.
        TimestampRefused: rows W3, W5, W7 and W9 of KIP-228's tables.

    """
    if not encoded:
        raise BatchFault("no batch to append")
    out: list[tuple[BatchHeader, bytes]] = []
    position = 0
    offset = batching.next_offset
    while position < len(encoded):
        header = parse_header(encoded, position)
        verify(encoded, position, header)
        if not header.records_count:
            raise BatchFault("the batch has no records")
        batch = encoded[position : position + header.size]
        position += header.size
        records = decode_batches(batch, [(0, header)])
        instants = records.timestamps
        attributes, base, highest = header.attributes, header.base_timestamp, header.max_timestamp
        if batching.append_time_ms is not None:
            attributes, highest = attributes | APPEND_TIME, batching.append_time_ms
        else:
            if not header.extended and ((instants < 0) & (instants != NO_TIMESTAMP)).any():
                raise TimestampRefused(
                    "a batch without KIP-228's bit holds a negative timestamp other than -1: set the bit if it is meant"
                )
            if header.extended and not batching.extended:
                to_stored(instants, False, batching.config.legacy_negative)
                if (instants < 0).any():
                    out.extend(_degraded(batch, records.timestamps, offset))
                    offset += header.records_count
                    continue
                attributes &= ~EXTENDED
            real = instants[instants != NO_TIMESTAMP]
            none = NO_TIMESTAMP if attributes & EXTENDED else -1
            highest = int(real.max()) if len(real) else none
        sealed = seal(
            batch[HEADER_BYTES:],
            header.records_count,
            base_offset=offset,
            base_timestamp=base,
            max_timestamp=highest,
            attributes=attributes,
        )
        out.append((parse_header(sealed), sealed))
        offset += header.records_count
    return out


def _degraded(batch: bytes, instants: npt.NDArray[np.int64], offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Store the records of an extended batch in one without the bit; what lies before 1970 loses its timestamp."""
    records = decode_batches(batch, [(0, parse_header(batch))])
    stored = to_stored(instants, False, "degrade")
    values = pa.array([records.value(row) for row in range(len(records))], pa.large_binary())
    keys = pa.array([records.key(row) for row in range(len(records))], pa.large_binary())
    sealed = encode_batch(values, keys, stored, base_offset=offset, extended=False)
    yield parse_header(sealed), sealed
