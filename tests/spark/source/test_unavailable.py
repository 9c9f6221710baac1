"""Partitions that a super stream names and that are not there: with losses to fail the query, and without."""

from __future__ import annotations

import logging

import pytest

from spark_streams.errors import NotFound, OptionError, PositionLost
from spark_streams.options.amqp_events import parse_source
from spark_streams.spark.source.batch_plan import plan_batch
from tests.spark.fake_client import FakeLog, digits
from tests.spark.fake_query import Query, everything

GONE = "orders-1"
LENIENT = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
NAMED = f'{{"orders-0": "earliest", "orders-1": {{"at": "{digits(2)}"}}}}'


def two_partitions() -> FakeLog:
    log = FakeLog("orders-0", GONE, numeric=True)
    for held in log.partitions.values():
        held.append(5)
    return log


def batch(log: FakeLog, **options: str) -> list[str]:
    given = {"url": "amqp://h", "stream": "orders", "startingOffsets": "earliest", **options}
    return [planned.read.partition for planned in plan_batch(parse_source(given, streaming=False), (), log.connect)]


def test_a_batch_does_not_start() -> None:
    log = two_partitions()
    log.unavailable = {GONE}
    with pytest.raises(
        NotFound, match=r"'orders' has a partition 'orders-1' that is not there: gone \(0x02\).*to 'false'"
    ):
        batch(log)


@pytest.mark.parametrize("start", ["earliest", NAMED, '{"orders-0": "earliest"}'])
def test_a_batch_goes_on_without_it_and_says_so(start: str, caplog: pytest.LogCaptureFixture) -> None:
    log = two_partitions()
    log.unavailable = {GONE}
    with caplog.at_level(logging.WARNING):
        assert batch(log, failOnDataLoss="false", startingOffsets=start) == ["orders-0"]
    (told,) = (record.getMessage() for record in caplog.records)
    assert "partition 'orders-1': reading was to go on from its beginning, but the partition is not there: gone" in told
    log.unavailable = set()
    if start == NAMED:
        assert batch(log, failOnDataLoss="false", startingOffsets=start) == ["orders-0", GONE]
    elif start != "earliest":
        with pytest.raises(OptionError, match="it says nothing of partition 'orders-1'"):
            batch(log, failOnDataLoss="false", startingOffsets=start)


@pytest.mark.parametrize("before_4_2", [False, True])
def test_a_stream_does_not_start(before_4_2: bool) -> None:
    log = two_partitions()
    log.unavailable = {GONE}
    query = Query(log, startingOffsets="earliest")
    if before_4_2:
        query.source.next_end_without_start()
    with pytest.raises(NotFound, match="'orders-1' that is not there"):
        query.source.initial()


@pytest.mark.parametrize("start", ["earliest", "latest", NAMED, '{"orders-0": "earliest"}'])
def test_a_stream_starts_without_it_and_reads_it_from_its_beginning_when_it_comes(
    start: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = two_partitions()
    log.unavailable = {GONE}
    query = Query(log, failOnDataLoss="false", startingOffsets=start)
    with caplog.at_level(logging.WARNING):
        query.batch()
        log.partitions["orders-0"].append(1)
        assert query.batch() == 1
    assert len(caplog.records) == 1, "told once"
    assert GONE not in query.committed["partitions"]
    log.unavailable = set()
    query.drain()
    assert sorted(query.rows) == everything(log)[5 if start == "latest" else 0 :]


def test_with_losses_to_fail_the_query_a_running_stream_fails() -> None:
    log = two_partitions()
    query = Query(log, startingOffsets="earliest")
    query.batch()
    log.unavailable = {GONE}
    with pytest.raises(PositionLost, match=r"partition 'orders-1'.*on after '0*4', but .* not there: gone \(0x02\)"):
        query.batch()
    log.unavailable = set()
    query.restart()
    assert query.drain() == []
    log.partitions["orders-2"] = type(log.partitions[GONE])(digits)
    log.unavailable = {"orders-2"}  # added, and gone before anything was read of it
    query.clock.now += 1
    with pytest.raises(PositionLost, match=r"'orders-2'.*on from its beginning, but .* not there: gone \(0x02\)"):
        query.batch()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("limit", [None, 2])
def test_without_a_running_stream_keeps_its_place(
    restarts: bool, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = two_partitions()
    query = Query(log, **LENIENT)
    query.drain(limit)
    before = query.committed["partitions"][GONE]
    log.unavailable = {GONE}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.partitions["orders-0"].append(1)
            log.partitions[GONE].append(1)
            assert query.batch(limit) == 1
            assert query.committed["partitions"][GONE] == before
            if restarts:
                query.restart()
    assert len(caplog.records) == (3 if restarts else 1), "told once in each life"
    log.unavailable = set()
    query.drain(limit)
    assert sorted(query.rows) == everything(log)


def test_a_batch_that_was_planned_with_it() -> None:
    log = two_partitions()
    query = Query(log, **LENIENT)
    start, end = query.plan()
    log.unavailable = {GONE}
    query.clock.now += 1
    assert query.read(start, end) == [("orders-0", digits(n)) for n in range(5)]
    strict = Query(log, startingOffsets="earliest")
    with pytest.raises(PositionLost, match="'orders-1'"):
        strict.read(start, end)


@pytest.mark.parametrize("strict", [True, False])
def test_before_spark_4_2(strict: bool) -> None:
    log = two_partitions()
    query = Query(log, startingOffsets="earliest", failOnDataLoss=str(strict).lower())
    start = query.source.next_end_without_start()
    rows = query.read(query.source.initial(), start)
    log.unavailable = {GONE}
    for held in log.partitions.values():
        held.append(1)
    query.clock.now += 1
    end = query.source.next_end_without_start()
    if strict:
        with pytest.raises(PositionLost, match=r"'orders-1'.* not there: gone"):
            query.read(start, end)
        return
    rows += query.read(start, end)
    log.unavailable = set()
    query.clock.now += 1
    rows += query.read(end, query.source.next_end_without_start())
    assert sorted(rows) == everything(log)
