"""A partition that holds nothing starts at its end: at each door that has times, in batch and in streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from proton import Message
from spark_streams.sources import amqp_events, rabbitmq_stream

from spark_streams.client import AmqpClient
from spark_streams.endpoint import Secret, parse_url
from spark_streams.errors import OptionError
from spark_streams.log import ReferenceLog
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.server import AmqpConfig, EventHubsConfig, RabbitConfig, ServerThread
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.micro_batch import MicroBatches
from tests.door_urls import plain_url

COLUMNS = ("offset", "value")
ERROR = {"startingOffsetsByTimestampStrategy": "error"}
NAMED = {
    "amqp": {"stream": "orders"},
    "event-hubs": {"stream": "orders"},
    "rabbitmq-stream": {"superStream": "orders"},
}


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The doors of a log whose stream ``orders`` has two events in partition 0, and none in partition 1."""
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 2)
        doors = EventHubsConfig(port=0), RabbitConfig(port=0, authentication_delay_ms=0)
        with ServerThread(log, AmqpConfig(port=0), *doors) as server:
            with AmqpClient(
                parse_url(server.urls["amqp"]).with_credentials("guest", Secret("guest")), timeout_ms=60_000
            ) as client:
                link = client.publisher("orders", partition="0")
                link.send(pa.array([Message(body=b"x").encode()] * 2, pa.large_binary()), str)
                link.flush()
            yield {name: plain_url(url) for name, url in server.urls.items()}


def source(door: str, url: str, *, streaming: bool, **more: str) -> tuple[Any, Any]:
    """Return the parsed options of a query, and what connects it."""
    given = {"url": url, "username": "guest", "password": "guest", "requestTimeout": "60000", **NAMED[door], **more}
    if door == "rabbitmq-stream":
        return parse_rabbit_source(given, streaming=streaming), rabbitmq_stream.connect
    return parse_source(given, streaming=streaming), amqp_events.connect


@pytest.mark.parametrize("door", NAMED)
def test_an_empty_partition(door: str, urls: dict[str, str]) -> None:
    def batch(**more: str) -> set[str]:
        options, connect = source(door, urls[door], streaming=False, **more)
        return {planned.read.partition.rpartition("-")[2] for planned in plan_batch(options, COLUMNS, connect)}

    def stream(**more: str) -> dict[str, Any]:
        options, connect = source(door, urls[door], streaming=True, **more)
        found: dict[str, Any] = MicroBatches(options, COLUMNS, connect).initial()["partitions"]
        return {name.rpartition("-")[2]: position for name, position in found.items()}

    assert batch(startingTimestamp="1000", **ERROR) == {"0"}
    started = stream(startingTimestamp="1000", **ERROR)
    assert started["1"] == "earliest" and started["0"] != "earliest"
    for ask in (batch, stream):
        with pytest.raises(OptionError, match=r"partition '(orders-)?0' has no event with timestamp 4102444800000 ms"):
            ask(startingTimestamp="4102444800000")
    if door == "amqp":
        assert batch(startingExpression="publish_time >= 1000", **ERROR) == {"0"}
