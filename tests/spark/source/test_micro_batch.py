"""The driver's side of a stream, against a log in memory: starts, ends, limits, losses, restarts."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.client import retry
from spark_streams.errors import CheckpointError, NotFound, OptionError, PositionLost
from spark_streams.position import At
from tests.examples import examples
from tests.spark.fake_client import FakeLog, FakePartition, name
from tests.spark.fake_query import Query, everything


def test_earliest_reads_all_in_one_batch() -> None:
    log = FakeLog("0", "1")
    log.partitions["0"].append(3)
    log.partitions["1"].append(2)
    query = Query(log, startingOffsets="earliest")
    assert query.drain() == [5]
    assert sorted(query.rows) == everything(log)


def test_default_start_is_latest_and_pinned_by_an_empty_first_batch() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(3)
    query = Query(log)
    assert query.batch() == 0
    query.restart()
    log.partitions["0"].append(2)
    assert query.batch() == 2
    assert query.batch() == -1
    assert query.rows == [("0", name(3)), ("0", name(4))]


def test_a_checkpoint_does_not_know_by_which_hosts_the_log_was_reached() -> None:
    """Hosts of a cluster come and go, and their order in a list means nothing."""
    log = FakeLog("0", "1")
    query = Query(log, url="amqp://a,b", startingOffsets="earliest")
    for url in ("amqp://b,a", "amqp://c:1", "amqps://[::1],d"):
        for held in log.partitions.values():
            held.append(2)
        assert query.drain() == [4]
        query.options["url"] = url
        query.restart()
    assert query.drain() == [] and sorted(query.rows) == everything(log)


def test_after_an_error_the_next_connection_knows_what_the_last_one_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_pause", lambda seconds: None)
    log = FakeLog("0")
    log.advertised = (("b", 1),)
    query = Query(log, startingOffsets="earliest")
    query.drain()
    log.stream, stream = "another", log.stream
    with pytest.raises(NotFound):
        query.plan()
    log.stream = stream
    query.drain()
    assert log.reached_by[0] == ()
    assert set(log.reached_by[1:]) == {log.advertised}


def test_initial_offset_is_the_same_whenever_asked() -> None:
    log = FakeLog("0")
    query = Query(log)
    before = query.source.initial()
    log.partitions["0"].append(2)
    query.clock.now += 60
    assert query.source.initial() == before


@pytest.mark.parametrize("start", ["latest", "earliest", '{"0": "latest", "1": "earliest"}'])
def test_a_crash_in_batch_0_reads_the_same_rows_after_the_restart(start: str) -> None:
    log = FakeLog("0", "1")
    for held in log.partitions.values():
        held.append(3)
    query = Query(log, startingOffsets=start)
    query.source.initial()
    for held in log.partitions.values():
        held.append(4)
    first = query.plan()
    rows = query.read(*first)
    query.restart()  # the offset log has the end of batch 0, the start is asked again
    for held in log.partitions.values():
        held.append(5)
    query.clock.now += 1
    assert query.read(query.source.initial(), first[1]) == rows
    query.committed, query.rows = first[1], rows
    query.drain()
    skipped = {"latest": 6, "earliest": 0}.get(start, 3)
    assert len(query.rows) == len(set(query.rows)) == 24 - skipped


def test_a_range_is_read_again_from_the_same_offsets_after_a_restart() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(10)
    query = Query(log, startingOffsets="earliest")
    query.batch(4)
    start, end = query.plan(4)
    before = query.read(start, end)
    query.restart()
    log.partitions["0"].append(10)
    assert query.read(start, end) == before == [("0", name(n)) for n in range(4, 8)]


@pytest.mark.parametrize("tells", [True, False])
def test_the_limit_holds_and_every_event_is_read_once(tells: bool) -> None:
    log = FakeLog("a", "b", "c", tells=tells)
    for held, count in zip(log.partitions.values(), (50, 7, 0), strict=True):
        held.append(count)
    query = Query(log, startingOffsets="earliest")
    sizes = query.drain(10)
    assert max(sizes) <= 10
    assert len(sizes) == 6
    assert sorted(query.rows) == everything(log)


def test_walks_stay_open_over_triggers_and_touch_each_event_once() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(100)
    query = Query(log, startingOffsets="earliest")
    query.drain(10)
    assert log.walks <= 1
    assert log.walked <= 100


def test_a_limit_below_the_number_of_partitions_starves_none() -> None:
    log = FakeLog("a", "b", "c")
    for held in log.partitions.values():
        held.append(2)
    log.partitions["a"].append(100)
    query = Query(log, startingOffsets="earliest")
    for _ in range(3):
        query.batch(1)
        log.partitions["a"].append(1)
    assert {p for p, _ in query.rows} == {"a", "b", "c"}


def test_an_idle_query_asks_no_more_often_than_the_poll_interval() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(1)
    query = Query(log, startingOffsets="earliest", pollInterval="100")
    query.drain()
    described, counted = log.described, log.counted
    for _ in range(100):
        query.clock.now += 0.010
        assert query.source.next_end(query.committed, None) == query.committed
        query.source.newest()
    assert log.described - described <= 11
    assert log.counted == counted


def test_new_partitions_are_read_from_their_beginning() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(2)
    query = Query(log)
    query.drain()
    log.partitions["1"] = type(log.partitions["0"])()
    log.partitions["1"].append(3)
    query.drain()
    assert query.rows == [("1", name(n)) for n in range(3)]


def test_new_partitions_are_not_forgotten_by_a_limit() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(2)
    query = Query(log, startingOffsets="earliest")
    query.drain()
    log.partitions["0"].append(9)
    log.partitions["1"] = type(log.partitions["0"])()
    log.partitions["1"].append(3)
    query.drain(1)
    assert sorted(query.rows) == everything(log)


# --- Trigger.AvailableNow


@pytest.mark.parametrize("limit", [None, 4])
def test_available_now_stops_at_the_end_seen_at_its_start(limit: int | None) -> None:
    log = FakeLog("0", "1")
    for held in log.partitions.values():
        held.append(10)
    query = Query(log, startingOffsets="earliest")
    query.source.fix_end()
    for held in log.partitions.values():
        held.append(5)
    log.partitions["2"] = type(log.partitions["0"])()
    log.partitions["2"].append(5)
    sizes = query.drain(limit)
    assert sum(sizes) == 20
    assert 0 not in sizes
    query.restart()
    query.source.fix_end()
    log.partitions["0"].append(1)
    assert sum(query.drain(limit)) == 15
    query.restart()
    query.source.fix_end()
    assert sum(query.drain(limit)) == 1
    query.restart()
    query.source.fix_end()
    assert query.drain(limit) == []
    assert sorted(query.rows) == everything(log)


def test_available_now_from_latest_with_events_after_the_end_was_fixed() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(3)
    query = Query(log)
    query.source.fix_end()
    log.partitions["0"].append(3)
    query.clock.now += 1
    assert sum(query.drain()) == 0


# --- losses


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


# --- user's positions


def test_positions_of_each_kind() -> None:
    log = FakeLog("0", "1", "2", "3")
    for held in log.partitions.values():
        for n in range(5):
            held.append(1, timestamp=-3 + n)
    starts = {"0": name(1), "1": {"at": name(1)}, "2": {"timestamp": -1}, "3": "latest"}
    query = Query(log, startingOffsets=json.dumps(starts))
    query.drain()
    counts = [len([1 for p, _ in query.rows if p == partition]) for partition in log.partitions]
    assert counts == [3, 4, 3, 0]


def test_a_start_that_is_gone_or_never_was() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(5)
    log.partitions["0"].truncate(2)
    with pytest.raises(PositionLost, match="at 'e000001'"):
        Query(log, startingOffsets='{"0": {"at": "e000001"}}').batch()
    assert Query(log, startingOffsets='{"0": "e000001"}').batch() == 3
    with pytest.raises(PositionLost, match="newest event"):
        Query(log, startingOffsets='{"0": "x"}').batch()
    assert Query(log, startingOffsets='{"0": {"at": "e000001"}}', failOnDataLoss="false").batch() == 3


@pytest.mark.parametrize(
    ("starts", "message"),
    [('{"0": "earliest", "7": "earliest"}', "no partition '7'; the stream has '0', '1'"), ('{"0": "earliest"}', "'1'")],
)
def test_positions_have_to_name_the_partitions(starts: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Query(FakeLog("0", "1"), startingOffsets=starts).batch()


def test_a_timestamp_later_than_every_event() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(2, timestamp=-5)
    with pytest.raises(OptionError, match=r"partition '0'.*startingOffsetsByTimestampStrategy"):
        Query(log, startingTimestamp="-4").batch()
    query = Query(log, startingTimestamp="-4", startingOffsetsByTimestampStrategy="latest")
    assert query.batch() == 0
    log.partitions["0"].append(1, timestamp=0)
    assert query.drain() == [1]


def test_a_stream_starts_at_the_first_event_that_an_expression_matches() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(2, timestamp=-5)
    log.partitions["0"].append(3, timestamp=7)
    log.partitions["0"].append(1, timestamp=-5)
    at_seven = "d.event-streams-timestamp = 7"
    assert Query(log, startingExpression=at_seven).drain() == [4]
    with pytest.raises(OptionError, match=r"partition '0' has no event that \"n = 'x'\" is true of"):
        Query(log, startingExpression="n = 'x'", startingOffsetsByTimestampStrategy="error").batch()
    late = Query(log, startingExpression="n = 'x'")
    assert late.batch() == 0
    log.partitions["0"].append(1, timestamp=0)
    assert late.drain() == [1]
    assert Query(log, startingExpression="key = '3'").drain() == [4]


# --- splitting, lag, checkpoints


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("tasks", [1, 3, 8, 50])
def test_min_partitions_splits_without_losing_or_repeating(tells: bool, tasks: int) -> None:
    log = FakeLog("0", "1", tells=tells)
    log.partitions["0"].append(30)
    log.partitions["1"].append(3)
    query = Query(log, startingOffsets="earliest", minPartitions=str(tasks))
    start, end = query.plan()
    assert min(tasks, 33) <= len(query.source.reads(start, end)) <= max(tasks, 2)
    assert sorted(query.read(start, end)) == everything(log)


def test_lag_is_what_is_there_after_the_last_planned_batch() -> None:
    log = FakeLog("0", "1")
    log.partitions["0"].append(10)
    query = Query(log, startingOffsets="earliest")
    query.batch(4)
    newest = query.source.newest()
    assert newest["lag"] == {"0": 6, "1": 0}
    assert newest["partitions"] == {"0": {"after": name(9)}, "1": "earliest"}


def test_one_log_line_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog("0", "1")
    log.partitions["0"].append(10)
    with caplog.at_level(logging.INFO, "spark_streams.spark.progress"):
        query = Query(log, startingOffsets="earliest")
        query.drain(5)
        query.batch()
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2
    assert "batch of 5 events" in lines[0]
    assert "lag {0: 5, 1: 0}" in lines[0]


def test_one_log_line_a_batch_without_a_start(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog("0", "1")
    query = Query(log, startingOffsets="earliest")
    with caplog.at_level(logging.INFO, "spark_streams.spark.progress"):
        for events in (4, 6, 0, 0):
            log.partitions["0"].append(events)
            query.source.next_end_without_start()
            query.source.initial()
            query.clock.now += 1
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2
    assert "batch of an unknown number of events in 1.000 s, lag {0: 6, 1: 0}" in lines[0], (
        "before Spark asks for the start"
    )
    assert "batch of 6 events, 6 events/s in 1.000 s, lag {0: 0, 1: 0}" in lines[1]


def test_another_streams_checkpoint_is_refused() -> None:
    query = Query(FakeLog("0"))
    with pytest.raises(CheckpointError, match="of stream 'carts', but option 'stream' is 'orders'"):
        query.source.next_end({"version": 1, "stream": "carts", "partitions": {}}, None)


# --- without a start (Spark 4.0 and 4.1)


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


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.booleans()), max_size=12),
    st.integers(1, 6),
    st.booleans(),
)
def test_every_event_once_whatever_happens(steps: list[tuple[str, int, bool]], limit: int, tells: bool) -> None:
    log = FakeLog("a", "b", tells=tells)
    query = Query(log, startingOffsets="earliest")
    for partition, count, restart in steps:
        log.partitions[partition].append(count)
        query.batch(limit)
        if restart:
            query.plan(limit)
            query.restart()
    query.drain(limit)
    assert sorted(query.rows) == everything(log)
