"""A dialect that the user names, or that a checkpoint was written in, is compared with the peer's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_streams.sources.amqp_events import connect

from spark_streams.client import AmqpClient
from spark_streams.endpoint import parse_url
from spark_streams.errors import CheckpointError, OptionError
from spark_streams.log import ReferenceLog
from spark_streams.options.amqp_events import parse_source
from spark_streams.server import AmqpConfig, EventHubsConfig, ServerThread
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.wire.amqp.dialects import EVENT_HUBS, EVENT_STREAMS, RABBITMQ
from tests.client.amqp.fake_node import FakeNode, Script, info
from tests.client.amqp.fake_rabbit import FakeRabbit, message


def test_a_connection_string_at_a_rabbitmq_names_it() -> None:
    words = r"option 'connectionString': .* 'event-hubs', but the peer at .* is RabbitMQ 4, .* in option 'url'"
    with FakeRabbit([message(0, None)]) as rabbit:
        for ask in (lambda c: c.describe("q"), lambda c: c.publisher("q")):
            endpoint = replace(parse_url(rabbit.url), option="connectionString")
            with (
                AmqpClient(endpoint, timeout_ms=120_000, dialect=EVENT_HUBS) as client,
                pytest.raises(OptionError, match=words),
            ):
                ask(client)
        assert rabbit.sent == 0 and len(rabbit.queue) == 1


def test_another_dialect_than_the_peer_shows_is_no_way_to_read() -> None:
    with FakeNode(Script(info={"q": info(p0=(None, None))})) as node:
        with AmqpClient(parse_url(node.url), timeout_ms=120_000, dialect=RABBITMQ) as client:
            with pytest.raises(OptionError, match=r"'dialect': .*'rabbitmq', but .* set it to 'event-streams'"):
                client.describe("q")
            client.publisher("q").close()  # to send needs no dialect
        with AmqpClient(parse_url(node.url), timeout_ms=120_000, dialect=EVENT_STREAMS) as client:
            assert set(client.describe("q").partitions) == {"0"}


@pytest.fixture
def by_door(tmp_path: Path) -> Iterator[dict[str, dict[str, str]]]:
    """The options of a query that reads the same 20 events, by the dialect of the log's door."""
    with (
        ReferenceLog(tmp_path / "log") as log,
        ServerThread(log, AmqpConfig(port=0), EventHubsConfig(port=0)) as server,
    ):
        log.create_stream("orders", 1)
        url = server.urls["amqp"].replace("//", "//guest:guest@")
        with AmqpClient(parse_url(url), timeout_ms=120_000) as client:
            publisher = client.publisher("orders")
            publisher.send(client.encode({"value": pa.array([b"e"] * 20)}), str)
            publisher.flush()
        common = {"stream": "orders", "startingOffsets": "earliest", "requestTimeout": "120000"}
        yield {
            "event-streams": {"url": url, **common},
            "event-hubs": {"connectionString": server.urls["event-hubs"], **common},
        }


def query(options: dict[str, str]) -> MicroBatches:
    return MicroBatches(parse_source(options, streaming=True), ("offset",), connect)


@pytest.mark.parametrize("written", ["event-streams", "event-hubs"])
def test_a_checkpoint_of_another_dialect_is_told_as_such(by_door: dict[str, Any], written: str) -> None:
    """It was told as a stream that was deleted and created again: who allowed losses read all events again."""
    (read,) = by_door.keys() - {written}
    first = query(by_door[written])
    end = first.next_end(first.initial(), None)
    assert end["dialect"] == written and end["version"] == 2
    same, other = query(by_door[written]), query({**by_door[read], "failOnDataLoss": "false"})
    assert same.next_end(end, None) == end
    words = rf"written in dialect '{written}', but the stream is read in dialect '{read}'.*checkpointLocation"
    with pytest.raises(CheckpointError, match=words):
        other.next_end(end, None)
    with pytest.raises(CheckpointError, match=words):
        other.reads(end, end)
    first.close(), same.close(), other.close()
