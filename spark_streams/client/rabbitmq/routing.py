"""Chooses the partition of a super stream for each row: by a hash of its key, or with its key as the binding key.

Spec: docs/specifications.md, S-135, S-136; Streams Protocol Reference, Route and Partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.digested_rows import Label
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.errors import DeliveryFailed
from spark_streams.wire.rabbitmq.frames import ResponseCode
from spark_streams.wire.rabbitmq.hashes import murmur3_32, murmur3_128_modulo
from spark_streams.wire.rabbitmq.publish_encode import Routing
from spark_streams.wire.rabbitmq.stream_commands import Partitions, PartitionsAnswer, Route, RouteAnswer

Rows = NDArray[np.int64]
KeyHash = Callable[[pa.StringArray, int], NDArray[Any]]
"""A function from keys, without nulls, and the number of partitions, to the number of each key's partition."""


def murmur3_32_modulo(keys: pa.StringArray, count: int) -> NDArray[np.uint32]:
    """Return the number of each key's partition of ``count``, as RabbitMQ's clients choose it."""
    numbers: NDArray[np.uint32] = murmur3_32(keys) % np.uint32(count)
    return numbers


@dataclass
class Router:
    """Chooses the partitions of rows.

    Args:
        super_stream: the super stream.
        partitions: its partitions, in their order.
        key_hash: returns the number of each key's partition, where keys are hashed.
        streams_of: returns the streams that are bound with a key, where keys are binding keys; None: they are hashed.
    """

    super_stream: str
    partitions: tuple[str, ...]
    key_hash: KeyHash = murmur3_32_modulo
    streams_of: Callable[[str], tuple[str, ...]] | None = None

    def route(self, keys: pa.StringArray, label: Label) -> dict[str, Rows]:
        """Return stream to the numbers of its rows, in ascending order.

        Raises:
            DeliveryFailed: a key is null, or has no partition; ``label`` names its row.
        """
        if keys.null_count:
            row = pc.index(keys.is_null(), True).as_py()
            raise self._unroutable("its key is null, and the key decides the partition", label(row))
        if self.streams_of is None:
            numbers = self.key_hash(keys, len(self.partitions))
            return {self.partitions[n]: np.flatnonzero(numbers == n) for n in np.unique(numbers).tolist()}
        out: dict[str, list[Rows]] = {}
        for key in keys.unique().to_pylist():
            rows = np.flatnonzero(np.asarray(pc.equal(keys, key)))
            streams = self.streams_of(key)
            if not streams:
                raise self._unroutable(f"no partition is bound with its key '{key}'", label(int(rows[0])))
            for stream in streams:
                out.setdefault(stream, []).append(rows)
        return {stream: np.sort(np.concatenate(rows)) for stream, rows in out.items()}

    def _unroutable(self, why: str, row: str) -> DeliveryFailed:
        return DeliveryFailed("not routed", "unroutable", why, row, self.super_stream)


def key_hash(routing: Routing) -> KeyHash:
    """Return the function that chooses a key's partition by its hash."""
    return murmur3_128_modulo if routing == "rstream" else murmur3_32_modulo


def partitions_of(connection: Connection, super_stream: str) -> tuple[str, ...]:
    """Return the partitions of a super stream, in their order.

    Raises:
        NotFound: there is no such super stream.
    """
    what = f"super stream '{super_stream}'"
    partitions = connection.request(Partitions(super_stream), PartitionsAnswer, what).streams
    if not partitions:
        raise refusal(ResponseCode.STREAM_DOES_NOT_EXIST, f"{what} has no partition")
    return partitions


def open_router(connection: Connection, super_stream: str, routing: Routing) -> Router:
    """Return the router of a super stream; it requests the streams of each binding key from the broker once.

    Raises:
        NotFound: there is no such super stream.
    """

    @cache
    def streams_of(key: str) -> tuple[str, ...]:
        what = f"super stream '{super_stream}': route"
        return connection.request(Route(key, super_stream), RouteAnswer, what).streams

    partitions = partitions_of(connection, super_stream)
    return Router(super_stream, partitions, key_hash(routing), streams_of if routing == "key" else None)
