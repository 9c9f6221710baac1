"""Encodes one append as the record batches to store: where batches end, and their offsets and timestamps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.log.config import StreamConfig
from spark_streams.log.format.record_batch import (
    FEW_RECORDS,
    HEADER_BYTES,
    BatchHeader,
    Header,
    encode_batch,
    encode_few,
    parse_header,
    seal,
)
from spark_streams.log.format.timestamps import NO_TIMESTAMP, to_stored

RECORD_BYTES = 8
"""About how many bytes a record without headers has besides its key and value."""
MAX_BATCH_BYTES = 1 << 20
"""A larger append is stored as several batches, so that a reader never decodes much more than it needs."""

LARGE_ROWS = 1 << 13
LARGE_BYTES = 2 << 20
"""Encoding more rows or bytes takes longer than a few milliseconds."""

Notes = Sequence[Header] | Callable[[int, int], Sequence[Header]]
"""The notes of every batch, or a function from a batch's rows, start (inclusive) and stop (exclusive), to its notes."""


class Batching(NamedTuple):
    """What the batches of one append have in common.

    Args:
        config: the stream's settings.
        next_offset: the offset of the first record.
        append_time_ms: the time of the append, in ms; None in a stream of create time.
    """

    config: StreamConfig
    next_offset: int
    append_time_ms: int | None

    @property
    def extended(self) -> bool:
        """Whether batches carry KIP-228's bit."""
        return self.config.timestamp_format == "extended"


def is_large(values: pa.Array | Sequence[bytes], keys: pa.Array | Sequence[bytes | None] | None) -> bool:
    """Return whether encoding takes so long that other appends should not wait for it."""
    arrays = [each for each in (values, keys) if isinstance(each, pa.Array)]
    return len(values) > LARGE_ROWS or sum(each.nbytes for each in arrays) > LARGE_BYTES


def _binary(values: pa.Array | Sequence[bytes | None]) -> pa.LargeBinaryArray:
    array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, pa.large_binary())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if pa.types.is_large_binary(array.type) else array.cast(pa.large_binary())


def _runs(
    sizes: npt.NDArray[np.int64], timestamps: npt.NDArray[np.int64] | None, groups: npt.NDArray[np.int64] | None
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each batch; it ends by bytes, with a group, or between "no timestamp" and instants.

    MIN + delta would overflow if the two were mixed, so records without a timestamp get batches of their own.
    """
    ends = np.arange(1, len(sizes) + 1) if groups is None else np.cumsum(groups)
    if groups is not None and (ends[-1] != len(sizes) or (groups < 1).any()):
        raise ValueError(f"groups of {int(ends[-1])} records for {len(sizes)} values, each of at least one")
    number = np.cumsum(sizes)[ends - 1] // MAX_BATCH_BYTES
    cuts = set(ends[:-1][number[1:] != number[:-1]].tolist())
    if timestamps is not None:
        none = timestamps == NO_TIMESTAMP
        changes = np.flatnonzero(none[1:] != none[:-1]) + 1
        if groups is not None and not np.isin(changes, ends).all():
            raise ValueError("records of one group with and without a timestamp: one batch cannot hold both")
        cuts.update(changes.tolist())
    yield from pairwise([0, *sorted(cuts), len(sizes)])


def _instants(timestamps: npt.NDArray[np.int64] | Sequence[int | None]) -> npt.NDArray[np.int64]:
    if isinstance(timestamps, np.ndarray):
        if timestamps.dtype.kind != "i":
            raise ValueError(f"timestamps are {timestamps.dtype}, expected int64, in ms since the epoch")
        return timestamps.astype(np.int64)
    try:
        return np.array([NO_TIMESTAMP if t is None else t for t in timestamps], np.int64)
    except OverflowError as fault:
        raise ValueError("a timestamp does not fit 64 bits: expected ms since the epoch") from fault


def _plain(values: pa.Array | Sequence[bytes | None]) -> list[bytes | None] | None:
    """Return a few values as Python objects; None when their type needs a conversion by Arrow."""
    if isinstance(values, pa.Array):
        known = pa.types.is_large_binary(values.type) or pa.types.is_binary(values.type)
        return values.to_pylist() if known else None
    known = isinstance(values, list) and all(v is None or type(v) is bytes for v in values)
    return list(values) if known else None


def _encode_few(
    values: pa.Array | Sequence[bytes],
    keys: pa.Array | Sequence[bytes | None] | None,
    timestamps: npt.NDArray[np.int64] | Sequence[int | None] | None,
    batching: Batching,
    notes: Notes,
) -> list[tuple[BatchHeader, bytes]] | None:
    """Encode a few records of an append-time stream without Arrow, whose fixed cost would be most of the time.

    Returns:
        One batch, the same as through Arrow; None when ``encode_records`` has to go through Arrow, as for bad input.
    """
    now = batching.append_time_ms
    if now is None or (timestamps is not None and len(timestamps) != len(values)):
        return None
    bodies = _plain(values)
    names: list[bytes | None] | None = [None] * len(values) if keys is None else _plain(keys)
    if not bodies or names is None or len(names) != len(bodies):
        return None
    known = [body for body in bodies if body is not None]
    if len(known) != len(bodies) or sum(map(len, known)) + sum(len(k) for k in names if k) > MAX_BATCH_BYTES // 2:
        return None
    encoded = encode_few(
        known,
        names,
        [now] * len(known),
        base_offset=batching.next_offset,
        extended=batching.extended,
        append_time=True,
        headers=notes(0, len(known)) if callable(notes) else notes,
    )
    return [(parse_header(encoded), encoded)]


def encode_records(
    values: pa.Array | Sequence[bytes],
    keys: pa.Array | Sequence[bytes | None] | None,
    timestamps: npt.NDArray[np.int64] | Sequence[int | None] | None,
    batching: Batching,
    notes: Notes = (),
    groups: npt.NDArray[np.int64] | None = None,
    *,
    large: bool = False,
) -> list[tuple[BatchHeader, bytes]]:
    """Encode one append as batches.

    Args:
        values: the values, none null, at least one.
        keys: as many keys, or None when all are null.
        timestamps: as many instants in ms, ``NO_TIMESTAMP`` or None for none; unused in a stream of append time.
        batching: settings, first offset and time of the append.
        notes: headers of the first record of each batch.
        groups: int64[k], how many consecutive records each group has, which share a batch; None: one each.
        large: the answer of ``is_large``.

    Returns:
        Header and bytes of each batch, in order.

    Raises:
        ValueError: no value, a null value, lengths that differ, or a group that no batch can hold.
        TimestampRefused: the stream's format cannot hold a timestamp.
    """
    little = len(values) <= FEW_RECORDS and not large
    few = _encode_few(values, keys, timestamps, batching, notes) if little else None
    if few is not None:
        return few
    bodies = _binary(values)
    names = None if keys is None else _binary(keys)
    if not len(bodies) or bodies.null_count:
        raise ValueError("an append needs at least one value, and none of them null")
    instants = None if timestamps is None else _instants(timestamps)
    for column in (names, instants):
        if column is not None and len(column) != len(bodies):
            raise ValueError(f"{len(bodies)} values, but keys or timestamps of another number")
    # Keys and what a record costs by itself count too: a million empty values are no small batch.
    sizes = pc.binary_length(bodies).to_numpy(zero_copy_only=False).astype(np.int64) + RECORD_BYTES
    if names is not None:
        sizes += pc.fill_null(pc.binary_length(names), 0).to_numpy(zero_copy_only=False)
    stored: npt.NDArray[np.int64] | int
    if batching.append_time_ms is None:
        instants = np.full(len(bodies), NO_TIMESTAMP, np.int64) if instants is None else instants
        stored = to_stored(instants, batching.extended, batching.config.legacy_negative)
        runs = _runs(sizes, np.where(stored < 0, instants, stored), groups)
    else:
        stored, runs = batching.append_time_ms, _runs(sizes, None, groups)
    batches: list[tuple[BatchHeader, bytes]] = []
    offset = batching.next_offset
    for start, stop in runs:
        encoded = encode_batch(
            bodies.slice(start, stop - start),
            None if names is None else names.slice(start, stop - start),
            stored if isinstance(stored, int) else stored[start:stop],
            base_offset=offset,
            extended=batching.extended,
            headers=notes(start, stop) if callable(notes) else notes,
            large=large,
        )
        batches.append((parse_header(encoded), encoded))
        offset += stop - start
    return batches


def place(batches: Sequence[tuple[BatchHeader, bytes]], batching: Batching) -> list[tuple[BatchHeader, bytes]]:
    """Return batches, encoded before, with the offsets and the append time of ``batching``.

    Args:
        batches: header and bytes of each.
        batching: the offset of the first record, and the time of the append.
    """
    placed: list[tuple[BatchHeader, bytes]] = []
    offset, now = batching.next_offset, batching.append_time_ms
    for header, encoded in batches:
        sealed = seal(
            memoryview(encoded)[HEADER_BYTES:],
            header.records_count,
            base_offset=offset,
            base_timestamp=header.base_timestamp if now is None else now,
            max_timestamp=header.max_timestamp if now is None else now,
            attributes=header.attributes,
        )
        placed.append((parse_header(sealed), sealed))
        offset += header.records_count
    return placed
