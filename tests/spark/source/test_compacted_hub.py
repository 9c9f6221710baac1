"""Batch and stream of a hub with holes, from the plan to the rows, against a scripted hub (H-6 to H-8)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from spark_streams.sources.amqp_events import connect

from spark_streams.client.amqp import credit
from spark_streams.errors import PositionLost
from spark_streams.options.amqp_events import parse_source
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.micro_batch import MicroBatches
from spark_streams.spark.source.task import read_range
from tests.client.amqp.fake_hub import FakeHub, Partition
from tests.spark.fake_query import Query

FIRST, LAST = 4_210, 4_229
SCHEMA = pa.schema([FULL_MESSAGE_SCHEMA.field("offset")])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(credit, "LOOK_AFTER_S", 0.01)
    bodies = [b"%d" % n for n in range(FIRST, LAST + 1)]
    with FakeHub({"0": Partition(FIRST, bodies, {LAST}), "1": Partition(7)}) as served:
        yield served


class HubQuery(Query):
    """A streaming query whose client and tasks are the real ones."""

    def restart(self) -> None:
        self.parsed = parse_source(self.options, streaming=True)
        self.source = MicroBatches(self.parsed, ("offset",), connect, self.clock)

    def read(self, start: dict, end: dict) -> list[tuple[str, str]]:
        return [
            (planned.read.partition, offset)
            for planned in self.source.reads(start, end)
            for batch in read_range(self.parsed, planned, SCHEMA, connect)
            for offset in batch.column(0).to_pylist()
        ]

    @property
    def numbers(self) -> list[int]:
        return [int(offset) for _, offset in self.rows]


def options(hub: FakeHub, fails: bool) -> dict[str, str]:
    loss = str(fails).lower()
    return {"connectionString": hub.connection_string, "startingOffsets": "earliest", "failOnDataLoss": loss}


@pytest.mark.parametrize("fails", [True, False])
def test_a_batch(hub: FakeHub, fails: bool) -> None:
    parsed = parse_source(options(hub, fails), streaming=False)
    rows = [
        int(offset)
        for planned in plan_batch(parsed, ("offset",), connect)
        for batch in read_range(parsed, planned, SCHEMA, connect)
        for offset in batch.column(0).to_pylist()
    ]
    assert rows == list(range(FIRST, LAST))


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("limit", [None, 4])
def test_a_stream(hub: FakeHub, fails: bool, limit: int | None) -> None:
    """Limits count numbers, and so do lags; a micro-batch of holes has no rows."""
    hub.partitions["0"].holes |= {4_213, 4_214, 4_215, 4_216, 4_217}
    query = HubQuery(None, **options(hub, fails))
    sizes = query.drain(limit)
    assert query.numbers == [n for n in range(FIRST, LAST + 1) if n not in hub.partitions["0"].holes]
    assert sizes == ([14] if limit is None else [3, 0, 4, 4, 3])
    assert query.source.newest()["lag"] == {"0": 0, "1": 0}
    hub.partitions["0"].bodies.append(b"%d" % (LAST + 1))
    assert query.drain() == [1] and query.numbers[-1] == LAST + 1


def test_an_event_below_a_committed_end(hub: FakeHub) -> None:
    query = HubQuery(None, **options(hub, True))
    assert query.drain() == [19]
    hub.partitions["0"].bodies.append(b"%d" % (LAST + 1))
    hub.partitions["0"].holes.clear()
    with pytest.raises(PositionLost, match="an event up to there has come late"):
        query.batch()


@pytest.mark.parametrize("streaming", [True, False])
def test_a_loss_is_told_once(hub: FakeHub, streaming: bool, caplog: pytest.LogCaptureFixture) -> None:
    """By the driver, which has seen it; the task begins behind it, and would tell what is lost from then on."""
    hub.partitions["0"].holes.clear()
    query = HubQuery(None, **options(hub, False))
    with caplog.at_level("WARNING"):
        if streaming:
            assert query.drain(10) == [10, 10]
            query.committed = {**query.committed, "partitions": {"0": f"{FIRST + 3:020d}", "1": f"{6:020d}"}}
            query.restart()
            hub.partitions["0"].retain(FIRST + 8)
            assert query.drain() == [12]
        else:
            start = {"startingOffsets": f'{{"0": {{"after": {FIRST + 3}}}, "1": "earliest"}}'}
            parsed = parse_source({**options(hub, False), **start}, streaming=False)
            hub.partitions["0"].retain(FIRST + 8)
            plan = plan_batch(parsed, ("offset",), connect)
            assert sum(b.num_rows for planned in plan for b in read_range(parsed, planned, SCHEMA, connect)) == 12
    assert caplog.text.count("Events may have been lost") == 1
