"""Where published events go: which open partition each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.log import Stream

__all__ = ["spread"]

LONG_BYTES: Final = 16 << 10
"""Of a key."""


def spread(stream: Stream, keys: pa.BinaryArray, seed: bytes | None, turn: int) -> NDArray[np.int64]:
    """Return the number of each event's partition.

    Args:
        stream: the log.
        keys: of the events; null for none.
        seed: the key of those that have none; None: they go to the open partitions in turn.
        turn: how many events were given out in turn before.
    """
    while True:
        open_before = stream.open_partitions
        places = _spread(stream, keys, seed, turn)
        # All by one state of the log: half by the one before a split and half by the one after it could send one
        # partition's events of a request there in two parts.
        if stream.open_partitions == open_before:
            return places


def _spread(stream: Stream, keys: pa.BinaryArray, seed: bytes | None, turn: int) -> NDArray[np.int64]:
    encoded = keys.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    homes = np.array([int(stream.home(key)) for key in _each(encoded.dictionary)] or [0], np.int64)
    places: NDArray[np.int64] = homes[codes]
    unkeyed = np.flatnonzero(codes < 0)
    if len(unkeyed):
        if seed is not None:
            places[unkeyed] = int(stream.home(seed))
        else:
            numbers = np.array(stream.open_partitions, np.int64)
            places[unkeyed] = numbers[(turn + np.arange(len(unkeyed))) % len(numbers)]
    return places


def _each(keys: pa.BinaryArray) -> Sequence[bytes | memoryview]:
    """Return keys, none null; those that are long are not copied, which Python does with its lock held."""
    if not len(keys):
        return []
    ends = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4)
    if np.diff(ends).max() <= LONG_BYTES:
        return keys.to_pylist()  # type: ignore[no-any-return]
    content = memoryview(keys.buffers()[2])
    return [content[start:end] for start, end in pairwise(ends.tolist())]
