"""The first event of a query's first range, of a peer whose ``>=`` excludes: batch and stream tell the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from spark_streams.sources.amqp_events import connect

from spark_streams.errors import PositionLost
from spark_streams.options import SourceOptions, parse_source
from spark_streams.spark.batch_plan import plan_batch
from spark_streams.spark.micro_batch import MicroBatches
from spark_streams.spark.ranges import PlannedRead
from spark_streams.spark.reader import read_range
from tests.client.amqp.fake_peer import FakePeer, Script

SCHEMA = pa.schema([("offset", pa.string())])
LOG = [(f"e{n:02d}", b"x") for n in range(60)]


def batch(options: SourceOptions) -> list[PlannedRead]:
    return plan_batch(options, ("offset",), connect)


def first_micro_batch(options: SourceOptions) -> list[PlannedRead]:
    batches = MicroBatches(options, ("offset",), connect)
    try:
        start = batches.initial()
        return batches.reads(start, batches.next_end(start, None))
    finally:
        batches.close()


def rows(options: SourceOptions, reads: list[PlannedRead]) -> Iterator[str]:
    for planned in reads:
        for got in read_range(options, planned, SCHEMA, connect):
            yield from got.column("offset").to_pylist()


@pytest.mark.parametrize("plan", [batch, first_micro_batch])
@pytest.mark.parametrize(
    "start", [{"startingOffsets": "earliest"}, {"startingOffsets": '{"0": {"at": "e00"}}'}, {"startingTimestamp": "1"}]
)
def test_it_comes_or_it_is_a_loss(plan: Callable[[SourceOptions], list[PlannedRead]], start: dict[str, str]) -> None:
    with FakePeer(Script(events=LOG, excludes_start=True)) as peer:

        def options(**more: str) -> SourceOptions:
            given = {"url": f"amqp://127.0.0.1:{peer.port}", "stream": "orders", **start, **more}
            return parse_source(given, streaming=plan is first_micro_batch)

        with pytest.raises(PositionLost, match="at 'e00', but the first event there has offset 'e01'"):
            list(rows(options(), plan(options())))
        lossy = options(failOnDataLoss="false")
        assert list(rows(lossy, plan(lossy))) == [offset for offset, _ in LOG[1:]]
        peer.script.excludes_start = False
        assert list(rows(options(), plan(options()))) == [offset for offset, _ in LOG]
