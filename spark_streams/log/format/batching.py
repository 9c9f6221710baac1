"""Encodes one append as record batches: decides where they end, stores their timestamps, and gives them offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.log.config import StreamConfig
from spark_streams.log.format.record_batch import (
    FEW_RECORDS,
    NO_TIMESTAMP,
    BatchHeader,
    Body,
    Header,
    encode_batch,
    encode_few,
    seal,
    to_stored,
)
from spark_streams.wire.columnar.arrays import lengths_of

RECORD_BYTES = 8
"""About how many bytes a record without headers has besides its key and value."""
MAX_BATCH_BYTES = 1 << 20
"""A larger append is stored as several batches, so that a reader never decodes much more than it needs."""

LARGE_ROWS = 1 << 13
LARGE_BYTES = 2 << 20
"""Encoding more rows or bytes takes longer than a few milliseconds."""

Notes = Sequence[Header] | Callable[[int, int], Sequence[Header]]
"""The notes of every batch, or a function from a batch's rows, start (inclusive) and stop (exclusive), to its notes."""


def is_large(values: pa.Array | Sequence[bytes], keys: pa.Array | Sequence[bytes | None] | None) -> bool:
    """Return whether an append takes so long that the loop should not wait for it."""
    arrays = [each for each in (values, keys) if isinstance(each, pa.Array)]
    return len(values) > LARGE_ROWS or sum(each.nbytes for each in arrays) > LARGE_BYTES


def _binary(values: pa.Array | Sequence[bytes | None]) -> pa.LargeBinaryArray:
    array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, pa.large_binary())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array if pa.types.is_large_binary(array.type) else array.cast(pa.large_binary())


def _runs(
    sizes: npt.NDArray[np.int64], changes: npt.NDArray[np.int64], groups: npt.NDArray[np.int64] | None
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each batch; it ends with a group, after enough bytes or before ``changes``.

    ``changes`` has the rows where "no timestamp" follows an instant, or an instant follows "no timestamp". Records
    without a timestamp get batches of their own, as MIN + delta would overflow if the two were mixed.
    """
    ends = np.arange(1, len(sizes) + 1) if groups is None else np.cumsum(groups)
    if groups is not None and not np.isin(changes, ends).all():
        raise ValueError("records of one group with and without a timestamp: one batch cannot hold both")
    number = np.cumsum(sizes)[ends - 1] // MAX_BATCH_BYTES
    cuts = {*ends[:-1][number[1:] != number[:-1]].tolist(), *changes.tolist()}
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


def _plain(values: pa.Array | Sequence[bytes | None]) -> list[Any] | None:
    """Return a few values as Python objects; None when their type needs a conversion by Arrow."""
    if isinstance(values, pa.Array):
        known = pa.types.is_large_binary(values.type) or pa.types.is_binary(values.type)
        return values.to_pylist() if known else None
    known = isinstance(values, list) and all(v is None or type(v) is bytes for v in values)
    return list(values) if known else None


def encode_records(
    values: pa.Array | Sequence[bytes],
    keys: pa.Array | Sequence[bytes | None] | None,
    timestamps: npt.NDArray[np.int64] | Sequence[int | None] | None,
    config: StreamConfig,
    notes: Notes = (),
    groups: npt.NDArray[np.int64] | None = None,
) -> list[Body]:
    """Encode one append as batches.

    Args:
        values: the values, none null, at least one.
        keys: as many keys, or None when all are null.
        timestamps: as many instants in ms, ``NO_TIMESTAMP`` or None for none; unused in a stream of append time.
        config: the stream's settings.
        notes: headers of the first record of each batch.
        groups: int64[k], how many consecutive records each group has; they share a batch. None: one record each.

    Returns:
        The batches, in order, without offsets and, in a stream of append time, without that time: ``place`` adds both.

    Raises:
        ValueError: no value, a null value, lengths that differ, or a group that no batch can hold.
        TimestampRefused: the stream's format cannot hold a timestamp.
    """
    extended = config.timestamp_format == "extended"
    stored: npt.NDArray[np.int64] | None = None
    changes = np.empty(0, np.int64)
    for column in (keys, timestamps):
        if column is not None and len(column) != len(values):
            raise ValueError(f"{len(values)} values, but keys or timestamps of another number")
    if groups is not None and (groups.sum() != len(values) or (groups < 1).any()):
        raise ValueError(f"groups of {int(groups.sum())} records for {len(values)} values, each of at least one")
    if config.timestamp_type == "create":
        instants = np.full(len(values), NO_TIMESTAMP, np.int64) if timestamps is None else _instants(timestamps)
        stored = to_stored(instants, extended, config.legacy_negative)
        changes = np.flatnonzero(np.diff(instants == NO_TIMESTAMP)) + 1
    # A small append is encoded without Arrow, whose fixed cost would be most of the time; a large one with Arrow, as
    # Python copies bytes with its lock held, and Arrow without. Bad input goes through Arrow, which refuses it.
    if len(values) <= FEW_RECORDS and not len(changes) and not is_large(values, keys):
        few = _plain(values)
        few_keys = [None] * len(values) if keys is None else _plain(keys)
        few_bytes = sum(map(len, filter(None, chain(few or (), few_keys or ()))))
        if few and few_keys and None not in few and few_bytes <= MAX_BATCH_BYTES // 2:
            headers = notes(0, len(few)) if callable(notes) else notes
            return [encode_few(few, few_keys, stored, extended=extended, headers=headers)]
    value_array = _binary(values)
    key_array = None if keys is None or (isinstance(keys, pa.Array) and keys.null_count == len(keys)) else _binary(keys)
    if not len(value_array) or value_array.null_count:
        raise ValueError("an append needs at least one value, and none of them null")
    # Keys and what a record costs by itself count too: a million empty values are no small batch.
    sizes = lengths_of(value_array) + RECORD_BYTES
    if key_array is not None:
        sizes += lengths_of(key_array)
    encoded: list[Body] = []
    for start, stop in _runs(sizes, changes, groups):
        run = value_array.slice(start, stop - start)
        run_keys = None if key_array is None else key_array.slice(start, stop - start)
        run_stored = None if stored is None else stored[start:stop]
        headers = notes(start, stop) if callable(notes) else notes
        # There may be many short runs, where records with and without a timestamp alternate.
        if stop - start <= FEW_RECORDS and sizes[start:stop].sum() <= MAX_BATCH_BYTES // 2:
            few_keys = [None] * (stop - start) if run_keys is None else run_keys.to_pylist()
            encoded.append(encode_few(run.to_pylist(), few_keys, run_stored, extended=extended, headers=headers))
        else:
            encoded.append(encode_batch(run, run_keys, run_stored, extended=extended, headers=headers))
    return encoded


def place(bodies: Sequence[Body], next_offset: int, append_time_ms: int) -> list[tuple[BatchHeader, bytes]]:
    """Return header and bytes of each batch.

    Args:
        bodies: the encoded batches.
        next_offset: the first one's offset; those of the others follow.
        append_time_ms: the time of batches of append time.
    """
    batches: list[tuple[BatchHeader, bytes]] = []
    for body in bodies:
        batches.append(seal(body, next_offset, append_time_ms))
        next_offset += body.records_count
    return batches
