"""Instants that AMQP can say and microseconds cannot (N-06): stored, and at the reader an error or a null."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient, RangeRead
from spark_streams.endpoint import parse_url
from spark_streams.errors import RemoteProtocolError
from spark_streams.log import StreamConfig, format_offset
from spark_streams.position import EARLIEST

LAST_MS = 2**63 - 1


def message(creation_ms: int) -> bytes:
    """Lay out an event with this creation-time by hand."""
    fields = b"\x40" * 9 + b"\x83" + struct.pack(">q", creation_ms)
    return b"\x00\x53\x73\xc0" + bytes([len(fields) + 1, 10]) + fields + b"\x00\x53\x75\xa0\x01x"


def read(client: AmqpClient, end: int, **how: Any) -> list[dict[str, Any]]:
    columns = ("offset", "timestamp", "properties")
    batches = client.fetch(RangeRead("s", "0", EARLIEST, format_offset(end), columns, **how))
    table = pa.Table.from_batches(list(batches))
    created = table["properties"].combine_chunks().field("creation_time")
    return [
        {"timestamp": stamp, "created": own}
        for stamp, own in zip(
            table["timestamp"].cast(pa.int64()).to_pylist(), created.cast(pa.int64()).to_pylist(), strict=True
        )
    ]


@pytest.mark.parametrize("beyond", [LAST_MS, -LAST_MS, 9_223_372_036_854_776, -9_223_372_036_854_776])
@pytest.mark.parametrize("timestamp_type", ["create", "append"])
def test_it_fails_the_read_or_becomes_null(log_server: Any, beyond: int, timestamp_type: Any) -> None:
    log = log_server.log.create_stream("s", 1, StreamConfig(timestamp_type=timestamp_type)).partitions["0"]
    with AmqpClient(parse_url(log_server.amqp_url)) as client:
        publisher = client.publisher("s")
        publisher.send(pa.array([message(5), message(beyond), message(-5)], pa.large_binary()), str)
        publisher.flush()
        assert log.next_offset == 3
        with pytest.raises(RemoteProtocolError, match=rf"'s' partition '0'.*{beyond} ms.*timestampOverflow") as caught:
            read(client, 2)
        assert "microseconds" in str(caught.value)
        rows = read(client, 2, timestamp_overflow="null")
        assert [row["created"] for row in rows] == [5_000, None, -5_000]
        if timestamp_type == "create":
            assert [row["timestamp"] for row in rows] == [5_000, None, -5_000]
        assert [row["created"] for row in read(client, 0)] == [5_000], "what lies beyond the range fails nobody"
