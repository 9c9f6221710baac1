"""Which events that are gone, or seem to be, are a loss to a stream, against a log in memory."""

from __future__ import annotations

import logging

import pytest

from spark_streams.errors import PositionLost
from spark_streams.position import At
from tests.spark.fake_client import FakeLog, FakePartition, name
from tests.spark.fake_query import Query, everything


def lossy(tells: bool, **options: str) -> tuple[FakeLog, Query]:
    log = FakeLog("0", "1", tells=tells)
    for held in log.partitions.values():
        held.append(10)
    query = Query(log, startingOffsets="earliest", **options)
    query.batch(10)
    return log, query


@pytest.mark.parametrize("tells", [True, False])
def test_truncated_below_the_start(tells: bool, caplog: pytest.LogCaptureFixture) -> None:
    log, query = lossy(tells)
    log.partitions["0"].truncate(8)
    with pytest.raises(PositionLost, match=r"partition '0': reading was to go on after 'e000004'.*failOnDataLoss"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    with caplog.at_level(logging.WARNING):
        query.drain(2)
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    lost = {("0", name(n)) for n in range(5, 8)}
    assert sorted(query.rows) == sorted(set(everything(log)) - lost)


def test_retention_of_what_was_read_is_no_loss() -> None:
    log, query = lossy(True)
    log.partitions["0"].truncate(5)
    query.drain()
    log.partitions["0"].truncate(10)
    log.partitions["1"].truncate(10)
    assert query.drain() == []
    log.partitions["0"].append(2)
    assert query.drain() == [2]


def test_an_emptied_partition_keeps_its_position_until_the_next_event_tells() -> None:
    log, query = lossy(False)
    query.drain()
    log.partitions["0"].truncate(10)
    assert query.drain() == []
    log.partitions["1"].append(1)
    assert query.drain() == [1]
    assert query.committed["partitions"]["0"] == {"after": name(9)}
    log.partitions["0"].append(2)
    with pytest.raises(PositionLost, match="after 'e000009', but the partition holds events from 'e000010'"):
        query.batch()


def test_events_that_came_and_went_unread_are_a_loss() -> None:
    log = FakeLog("0")
    query = Query(log)
    query.drain()
    log.partitions["0"].append(5)
    log.partitions["0"].truncate(5)
    with pytest.raises(PositionLost, match=r"from its beginning, but .* no events, 'e000004' and older were removed"):
        query.batch()


@pytest.mark.parametrize("known", [True, False], ids=["empty before", "new"])
def test_a_task_is_told_which_event_a_partition_begins_with(known: bool) -> None:
    """EARLIEST would begin wherever retention has come until the task reads."""
    log = FakeLog("0")
    query = Query(log, startingOffsets="earliest")
    if known:
        log.partitions["1"] = FakePartition()
    query.drain()
    log.partitions.setdefault("1", FakePartition()).append(3)
    (planned,) = query.source.reads(*query.plan())
    assert (planned.read.partition, planned.read.start, planned.read.end) == ("1", At(name(0)), name(2))


def test_truncated_between_planning_and_reading() -> None:
    log, query = lossy(True)
    start, end = query.plan()
    log.partitions["1"].truncate(7)
    query.restart()
    with pytest.raises(PositionLost, match="partition '1'"):
        query.read(start, end)
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert ("1", name(7)) in query.read(start, end)
    log.partitions["1"].truncate(10)
    query.restart()
    assert {p for p, _ in query.read(start, end)} == {"0"}


@pytest.mark.parametrize("tells", [True, False])
def test_a_partition_that_vanished(tells: bool) -> None:
    log, query = lossy(tells)
    del log.partitions["1"]
    with pytest.raises(PositionLost, match=r"partition '1'.*no longer there"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.drain()
    assert len([p for p, _ in query.rows if p == "0"]) == 10
    assert query.batch() == -1


def test_a_log_deleted_and_created_again_is_noticed() -> None:
    log, query = lossy(True)
    fresh = FakeLog("0")
    fresh.partitions["0"].append(30)
    log.partitions, log.incarnation = fresh.partitions, "two"
    with pytest.raises(PositionLost, match="deleted and created again"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.rows.clear()
    query.drain(7)
    assert sorted(query.rows) == everything(log)


@pytest.mark.parametrize("count", [4, 5, 6])
def test_a_log_created_again_is_read_from_its_beginning_once(count: int) -> None:
    """Also where it ends at the offset at which the old one ended: the new log's end has an identity of its own."""
    log = FakeLog("0")
    log.has_log_identity = True
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest", failOnDataLoss="false")
    assert query.drain() == [5]
    fresh = FakePartition(created="two")
    fresh.append(count)
    log.partitions, log.incarnation = {"0": fresh}, "two"
    assert query.drain() == [count]
    fresh.append(1)
    assert query.drain() == [1]
    assert query.rows[5:] == everything(log)


@pytest.mark.parametrize("count", [4, 5, 6])
def test_without_starts_a_log_created_again_is_read_from_its_beginning_once(count: int) -> None:
    log = FakeLog("0")
    log.has_log_identity = True
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest", failOnDataLoss="false")
    ends = [query.source.next_end_without_start()]
    rows = query.read(query.source.initial(), ends[0])
    fresh = FakePartition(created="two")
    log.partitions, log.incarnation = {"0": fresh}, "two"
    for more in (count, 1):
        fresh.append(more)
        query.clock.now += 1
        ends.append(query.source.next_end_without_start())
        rows += query.read(ends[-2], ends[-1])
    assert rows[5:] == everything(log)


def test_without_starts_a_missing_partition_of_a_log_created_again_is_new() -> None:
    """The position that the old one had when it was missing means nothing in the new log."""
    log = FakeLog("0", "1")
    for held in log.partitions.values():
        held.append(5)
    query = Query(log, startingOffsets="earliest", failOnDataLoss="false")
    start = query.source.next_end_without_start()
    query.read(query.source.initial(), start)
    log.hidden = {"1"}
    log.partitions["0"].append(1)
    query.restart()
    end = query.source.next_end_without_start()
    query.read(start, end)
    log.partitions, log.incarnation = {"0": FakePartition(), "1": FakePartition()}, "two"
    for held in log.partitions.values():
        held.append(7)
    rows: list[tuple[str, str]] = []
    for hidden in ({"1"}, set[str]()):
        log.hidden = hidden
        query.clock.now += 1
        start, end = end, query.source.next_end_without_start()
        rows += query.read(start, end)
    assert sorted(rows) == everything(log)


def test_a_log_created_again_between_planning_and_reading_gives_no_rows_of_the_new_one() -> None:
    log, query = lossy(True, failOnDataLoss="false")
    start, end = query.plan()
    log.incarnation = "two"
    query.clock.now += 1
    assert query.read(start, end) == []


@pytest.mark.parametrize("tells", [True, False])
def test_offsets_that_go_backwards(tells: bool) -> None:
    log, query = lossy(tells)
    query.drain()
    fresh = FakeLog("0", "1")
    fresh.partitions["0"].append(3)
    fresh.partitions["1"].append(20)
    log.partitions = fresh.partitions
    with pytest.raises(PositionLost, match=r"partition '0'.*to 'e000002': the log was created again"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.rows.clear()
    query.drain()
    assert [o for p, o in query.rows if p == "0"] == [name(n) for n in range(3)]


def test_a_cached_answer_older_than_the_position_is_no_loss() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest", pollInterval="60000")
    query.drain()
    log.partitions["0"].append(5)
    other = Query(log, startingOffsets="earliest")
    other.drain()
    assert query.source.next_end(other.committed, None) == other.committed


def test_what_a_node_that_is_behind_says_is_no_loss() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    for behind in (2, 5):
        query.restart()
        log.behind = behind
        assert query.batch() == -1, "nothing is new, and nothing was lost"
    log.partitions["0"].append(3)
    query.batch()
    log.behind = 0
    query.drain()
    assert query.rows == everything(log)


def test_a_batch_planned_before_a_restart_is_read_from_a_node_that_is_behind() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest")
    start, end = query.plan()
    query.restart()
    log.behind = 3
    assert query.read(start, end) == everything(log)
