"""Where batch reads start and stop, and how they are split."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from spark_streams.sources.rabbitmq_stream import connect

from spark_streams.errors import OptionError
from spark_streams.options.rabbitmq_stream import parse_source
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.task import read_range
from tests.e2e.rabbitmq.broker import Broker, numbers, offset, on_both
from tests.e2e.rabbitmq.queries import Queries, read_here, values

pytestmark = pytest.mark.spark


@pytest.fixture(params=["stream", "superStream"])
def orders(request: pytest.FixtureRequest, broker: Broker) -> tuple[str, str, list[str]]:
    """A stream, or super stream of two partitions, of e0 to e9: option, name and partitions."""
    if request.param == "stream":
        name = broker.create()
        partitions = [name]
    else:
        name = broker.create_super(2)
        partitions = [f"{name}-0", f"{name}-1"]
    for partition in partitions:
        broker.publish(partition, numbers(0, 10), each=4)
    return request.param, name, partitions


CASES: list[tuple[dict[str, Any], int, int]] = [
    ({}, 0, 10),
    ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, 10),
    ({"startingOffsets": 3}, 3, 10),
    ({"startingOffsets": 10}, 10, 10),
    ({"startingOffsets": -2, "endingOffsets": -1}, 0, 10),
    ({"startingOffsets": offset(3)}, 4, 10),
    ({"startingOffsets": "3"}, 4, 10),
    ({"startingOffsets": {"at": 3}}, 3, 10),
    ({"startingOffsets": {"after": offset(3)}, "endingOffsets": {"after": offset(7)}}, 4, 8),
    ({"startingOffsets": {"after": 3}, "endingOffsets": 7}, 4, 7),
    ({"startingOffsets": "earliest", "endingOffsets": {"at": 4}}, 0, 4),
    ({"startingTimestamp": "-386380800000"}, 0, 10),
    ({"startingTimestamp": "-1"}, 0, 10),
    ({"startingTimestamp": "1957-10-04T00:00:00Z"}, 0, 10),
    ({"startingOffsets": {"timestamp": -5}, "endingOffsets": 2}, 0, 2),
    ({"endingTimestamp": "-1"}, 0, 0),
    ({"endingTimestamp": "4102444800000"}, 0, 10),
    ({"startingTimestamp": "4102444800000", "startingOffsetsByTimestampStrategy": "latest"}, 10, 10),
]


@on_both
def test_positions(broker: Broker, orders: tuple[str, str, list[str]]) -> None:
    option, name, partitions = orders
    for more, low, high in CASES:
        given = {
            key: value
            if isinstance(value, str) and (value in ("earliest", "latest") or "Offsets" not in key or "By" in key)
            else json.dumps(dict.fromkeys(partitions, value))
            for key, value in more.items()
        }
        expected = dict.fromkeys(partitions, numbers(low, high)) if low < high else {}
        assert read_here(broker.url, **{option: name}, **given) == expected, more


def test_positions_are_each_partitions_own(queries: Queries, broker: Broker) -> None:
    orders = broker.create_super(3)
    names = [f"{orders}-{n}" for n in range(3)]
    for name in names:
        broker.publish(name, numbers(0, 10))
    given = {names[0]: 8, names[1]: offset(6), names[2]: -2}
    read = values(queries.batch(superStream=orders, startingOffsets=json.dumps(given)))
    assert read == {names[0]: numbers(8, 10), names[1]: numbers(7, 10), names[2]: numbers(0, 10)}
    missing = json.dumps({names[0]: 0})
    message = queries.refused(superStream=orders, startingOffsets=missing)
    assert "and each of them needs a position" in message
    assert names[1] in message


@on_both
def test_timestamps_have_the_granularity_of_chunks(broker: Broker) -> None:
    orders = broker.create()
    for n in range(4):
        broker.publish(orders, numbers(5 * n, 5 * n + 5))
        time.sleep(0.01)  # so that each chunk has a time of its own
    times = [stored.timestamp_ms for stored in broker.read(orders)]
    assert len(set(times)) >= 4
    for wanted in sorted({t + more for t in times for more in (-1, 0, 1)}):
        first = next((i for i, at in enumerate(times) if at >= wanted), 20)
        if first < 20:
            assert read_here(broker.url, stream=orders, startingTimestamp=str(wanted)) == {orders: numbers(first, 20)}
        until = read_here(broker.url, stream=orders, endingTimestamp=str(wanted))
        assert until == ({orders: numbers(0, first)} if first else {})
    said = datetime.fromtimestamp(times[10] / 1000, tz=timezone.utc).isoformat(timespec="milliseconds")
    assert read_here(broker.url, stream=orders, startingTimestamp=said) == {orders: numbers(times.index(times[10]), 20)}
    with pytest.raises(OptionError, match="'startingOffsetsByTimestampStrategy' to 'latest'"):
        read_here(broker.url, stream=orders, startingTimestamp=str(times[-1] + 60_000))


@on_both
def test_an_empty_partition_starts_at_its_end(broker: Broker) -> None:
    orders = broker.create_super(2)
    broker.publish(f"{orders}-0", numbers(0, 3))
    strategy = {"superStream": orders, "startingOffsetsByTimestampStrategy": "error"}
    assert read_here(broker.url, startingTimestamp="1000", **strategy) == {f"{orders}-0": numbers(0, 3)}
    with pytest.raises(OptionError, match=f"partition '{orders}-0' has no event with timestamp 4102444800000 ms"):
        read_here(broker.url, startingTimestamp="4102444800000", **strategy)


@on_both
def test_ranges_are_split_and_read_the_same_again(broker: Broker) -> None:
    orders = broker.create_super(2)
    broker.publish(f"{orders}-0", numbers(0, 3_000))
    broker.publish(f"{orders}-1", numbers(0, 20))
    given = {"url": broker.url, "superStream": orders, "minPartitions": "7"}
    options = parse_source(given, streaming=False)
    schema = pa.schema([("offset", pa.string()), ("value", pa.binary())])
    plan = plan_batch(options, ("offset", "value"), connect)
    assert len(plan) == 7
    assert sorted(each.read.partition for each in plan) == [f"{orders}-0"] * 6 + [f"{orders}-1"]
    broker.publish(f"{orders}-0", ["late"])  # planned before it came
    first = [[row for b in read_range(options, each, schema, connect) for row in b.to_pylist()] for each in plan]
    again = [[row for b in read_range(options, each, schema, connect) for row in b.to_pylist()] for each in plan]
    assert first == again
    assert all(400 <= len(rows) <= 600 for rows in first[:-1])
    rows = [row for part in first[:-1] for row in part]
    assert [row["offset"] for row in rows] == [offset(n) for n in range(3_000)]
    assert [row["value"].decode() for row in rows] == numbers(0, 3_000)


def test_a_bad_option_is_told_in_a_query(queries: Queries, broker: Broker) -> None:
    """All others: tests/options/test_rabbitmq_stream.py."""
    assert "did you mean 'startingOffsets'?" in queries.refused(broker.name(), startingOfsets="earliest")
