"""Chooses the partition of a super stream for each row: by a hash of its key, or with its key as the binding key.

Spec: docs/specifications.md, S-135, S-136; Streams Protocol Reference, Route and Partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.client.digested_rows import Label
from spark_streams.client.rabbitmq.connection import Connection
from spark_streams.client.rabbitmq.errors import refusal
from spark_streams.errors import DeliveryFailed
from spark_streams.wire.rabbitmq.hashes import murmur3_32
from spark_streams.wire.rabbitmq.murmur3_128 import murmur3_128_modulo
from spark_streams.wire.rabbitmq.response_codes import ResponseCode
from spark_streams.wire.rabbitmq.stream_commands import Partitions, PartitionsAnswer, Route, RouteAnswer

Routing = Literal["hash", "rstream", "key"]
"""By the hash of RabbitMQ's own clients, by rstream's, or by binding key."""

Rows = NDArray[np.int64]
Chosen = Callable[[pa.StringArray, int], NDArray[Any]]
"""A function from keys, without nulls, and the number of partitions, to the number of each key's partition."""


class Router(Protocol):
    """Chooses the partitions of rows."""

    partitions: tuple[str, ...]

    def route(self, keys: pa.StringArray, label: Label) -> dict[str, Rows]:
        """Return stream to the numbers of its rows, in ascending order.

        Raises:
            DeliveryFailed: a key is null, or has no partition; ``label`` names its row.
        """


def open_router(connection: Connection, super_stream: str, routing: Routing) -> Router:
    """Return the router of a super stream.

    Raises:
        NotFound: there is no such super stream.
    """
    what = f"super stream '{super_stream}'"
    partitions = connection.request(Partitions(super_stream), PartitionsAnswer, what).streams
    if not partitions:
        raise refusal(ResponseCode.STREAM_DOES_NOT_EXIST, f"{what} has no partition")
    if routing == "key":
        return _ByBindingKey(connection, super_stream, partitions)
    return _ByHash(super_stream, partitions, murmur3_128_modulo if routing == "rstream" else _murmur3_32_modulo)


def _refuse_null(keys: pa.StringArray, super_stream: str, label: Label) -> None:
    if keys.null_count:
        row = pc.index(keys.is_null(), True).as_py()
        raise DeliveryFailed(
            "not routed", "unroutable", "its key is null, and the key decides the partition", label(row), super_stream
        )


def _murmur3_32_modulo(keys: pa.StringArray, count: int) -> NDArray[np.uint32]:
    numbers: NDArray[np.uint32] = murmur3_32(keys) % np.uint32(count)
    return numbers


class _ByHash:
    """Routes by murmur3 of the key modulo the number of partitions.

    RabbitMQ's clients hash UTF-8 to 32 bits; rstream uses another hash.
    """

    def __init__(self, super_stream: str, partitions: tuple[str, ...], chosen: Chosen = _murmur3_32_modulo) -> None:
        self.partitions = partitions
        self._super_stream = super_stream
        self._chosen = chosen

    def route(self, keys: pa.StringArray, label: Label) -> dict[str, Rows]:
        _refuse_null(keys, self._super_stream, label)
        numbers = self._chosen(keys, len(self.partitions))
        return {self.partitions[n]: np.flatnonzero(numbers == n) for n in np.unique(numbers).tolist()}


class _ByBindingKey:
    """Routes by binding key, and requests the streams of each key from the broker once."""

    def __init__(self, connection: Connection, super_stream: str, partitions: tuple[str, ...]) -> None:
        self.partitions = partitions
        self._connection = connection
        self._super_stream = super_stream
        self._known: dict[str, tuple[str, ...]] = {}

    def route(self, keys: pa.StringArray, label: Label) -> dict[str, Rows]:
        _refuse_null(keys, self._super_stream, label)
        out: dict[str, list[Rows]] = {}
        for key in keys.unique().to_pylist():
            rows = np.flatnonzero(np.asarray(pc.equal(keys, key)))
            for stream in self._streams(key, int(rows[0]), label):
                out.setdefault(stream, []).append(rows)
        return {stream: np.sort(np.concatenate(rows)) for stream, rows in out.items()}

    def _streams(self, key: str, row: int, label: Label) -> tuple[str, ...]:
        streams = self._known.get(key)
        if streams is None:
            what = f"super stream '{self._super_stream}': route"
            streams = self._connection.request(Route(key, self._super_stream), RouteAnswer, what).streams
            self._known[key] = streams
        if not streams:
            raise DeliveryFailed(
                "not routed",
                "unroutable",
                f"no partition is bound with its key '{key}'",
                label(row),
                self._super_stream,
            )
        return streams
