"""Streaming queries of all three formats: where they start, limits, stops and starts, and what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_streams.testing import KeptQuery, eventually
from tests.e2e.places import HUB, REAL, REAL_AMQP, Place, places

pytestmark = pytest.mark.spark

WAIT_S = 240
Create = Callable[[int], Place]


@pytest.fixture
def query(tmp_path: Path, create: Create, request: pytest.FixtureRequest) -> Iterator[KeptQuery]:
    """A query that ends with the test."""
    if "feedapi" in request.node.callspec.params["create"]:
        request.getfixturevalue("streams_of_feeds")
    with KeptQuery(tmp_path, timeout_s=WAIT_S) as made:
        yield made


@places("amqp-events", "rabbitmq-stream", "feedapi-v1")
def test_a_stream_starts_at_the_latest_event_and_remembers_it(
    spark: SparkSession, create: Create, query: KeptQuery
) -> None:
    orders = create(3)
    orders.append(0, 0, 100)
    frame = orders.load(spark)
    query.start(frame)
    offsets = query.checkpoint / "offsets"
    eventually(lambda: list(offsets.glob("[0-9]*")), "the query knows where it starts", WAIT_S, query=query.running)
    query.stop()
    orders.append(0, 100, 120)
    query.start(frame)
    query.wait_for_rows(20)
    orders.append(0, 120, 150)
    orders.append(2, 0, 50)
    query.wait_for_rows(100)
    assert orders.numbers(query.rows) == {0: [*range(100, 150)], 2: [*range(50)]}


@places("amqp-events", HUB, "rabbitmq-stream", "feedapi-v2b", REAL_AMQP)
def test_available_now_with_a_limit_and_restarts_read_all_once(
    spark: SparkSession, create: Create, query: KeptQuery, rate_limits: bool
) -> None:
    orders = create(2)
    orders.append(0, 0, 60)
    orders.append(1, 0, 30)
    limited = orders.load(spark, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    unlimited = orders.load(spark, startingOffsets="earliest")
    if rate_limits:
        sizes = query.drain(limited)
        assert sum(sizes) == 90
        assert max(sizes) <= 40
        if orders.format != "feedapi":  # which is read in whole pages
            assert sizes == [40, 40, 10]
        assert query.drain(limited) == []
        orders.append(1, 30, 80)
        sizes = query.drain(limited)
        assert sum(sizes) == 50
        assert max(sizes) <= 40
    else:
        query.start(limited, availableNow=True)
        with pytest.raises(PySparkException) as caught:
            query.running.awaitTermination(WAIT_S)
        words = f"option 'maxOffsetsPerTrigger': needs Spark 4.2 or later, this is {pyspark.__version__}"
        assert words in str(caught.value)
        assert query.drain(unlimited) == [90]
        orders.append(1, 30, 80)
        assert query.drain(unlimited) == [50]
    orders.append(1, 80, 93)
    sizes = query.drain(unlimited)
    assert sum(sizes) == 13
    if orders.format != "feedapi":
        assert sizes == [13], "one micro-batch of all there is"
    assert query.drain(unlimited) == [], "and none where there is nothing"
    assert orders.numbers(query.rows) == {0: [*range(60)], 1: [*range(93)]}


# A feed does not say how much it has.  In this process, of all clients: tests/spark/source/test_trigger_gate.py.
@places(of=("amqp-events", HUB, "rabbitmq-stream", REAL, REAL_AMQP))
@pytest.mark.parametrize("most", [{}, {"maxOffsetsPerTrigger": "30"}], ids=["no most", "most"])
def test_a_stream_waits_for_a_minimum_and_other_triggers_do_not(
    spark: SparkSession, create: Create, query: KeptQuery, rate_limits: bool, most: dict[str, str]
) -> None:
    orders = create(2)
    orders.append(0, 0, 10)
    least = {"minOffsetsPerTrigger": "30", "pollInterval": "50", **most}
    frame = orders.load(spark, maxTriggerDelay="1h", **least)
    query.start(frame)
    if not rate_limits:
        with pytest.raises(PySparkException, match=r"OffsetsPerTrigger': needs Spark 4\.2 or later"):
            query.running.awaitTermination(WAIT_S)
        return
    query.wait_for_batch(0)
    orders.append(0, 10, 39)
    time.sleep(2)  # dozens of triggers, each of which could have run a batch
    assert query.committed() == {0}
    orders.append(1, 0, 1)
    query.wait_for_batch(1)
    query.stop()
    assert orders.numbers(query.rows) == {0: [*range(10, 39)], 1: [0]}
    orders.append(1, 1, 2)
    assert query.drain(frame) == [1]
    orders.append(1, 2, 4)
    assert query.start(frame, once=True).awaitTermination(WAIT_S)
    orders.append(1, 4, 5)
    query.start(orders.load(spark, maxTriggerDelay="1s", **least))
    query.wait_for_rows(34)
    assert orders.numbers(query.rows) == {0: [*range(10, 39)], 1: [*range(5)]}
