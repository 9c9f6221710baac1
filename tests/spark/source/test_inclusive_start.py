"""The first event of a query's first range does not come: batch and stream tell the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from spark_streams.sources.amqp_events import connect
from spark_streams.sources.rabbitmq_stream import connect as connect_rabbitmq

from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.errors import PositionLost
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.common import SourceOptions
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.spark.source.ranges import PlannedRead
from spark_streams.spark.source.task import read_range
from tests.client.amqp.fake_peer import FakePeer, Script
from tests.client.rabbitmq.scripted import Chunks, S, Scripted, deliver

SCHEMA = pa.schema([("offset", pa.string())])
LOG = [(f"e{n:02d}", b"x") for n in range(60)]


Connect = Callable[[SourceOptions], AmqpClient | RabbitClient]
Plan = Callable[[SourceOptions, Connect], list[PlannedRead]]


def batch(options: SourceOptions, connect: Connect) -> list[PlannedRead]:
    return plan_batch(options, ("offset",), connect)


def first_micro_batch(options: SourceOptions, connect: Connect) -> list[PlannedRead]:
    batches = MicroBatches(options, ("offset",), connect)
    try:
        start = batches.initial()
        return batches.reads(start, batches.next_end(start, None))
    finally:
        batches.close()


def rows(options: SourceOptions, plan: Plan, connect: Connect) -> Iterator[str]:
    for planned in plan(options, connect):
        for got in read_range(options, planned, SCHEMA, connect):
            yield from got.column("offset").to_pylist()


@pytest.mark.parametrize("plan", [batch, first_micro_batch])
@pytest.mark.parametrize(
    "start", [{"startingOffsets": "earliest"}, {"startingOffsets": '{"0": {"at": "e00"}}'}, {"startingTimestamp": "1"}]
)
def test_of_a_peer_whose_comparison_excludes(plan: Plan, start: dict[str, str]) -> None:
    with FakePeer(Script(events=LOG, excludes_start=True)) as peer:

        def options(**more: str) -> SourceOptions:
            given = {"url": f"amqp://127.0.0.1:{peer.port}", "stream": "orders", **start, **more}
            return parse_source(given, streaming=plan is first_micro_batch)

        with pytest.raises(PositionLost, match="at 'e00', but the first event there has offset 'e01'"):
            list(rows(options(), plan, connect))
        lossy = options(failOnDataLoss="false")
        assert list(rows(lossy, plan, connect)) == [offset for offset, _ in LOG[1:]]
        peer.script.excludes_start = False
        assert list(rows(options(), plan, connect)) == [offset for offset, _ in LOG]


@pytest.mark.parametrize("plan", [batch, first_micro_batch])
@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), (f'{{"{S}": {{"at": "{0:020d}"}}}}', 0), (f'{{"{S}": "{0:020d}"}}', 1)]
)
def test_of_a_broker_that_tells_more_than_it_has(plan: Plan, start: str, first: int) -> None:
    """The broker says that its stream begins at 0, and has nothing before 2."""
    with Scripted(Chunks(deliver(2, [b"c"]), deliver(3, [b"d"])).script(3)) as broker:

        def options(**more: str) -> SourceOptions:
            given = {"url": str(broker.endpoint), "stream": S, "startingOffsets": start, **more}
            return parse_rabbit_source(given, streaming=plan is first_micro_batch)

        with pytest.raises(PositionLost, match=f"at offset '{first:020d}', but the next offset there is '{2:020d}'"):
            list(rows(options(), plan, connect_rabbitmq))
        lossy = options(failOnDataLoss="false")
        assert list(rows(lossy, plan, connect_rabbitmq)) == [f"{n:020d}" for n in (2, 3)]
