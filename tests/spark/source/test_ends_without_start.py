"""The driver's side of a stream on Spark 4.0 and 4.1, which plan an end without the start, against a log in memory."""

from __future__ import annotations

import pytest

from spark_streams.errors import PositionLost
from tests.spark.fake_client import FakeLog, FakePartition, name
from tests.spark.fake_query import Query, everything


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_without_a_start_batch_0_survives_a_restart(start: str) -> None:
    log = FakeLog("0")
    log.partitions["0"].append(3)
    query = Query(log, startingOffsets=start)
    end = query.source.next_end_without_start()
    log.partitions["0"].append(3)
    query.clock.now += 1
    rows = query.read(query.source.initial(), end)
    query.restart()
    assert query.read(query.source.initial(), end) == rows
    query.clock.now += 1
    again = query.source.next_end_without_start()
    rows += query.read(end, again)
    assert rows == [("0", name(n)) for n in range(3 if start == "latest" else 0, 6)]


def test_without_a_start_losses_are_noticed_when_planned() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest")
    end = query.source.next_end_without_start()
    log.partitions["0"].append(5)
    log.partitions["0"].truncate(7)
    query.clock.now += 1
    with pytest.raises(PositionLost, match="after 'e000004'"):
        query.source.reads(end, query.source.next_end_without_start())


def test_without_a_start_a_node_that_is_behind_neither_loses_nor_repeats() -> None:
    log = FakeLog("0", "1", numeric=True)
    for held in log.partitions.values():
        held.append(10)
    query = Query(log, startingOffsets="earliest")
    end = query.source.next_end_without_start()
    rows = query.read(query.source.initial(), end)
    for restart in (False, True):
        if restart:
            query.restart()
        query.clock.now += 1
        log.partitions["1"].append(2)
        log.behind = 3
        start, end = end, query.source.next_end_without_start()
        rows += query.read(start, end)
    log.behind = 0
    query.clock.now += 1
    rows += query.read(end, query.source.next_end_without_start())
    assert sorted(rows) == everything(log)


@pytest.mark.parametrize("missing", [False, True], ids=["all there", "one missing"])
@pytest.mark.parametrize("poll", ["0", "100"])
def test_without_a_start_a_restart_asks_a_node_that_is_not_behind(poll: str, missing: bool) -> None:
    log = FakeLog("0", "1", numeric=True)
    for held in log.partitions.values():
        held.append(10)
    query = Query(log, startingOffsets="earliest", failOnDataLoss="false", pollInterval=poll)
    end = query.source.next_end_without_start()
    query.read(query.source.initial(), end)
    query.restart()
    log.behind = 3
    if missing:
        log.unavailable = {"1"}
    assert query.source.next_end_without_start()["partitions"]["0"] == end["partitions"]["0"]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("then", [0, 3, 9])
@pytest.mark.parametrize("numeric", [True, False])
def test_without_a_start_an_empty_partition_that_was_created_again_is_a_loss(
    numeric: bool, then: int, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = FakeLog("0", numeric=numeric)
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest", failOnDataLoss=str(strict).lower())
    end = query.source.next_end_without_start()
    query.read(query.source.initial(), end)
    log.partitions["0"] = FakePartition(log.partitions["0"].spell, "two")
    log.incarnation = "two"
    rows = []

    def run() -> None:
        nonlocal end
        for events in (0, then, 1):
            log.partitions["0"].append(events)
            query.clock.now += 1
            start, end = end, query.source.next_end_without_start()
            if start != end:
                rows.extend(query.read(start, end))

    if strict:
        with pytest.raises(PositionLost):
            run()
        return
    run()
    assert rows == everything(log)
    assert "failOnDataLoss is false" in caplog.text
