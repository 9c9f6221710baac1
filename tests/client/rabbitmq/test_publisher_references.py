"""How many publisher references a broker remembers, and that a query's partitions stay within that.

Brokers forget when a segment is closed: what they keep are the 255 that wrote last.
"""

from __future__ import annotations

from typing import Any

import pytest
from spark_streams.sinks.rabbitmq_stream import MAX_PARTITIONS, RabbitSink

from spark_streams.client import TaskIdentity
from spark_streams.errors import OptionError
from spark_streams.options.rabbitmq_stream import parse_sink
from spark_streams.spark.sink.sink import TaskName
from tests.client.rabbitmq.brokers import Broker
from tests.client.rabbitmq.publishing import body, write
from tests.client.rabbitmq.test_publish_exactly_once import held
from tests.real_rabbitmq.by_hand import DELETE_PUBLISHER, QUERY_PUBLISHER_SEQUENCE, Peer, plain, text

REMEMBERED = 255
SEGMENT = {"stream-max-segment-size-bytes": "1000000"}


def reference(partition: int) -> str:
    return f"spark/query/{partition}"


def close_a_segment(broker: Broker, stream: str) -> None:
    """Write more than a segment holds, without a reference."""
    with broker.peer() as peer:
        assert peer.declare(1, stream) == 1
        for number in range(6):
            peer.publish(1, [plain(number, b"x" * 400_000)])
            peer.confirmed(1)


def write_one_each(peer: Peer, stream: str, count: int) -> None:
    """One message of each reference, the later ones last."""
    for first in range(0, count, 200):
        part = range(first, min(first + 200, count))
        for partition in part:
            assert peer.declare(partition - first, stream, reference(partition)) == 1
        for partition in part:
            peer.publish(partition - first, [plain(1 << 10, body(f"{partition}"))])
            peer.confirmed(1)
        for partition in part:
            peer.ask(DELETE_PUBLISHER, bytes([partition - first]))


def known(peer: Peer, stream: str, count: int) -> list[int]:
    """Which references the broker remembers an id of."""
    asked = ((p, peer.ask(QUERY_PUBLISHER_SEQUENCE, text(reference(p)) + text(stream)).body) for p in range(count))
    return [partition for partition, answer in asked if answer[2:] != bytes(8)]


def test_all_partitions_of_a_query_are_remembered_over_segments(broker: Broker) -> None:
    with broker.stream(**SEGMENT) as stream:
        for partition in range(MAX_PARTITIONS):
            write(broker.endpoint, [body(f"{partition}")], stream, TaskIdentity(reference(partition), 0))
        for _ in range(2):
            close_a_segment(broker, stream)
        before = len(held(broker, stream))
        with broker.peer() as peer:
            assert known(peer, stream, MAX_PARTITIONS) == list(range(MAX_PARTITIONS))
        for partition in (0, 1, MAX_PARTITIONS - 1):
            write(broker.endpoint, [body(f"{partition}")], stream, TaskIdentity(reference(partition), 0))
        assert len(held(broker, stream)) == before


def test_of_more_references_those_that_wrote_last_are_kept(broker: Broker) -> None:
    """Why there is a limit."""
    count = REMEMBERED + 45
    with broker.stream(**SEGMENT) as stream, broker.peer() as peer:
        write_one_each(peer, stream, count)
        close_a_segment(broker, stream)
        close_a_segment(broker, stream)
        assert known(peer, stream, count) == list(range(count - REMEMBERED, count))


def test_a_spark_partition_beyond_the_limit_is_refused() -> None:
    sink = RabbitSink(parse_sink({"url": "rabbitmq-stream://h", "username": "u", "password": "p", "stream": "s"}))
    with pytest.raises(OptionError, match=rf"Spark partition {MAX_PARTITIONS}, .*coalesce\({MAX_PARTITIONS}\)"):
        sink.open(TaskName("q", "0", MAX_PARTITIONS, stable=True), streaming=True)


def test_a_task_that_spark_tells_nothing_is_refused() -> None:
    options: dict[str, Any] = {"url": "rabbitmq-stream://h", "username": "u", "password": "p", "stream": "s"}
    with pytest.raises(OptionError, match=r"neither its query nor its micro-batch.*foreachBatch"):
        RabbitSink(parse_sink(options)).open(TaskName("q", "0", 0), streaming=True)
