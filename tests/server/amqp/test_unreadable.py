"""A producer cannot poison a stream: what no reader of the stored message could decode is rejected at the door."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.client import AmqpClient
from spark_streams.endpoint import parse_url
from spark_streams.errors import DeliveryFailed

DATA = b"\x00\x53\x75\xa0\x01x"
LEVELS = 40
"""More than readers take."""


def nested_lists() -> bytes:
    """Return an amqp-value section of lists in lists, laid out by hand."""
    value = b"\x40"
    for _ in range(LEVELS):
        value = b"\xd0" + struct.pack(">II", 4 + len(value), 1) + value
    return b"\x00\x53\x77" + value


@pytest.mark.parametrize(
    "message",
    [
        # application-properties that end before their second item
        b"\x00\x53\x74\xc1\x03\x02\x54\x01" + DATA,
        nested_lists(),
    ],
    ids=["application properties", "depth"],
)
def test_what_no_reader_can_decode_is_rejected(log_server: Any, message: bytes) -> None:
    log_server.log.create_stream("s")
    with AmqpClient(parse_url(log_server.amqp_url)) as client:
        publisher = client.publisher("s")
        with pytest.raises(DeliveryFailed, match="amqp:decode-error"):
            publisher.send(pa.array([message], pa.large_binary()), str)
            publisher.flush()
    assert log_server.log.stream("s").partitions["0"].next_offset == 0
