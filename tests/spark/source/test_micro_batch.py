"""The driver's side of a stream, against a log in memory: starts, ends, limits, losses, restarts."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.client import retry
from spark_streams.errors import CheckpointError, NotFound, OptionError, PositionLost
from tests.examples import examples
from tests.spark.fake_client import FakeLog, name
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


@pytest.mark.parametrize("numeric", [False, True])
def test_an_empty_partition_starts_at_its_end(numeric: bool) -> None:
    log = FakeLog("0", "1", numeric=numeric)
    log.partitions["0"].append(2, timestamp=7)
    for start in ({"startingTimestamp": "7"}, {"startingOffsetsByTimestamp": '{"0": 7, "1": 8}'}):
        assert Query(log, **start, startingOffsetsByTimestampStrategy="error").drain() == [2]
    with pytest.raises(OptionError, match="partition '0' has no event with timestamp 8 ms or later"):
        Query(log, startingTimestamp="8").batch()
    query = Query(log, startingExpression="key = '1'", startingOffsetsByTimestampStrategy="error")
    assert query.drain() == [1]
    log.partitions["1"].append(3, timestamp=5)
    assert query.drain() == [3], "what comes is read, whatever its time"


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
        for _ in range(2):
            start, end = query.plan(5)
            query.source.reads(start, end)
            query.source.reads(start, end)  # Spark may ask again
            query.committed = end
        Query(log, startingOffsets="earliest").source.reads(start, end)  # a restart: the end is of another run
    lines = [message.partition("batch of ")[2] for message in caplog.messages]
    assert lines == [
        "5 events, lag {0: 5, 1: 0}",
        "5 events, lag {0: 0, 1: 0}; the batch before took 1.000 s, 5 events/s",
        "5 events, lag {0: 0, 1: 0}",
    ]


def test_one_log_line_a_batch_without_a_start(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog("0", "1")
    query = Query(log, startingOffsets="earliest")
    start = None
    with caplog.at_level(logging.INFO, "spark_streams.spark.progress"):
        for events in (4, 6, 0, 0):
            log.partitions["0"].append(events)
            end = query.source.next_end_without_start()
            start = start or query.source.initial()
            if end != start:
                query.source.reads(start, end)
                start = end
            query.clock.now += 1
    lines = [message.partition("batch of ")[2] for message in caplog.messages]
    assert lines == [
        "4 events, lag {0: 0, 1: 0}",  # counted when Spark gives the start
        "6 events, lag {0: 0, 1: 0}; the batch before took 1.000 s",
    ]


def test_another_streams_checkpoint_is_refused() -> None:
    query = Query(FakeLog("0"))
    with pytest.raises(CheckpointError, match="of stream 'carts', but option 'stream' is 'orders'"):
        query.source.next_end({"version": 2, "format": "amqp-events", "stream": "carts", "partitions": {}}, None)


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
