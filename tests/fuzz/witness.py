"""Well-behaved clients: what they write through one door they read through all, whatever others did meanwhile."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from spark_streams.cli.credentials import PeerOptions
from spark_streams.cli.peers.peer import Peer, ReadRequest, read_peer
from spark_streams.errors import SparkStreamsError
from spark_streams.rows import COMMON_SCHEMA
from tests.door_urls import plain_url
from tests.fuzz.serving import FUZZED, WITNESS

DOORS = ("amqp", "rabbitmq-stream", "feedapi", "event-hubs")
_numbers = itertools.count(1)


def peer_of(urls: dict[str, Any], door: str, stream: str) -> Peer:
    if door == "feedapi":
        return read_peer(f"{urls[door]}/{stream}", PeerOptions())
    return read_peer(plain_url(urls[door]).replace("://", "://guest:guest@"), PeerOptions(), stream)


def read_all(peer: Peer) -> list[bytes]:
    with peer.open_reader(ReadRequest("earliest", None, ("value",))) as reader:
        return [value for batch in reader.new_events() for value in batch.column("value").to_pylist()]


def _row(value: bytes) -> pa.RecordBatch:
    schema = COMMON_SCHEMA
    cells: dict[str, Any] = {**dict.fromkeys(schema.names), "value": value, "partition": "0", "offset": "0"}
    return pa.RecordBatch.from_pylist([cells], schema)


def check_witness(urls: dict[str, Any]) -> str | None:
    """Write one row through a door, each time another, and read all through each; return what is wrong, or None."""
    number = next(_numbers)
    written = b'{"witness":%d}' % number
    try:
        with peer_of(urls, DOORS[number % len(DOORS)], WITNESS).open_writer() as writer:
            writer.send(_row(written))
            writer.flush()
        read = {door: read_all(peer_of(urls, door, WITNESS)) for door in DOORS}
    except SparkStreamsError as fault:
        return f"a well-behaved client is not served: {type(fault).__name__}: {fault}"
    for door, values in read.items():
        if values[-1:] != [written] or values != read["amqp"] or len(values) != len(set(values)):
            return f"a well-behaved client of {door} reads {values[-3:]}, expected {written!r} last"
    return None


def check_written(urls: dict[str, Any], counts: dict[str, dict[str, list[int]]]) -> str | None:
    """Read what cases wrote, through all doors; return what is wrong, or None.

    Args:
        urls: of the doors.
        counts: stream to partition to its first offset and the next one.
    """
    for stream in FUZZED:
        expected = sum(following - first for first, following in counts[stream].values())
        for door in DOORS:
            try:
                found = len(read_all(peer_of(urls, door, stream)))
            except SparkStreamsError as fault:
                return f"what cases wrote to '{stream}' cannot be read from {door}: {type(fault).__name__}: {fault}"
            if found != expected:
                return f"'{stream}' has {expected} events, and {door} gives {found}"
    return None
