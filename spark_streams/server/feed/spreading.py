"""Where published events go: which open partition each, and which partitions came before another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.log import Partition, Stream
from spark_streams.server.routing import partition_of_key

__all__ = ["ancestors", "spread"]


def spread(stream: Stream, keys: pa.BinaryArray, seed: bytes | None, turn: int) -> NDArray[np.int64]:
    """Return the number of each event's partition.

    Args:
        stream: the log.
        keys: of the events; null for none.
        seed: the key of those that have none; None: they go to the open partitions in turn.
        turn: how many events were given out in turn before.
    """
    numbers = [int(name) for name in stream.partitions]
    encoded = keys.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    homes = np.array([_home(stream, numbers, key) for key in encoded.dictionary.to_pylist()] or [0], np.int64)
    places: NDArray[np.int64] = homes[codes]
    unkeyed = np.flatnonzero(codes < 0)
    if len(unkeyed):
        if seed is not None:
            places[unkeyed] = _home(stream, numbers, seed)
        else:
            places[unkeyed] = np.array(numbers, np.int64)[(turn + np.arange(len(unkeyed))) % len(numbers)]
    return places


def _home(stream: Stream, numbers: Sequence[int], key: bytes) -> int:
    return numbers[partition_of_key(key, len(numbers))]


def ancestors(stream: Stream, partition: Partition) -> list[Partition]:
    """Return the partitions that hold what came before a partition's first event, nearest first."""
    return []
