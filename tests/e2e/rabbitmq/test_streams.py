"""Streaming queries: starts, limits, restarts, partitions that are added, and positions that brokers are told."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from spark_streams.client import retry
from spark_streams.errors import DeadlineExceeded
from spark_streams.testing import eventually
from tests.e2e.rabbitmq.broker import Broker, numbers, on_both
from tests.e2e.rabbitmq.queries import Queries, read_here
from tests.real_rabbitmq import by_hand
from tests.real_rabbitmq.by_hand import Peer

pytestmark = pytest.mark.spark

EARLIEST = {"startingOffsets": "earliest"}


def test_a_limit_is_shared_in_proportion_over_splits_and_lag_is_told(
    queries: Queries, broker: Broker, rate_limits: bool
) -> None:
    orders = broker.create_super(3)
    names = [f"{orders}-{n}" for n in range(3)]
    for name, count in zip(names, (60, 30, 10), strict=True):
        broker.publish(name, numbers(0, count), each=7)
    more = {"superStream": orders, "maxOffsetsPerTrigger": "40", "minPartitions": "6", **EARLIEST}
    if not rate_limits:
        assert "'maxOffsetsPerTrigger': needs Spark 4.2" in queries.start(**more).failure()
        return
    query = queries.drain(**more)
    assert query.sizes == [40, 40, 20]
    assert query.shares()[0] == dict(zip(names, (24, 12, 4), strict=True))
    assert query.bodies() == {name: numbers(0, count) for name, count in zip(names, (60, 30, 10), strict=True)}
    told: list[dict[str, Any]] = [dict(p["sources"][0]) for p in query.running.recentProgress if p["numInputRows"]]
    assert [each["numInputRows"] for each in told] == [40, 40, 20]
    lags = [json.loads(each["latestOffset"])["lag"] for each in told]
    assert lags[0] == dict(zip(names, (36, 18, 6), strict=True))
    assert lags[2] == dict.fromkeys(names, 0)


@pytest.mark.usefixtures("own_log")
def test_a_partition_that_is_added_is_read_from_its_beginning(queries: Queries, broker: Broker) -> None:
    orders = broker.create_super(2)
    query = queries.start(superStream=orders)
    query.wait_for_batch(0)
    added = broker.add_partition(orders, 2)
    broker.publish(added, numbers(0, 3))
    query.wait_for_rows(3)
    broker.publish(f"{orders}-0", numbers(0, 2))
    query.wait_for_rows(5)
    assert query.bodies() == {added: numbers(0, 3), f"{orders}-0": numbers(0, 2)}


@pytest.mark.nightly  # in this process: tests/real_rabbitmq/test_micro_batch.py
def test_stored_offsets_are_for_others_and_never_read_back(queries: Queries, broker: Broker) -> None:
    orders = broker.create()
    broker.publish(orders, numbers(0, 200))
    broker.store(orders, "lag-tool", 150)
    more = {"storeOffsets": "true", "consumerName": "lag-tool", **EARLIEST}
    query = queries.start(orders, **more)
    query.wait_for_rows(200)
    broker.publish(orders, numbers(200, 300))
    query.wait_for_rows(300)
    # A commit is told when the next batch is planned.
    eventually(lambda: (broker.stored(orders, "lag-tool") or 0) >= 199, "an offset is stored", query=query.running)
    query.stop()
    reached = broker.stored(orders, "lag-tool")
    assert reached is not None
    assert reached < 310
    broker.store(orders, "lag-tool", 5)
    broker.publish(orders, numbers(300, 301))
    query = queries.drain(orders, **more)
    assert query.bodies() == {orders: numbers(0, 301)}, "the checkpoint says where to go on, not the broker"


@contextmanager
def another_consumer(broker: Broker, orders: str, partition: str) -> Iterator[Peer]:
    """An active consumer of the group ``billing``, on one partition of a super stream."""
    group = {"single-active-consumer": "true", "name": "billing", "super-stream": orders}
    with broker.peer() as other:
        other.socket.settimeout(120)  # Spark starts meanwhile
        assert other.subscribe(1, partition, by_hand.NEXT, 10, group) == 1
        asked = other.expect(by_hand.CONSUMER_UPDATE)
        assert asked.body == bytes([1, 1]), "it is to be the active one"
        said = struct.pack(">IH", asked.correlation, 1) + by_hand.NEXT
        other.send(by_hand.CONSUMER_UPDATE | by_hand.RESPONSE, said)
        yield other


@pytest.mark.nightly  # in this process: the next one
def test_a_single_active_consumer_beside_another_one_fails(queries: Queries, broker: Broker) -> None:
    orders = broker.create_super(2)
    expected = {f"{orders}-{n}": numbers(0, 100) for n in range(2)}
    for name in expected:
        broker.publish(name, numbers(0, 100))
    more = {"superStream": orders, "consumerName": "billing", "singleActiveConsumer": "true", **EARLIEST}
    # The first of two consumers stays the active one of partition 0.
    with another_consumer(broker, orders, f"{orders}-0"):
        message = queries.start(**more, requestTimeout="10000").failure()
        assert "DeadlineExceeded" in message
        assert f"stream '{orders}-0': another consumer of 'billing' is the active one, for longer than" in message
        assert "option 'requestTimeout' (10000 ms)" in message
    assert queries.drain(**more).bodies() == expected


def test_a_single_active_consumer_beside_another_one_fails_in_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_pause", lambda _: None)
    orders = broker.create_super(2)
    for n in range(2):
        broker.publish(f"{orders}-{n}", numbers(0, 100))
    more = {"superStream": orders, "consumerName": "billing", "singleActiveConsumer": "true"}
    with (
        another_consumer(broker, orders, f"{orders}-0"),
        pytest.raises(DeadlineExceeded, match="another consumer of 'billing' is the active one, for longer than"),
    ):
        read_here(broker.url, requestTimeout="6000", **more)
    assert read_here(broker.url, **more) == {f"{orders}-{n}": numbers(0, 100) for n in range(2)}


@on_both
def test_a_single_active_consumer_waits_for_another_one(queries: Queries, broker: Broker) -> None:
    orders = broker.create_super(2)
    expected = {f"{orders}-{n}": numbers(0, 100) for n in range(2)}
    for name in expected:
        broker.publish(name, numbers(0, 100))
    more = {"superStream": orders, "consumerName": "billing", "singleActiveConsumer": "true", **EARLIEST}
    with another_consumer(broker, orders, f"{orders}-1") as other:
        query = queries.start(**more)
        # The second of two consumers is to have partition 1: the first one is asked to step down, and does not answer.
        assert other.expect(by_hand.CONSUMER_UPDATE).body == bytes([1, 0])
        other.barrier(f"{orders}-1")
        assert not query.committed()
    query.wait_for_rows(200)
    assert query.bodies() == expected
