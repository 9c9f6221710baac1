"""A producer cannot poison a stream: what readers of the stored message would stumble over is rejected at the door."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient
from spark_streams.endpoint import parse_url
from spark_streams.errors import DeliveryFailed

DATA = b"\x00\x53\x75\xa0\x01x"


@pytest.mark.parametrize(
    "message",
    [
        # creation-time 2^63-1 ms: no timestamp in microseconds can hold it
        b"\x00\x53\x73\xd0"
        + struct.pack(">II", 4 + 9 + 9, 10)
        + b"\x40" * 9
        + b"\x83"
        + struct.pack(">q", 2**63 - 1)
        + DATA,
        # application-properties that end before their second item
        b"\x00\x53\x74\xc1\x03\x02\x54\x01" + DATA,
    ],
    ids=["creation time", "application properties"],
)
def test_what_no_reader_can_decode_is_rejected(log_server: Any, message: bytes) -> None:
    log_server.log.create_stream("s")
    with AmqpClient(parse_url(log_server.amqp_url)) as client:
        publisher = client.publisher("s")
        with pytest.raises(DeliveryFailed, match="amqp:decode-error"):
            publisher.send(pa.array([message], pa.large_binary()), str)
            publisher.flush()
    assert log_server.log.stream("s").partitions["0"].next_offset == 0
