"""What triggers wait for and where they end: minOffsetsPerTrigger, and AvailableNow over offsets without events."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import Refused
from tests.examples import examples
from tests.spark.fake_client import FakeClient, FakeLog, digits, name
from tests.spark.fake_query import Query, everything


def query_of(log: FakeLog, **options: str) -> Query:
    return Query(log, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s", **options)


# --- minOffsetsPerTrigger


@pytest.mark.parametrize(("tells", "numeric"), [(True, False), (False, False), (True, True)])
def test_a_batch_waits_for_enough_events_over_all_partitions(tells: bool, numeric: bool) -> None:
    log = FakeLog("0", "1", tells=tells, numeric=numeric)
    query = query_of(log)
    query.drain()
    log.partitions["0"].append(5)
    assert query.batch() == -1
    log.partitions["1"].append(4)
    assert query.batch() == -1
    log.partitions["1"].append(1)
    assert query.batch() == 10
    log.partitions["1"].append(9)
    assert query.batch() == -1
    log.partitions["1"].append(7)
    assert query.batch() == 16
    assert sorted(query.rows) == everything(log)


def test_it_waits_no_longer_than_the_delay_since_the_last_batch() -> None:
    log = FakeLog("0", numeric=True)
    query = query_of(log)
    log.partitions["0"].append(10)
    assert query.batch() == 10
    last = query.clock.now
    log.partitions["0"].append(1)
    query.clock.now = last + 58
    assert query.batch() == -1
    assert query.batch() == 1, "60 s after the last one"
    log.partitions["0"].append(1)
    assert query.batch() == -1
    query.clock.now += 600
    assert query.batch() == 1
    query.clock.now += 600
    log.partitions["0"].append(1)
    assert query.batch() == 1, "the delay has passed while there was nothing"


def test_the_first_batch_counts_the_delay_from_the_start_and_pins_where_it_began() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(3)
    query = query_of(log)
    assert query.batch() == 0, "an empty batch 0 that keeps the start"
    assert query.batch() == -1
    log.partitions["0"].append(1)
    query.restart()
    query.clock.now += 58
    assert query.batch() == -1
    assert query.batch() == 4
    assert query.rows == everything(log)


def test_a_restart_counts_the_delay_anew() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(10)
    query = query_of(log)
    query.batch()
    log.partitions["0"].append(1)
    query.clock.now += 59
    query.restart()
    assert query.batch() == -1


def test_triggers_that_take_all_there_is_do_not_wait() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(3)
    query = query_of(log)
    query.source.fix_end()
    assert query.drain() == [3]  # AvailableNow
    query = query_of(log)
    start, end = query.plan(may_wait=False)  # Once: Spark asks for all there is
    assert len(query.read(start, end)) == 3


def test_a_minimum_works_with_a_maximum() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(35)
    query = query_of(log)
    assert query.drain(12) == [12, 12, 11]
    log.partitions["0"].append(9)
    assert query.batch(12) == -1


def test_the_same_answer_is_counted_once() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(3)
    query = query_of(log, pollInterval="100")
    query.batch()
    query.batch()
    counted = log.counted
    for _ in range(50):
        assert query.batch() == -1
    assert log.counted == counted


def test_one_count_tells_whether_to_wait_and_what_a_limit_takes() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(30)
    query = query_of(log)
    assert query.batch(12) == 12
    assert log.counted == 2, "the events after the start and those after the end"


def test_counting_by_walking_touches_each_event_once() -> None:
    log = FakeLog("0", tells=False)
    query = query_of(log)
    query.drain()
    for _ in range(9):
        log.partitions["0"].append(1)
        assert query.batch() == -1
    assert log.walked == 9
    log.partitions["0"].append(1)
    assert query.batch() == 10
    assert log.walks == 0, "links are given back"


def test_where_events_cannot_be_counted_batches_do_not_wait_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: FakeClient, *_: object) -> None:
        raise Refused("amqp:not-allowed", "one link a partition", "attach to 'orders'")

    monkeypatch.setattr(FakeClient, "offsets", refuse)
    log = FakeLog("0", tells=False)
    query = query_of(log)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.partitions["0"].append(1)
            assert query.batch() == 1
    assert len([r for r in caplog.records if "do not wait for 'minOffsetsPerTrigger'" in r.getMessage()]) == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.booleans(), st.integers(1, 90)), max_size=12),
    st.one_of(st.none(), st.integers(10, 14)),
    st.booleans(),
)
def test_every_event_once_however_long_batches_wait(
    steps: Sequence[tuple[str, int, bool, int]], limit: int | None, tells: bool
) -> None:
    log = FakeLog("a", "b", tells=tells)
    query = query_of(log)
    for partition, count, restart, seconds in steps:
        log.partitions[partition].append(count)
        query.clock.now += seconds
        query.batch(limit)
        if restart:
            query.restart()
    query.clock.now += 61
    while query.batch(limit) >= 0:
        query.clock.now += 61
    assert sorted(query.rows) == everything(log)


# --- offsets that hold no event


@pytest.mark.parametrize("where", ["tail", "middle", "all"])
def test_available_now_with_a_limit_ends_over_offsets_without_events(where: str) -> None:
    log = FakeLog("0", numeric=True)
    held = log.partitions["0"]
    held.append(0 if where == "all" else 7)
    held.append_blank(10)
    held.append(3 if where == "middle" else 0)
    query = Query(log, startingOffsets="earliest")
    query.source.fix_end()
    sizes = query.drain(4)
    assert len(sizes) == -(-held.next // 4)
    assert query.rows == everything(log)
    assert query.committed["partitions"]["0"] == {"after": digits(held.next - 1)}
    query.restart()
    query.source.fix_end()
    assert query.drain(4) == [], "and there is nothing to do in the next run"


@pytest.mark.parametrize("limit", [None, 1])
def test_available_now_over_an_idle_stream_runs_no_batch(limit: int | None) -> None:
    log = FakeLog("0", "1", numeric=True)
    log.partitions["0"].append(2)
    query = Query(log, startingOffsets="earliest")
    query.source.fix_end()
    query.drain(limit)
    for _ in range(3):
        query.restart()
        query.source.fix_end()
        assert query.drain(limit) == []


def test_available_now_over_what_retention_removed_does_not_run_a_batch_for_each_lost_share() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(10)
    query = Query(log, startingOffsets="earliest", failOnDataLoss="false")
    query.drain()
    log.partitions["0"].append(1000)
    log.partitions["0"].truncate(1000)
    query.restart()
    query.source.fix_end()
    assert query.drain(4) == [4, 4, 2]
    log.partitions["0"].append(1000)
    log.partitions["0"].truncate(2010)
    query.restart()
    query.source.fix_end()
    assert len(query.drain(4)) <= 1


def test_numbers_are_limited_in_proportion_without_a_question() -> None:
    log = FakeLog("0", "1", numeric=True)
    log.partitions["0"].append(30)
    log.partitions["1"].append(10)
    query = Query(log, startingOffsets="earliest")
    assert query.batch(8) == 8
    assert [p for p, _ in query.rows] == ["0"] * 6 + ["1"] * 2
    assert query.source.newest()["lag"] == {"0": 24, "1": 8}
    query.drain(8)
    assert sorted(query.rows) == everything(log)
    assert (log.counted, log.walked) == (0, 0)


def test_names_of_opaque_offsets_are_never_taken_for_numbers() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets="earliest")
    assert query.drain(2) == [2, 2, 1]
    assert query.committed["partitions"]["0"] == {"after": name(4)}
