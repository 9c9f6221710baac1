"""Partitions that are missing for a moment, and streams deleted and created again that have no identity."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.client import retry
from spark_streams.client.log_client import RangeRead
from spark_streams.errors import PositionLost
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.ranges import PlannedRead
from spark_streams.spark.source.task import read_range
from tests.examples import examples
from tests.spark.fake_client import FakeClient, FakeLog, FakePartition, digits, name
from tests.spark.fake_query import Query, everything

LENIENT = {"startingOffsets": "earliest", "failOnDataLoss": "false"}


def numeric(*counts: int) -> FakeLog:
    log = FakeLog(*(f"orders-{i}" for i in range(len(counts))), numeric=True)
    for held, count in zip(log.partitions.values(), counts, strict=True):
        held.append(count)
    return log


def create_again(log: FakeLog, partition: str, events: int) -> None:
    fresh = FakePartition(log.partitions[partition].spell, created=log.partitions[partition].created + "+")
    fresh.append(events)
    log.partitions[partition] = fresh


# --- at rest


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_log_created_again_with_as_many_events_is_noticed_when_the_query_starts_again(partitions: int) -> None:
    log = numeric(*[5] * partitions)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    for partition in log.partitions:
        create_again(log, partition, 5)
    query.restart()
    with pytest.raises(PositionLost, match="the stream was deleted and created again"):
        query.batch()
    lenient = Query(log, **LENIENT)
    lenient.committed = query.committed
    lenient.drain()
    assert sorted(lenient.rows) == everything(log)


def test_a_query_at_rest_asks_one_partition_once() -> None:
    log = numeric(5, 5, 5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    query.restart()
    asked: list[list[str]] = []
    ask = query.source._driver.log_identity
    query.source._driver.log_identity = lambda ends: (asked.append(list(ends)), ask(ends))[1]
    for _ in range(3):
        assert query.batch() == -1
    assert asked == [["orders-0"]]


# --- missing for a moment


@pytest.mark.parametrize("is_numeric", [True, False])
@pytest.mark.parametrize("tells", [True, False])
def test_a_partition_missing_for_some_batches_goes_on_where_it_was(is_numeric: bool, tells: bool) -> None:
    log = FakeLog("0", "1", tells=tells, numeric=is_numeric)
    for held in log.partitions.values():
        held.append(5)
    query = Query(log, **LENIENT)
    query.batch()
    before = query.committed["partitions"]["1"]
    log.hidden = {"1"}
    for _ in range(2):
        log.partitions["0"].append(1)
        log.partitions["1"].append(1)
        assert query.batch() == 1
        assert query.committed["partitions"]["1"] == before
    query.restart()
    assert query.batch() == -1
    log.hidden = set()
    query.drain()
    assert sorted(query.rows) == everything(log)


def test_a_partition_missing_in_one_answer_only_is_no_loss() -> None:
    log = numeric(5, 5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    log.partitions["orders-1"].append(3)
    query.clock.now += 1
    log.hidden = {"orders-1"}
    query.source.newest()  # the answer that lacks it is remembered for the poll interval
    log.hidden = set()
    query.committed, end = query.committed, query.source.next_end(query.committed, None)
    assert query.read(query.committed, end) == [("orders-1", digits(n)) for n in range(5, 8)]


def test_with_losses_to_fail_the_query_a_missing_partition_does() -> None:
    log = numeric(5, 5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    log.hidden = {"orders-1"}
    with pytest.raises(PositionLost, match=r"partition 'orders-1'.*no longer there"):
        query.batch()
    log.hidden = set()
    query.restart()
    query.drain()
    assert sorted(query.rows) == everything(log)


@pytest.mark.parametrize("limit", [None, 2])
def test_available_now_while_a_partition_is_missing(limit: int | None) -> None:
    log = numeric(5, 5)
    query = Query(log, **LENIENT)
    query.batch()
    log.partitions["orders-0"].append(5)
    log.partitions["orders-1"].append(5)
    log.hidden = {"orders-1"}
    query.source.fix_end()
    assert sum(query.drain(limit)) == 5
    query.restart()
    query.source.fix_end()
    log.hidden = set()  # back, but not before the end was fixed
    assert query.drain(limit) == []
    query.restart()
    query.source.fix_end()
    log.hidden = {"orders-1"}  # there when the end was fixed, and missing then
    assert query.drain(limit) == []
    log.hidden = set()
    assert sum(query.drain(limit)) == 5
    assert sorted(query.rows) == everything(log)


def test_a_partition_that_comes_back_as_another_is_noticed() -> None:
    for events, told in ((3, "newest event"), (9, "created again")):
        log = numeric(5, 5)
        query = Query(log, **LENIENT)
        query.batch()
        log.hidden = {"orders-1"}
        log.partitions["orders-0"].append(1)
        query.batch()
        create_again(log, "orders-1", events)
        log.hidden = set()
        strict = Query(log, startingOffsets="earliest")
        strict.committed = query.committed
        with pytest.raises(PositionLost, match=told):
            strict.batch()
        query.rows.clear()
        query.drain()
        assert query.rows == [("orders-1", digits(n)) for n in range(events)]


@pytest.mark.parametrize("restarts", ["no", "while it is missing", "before it is missing", "before it is back"])
def test_without_a_start_a_missing_partition_goes_on_where_it_was(restarts: str) -> None:
    log = numeric(5, 5)
    query = Query(log, **LENIENT)
    start = query.source.next_end_without_start()
    rows = query.read(query.source.initial(), start)
    for _ in range(2):
        for hidden, moment in [
            (set(), "before it is missing"),
            ({"orders-1"}, ""),
            ({"orders-1"}, "while it is missing"),
        ]:
            log.hidden = hidden
            if restarts == moment:
                query.restart()
            for held in log.partitions.values():
                held.append(1)
            query.clock.now += 1
            end = json.loads(json.dumps(query.source.next_end_without_start()))
            rows += query.read(start, end)
            start = end
        log.hidden = set()
        if restarts == "before it is back":
            query.restart()
    query.clock.now += 1
    rows += query.read(start, query.source.next_end_without_start())
    assert sorted(rows) == everything(log)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["0", "1"]), st.integers(0, 5), st.booleans(), st.sets(st.sampled_from(["0", "1"]))),
        max_size=12,
    ),
    st.one_of(st.none(), st.integers(1, 6)),
    st.booleans(),
)
def test_every_event_once_whoever_is_missing(
    steps: list[tuple[str, int, bool, set[str]]], limit: int | None, is_numeric: bool
) -> None:
    log = FakeLog("0", "1", numeric=is_numeric)
    query = Query(log, **LENIENT)
    query.batch(limit)
    for partition, count, restart, hidden in steps:
        log.hidden = hidden
        log.partitions[partition].append(count)
        query.batch(limit)
        if restart:
            query.restart()
    log.hidden = set()
    query.drain(limit)
    assert sorted(query.rows) == everything(log)


# --- deleted and created again


def test_a_stream_created_again_with_more_events_is_noticed() -> None:
    log = numeric(5, 5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    assert query.committed["witnesses"] == {"orders-0": "one", "orders-1": "one"}
    create_again(log, "orders-0", 8)
    create_again(log, "orders-1", 20)
    with pytest.raises(
        PositionLost, match=r"on after '0*4', but the stream was deleted and created again.*failOnDataLoss"
    ):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    query.rows.clear()
    query.drain()
    assert sorted(query.rows) == everything(log)


@pytest.mark.parametrize("limit", [None, 3])
def test_the_new_stream_is_read_from_its_beginning_with_a_warning(
    limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = numeric(5, 5)
    query = Query(log, **LENIENT)
    query.drain(limit)
    create_again(log, "orders-0", 8)
    log.partitions["orders-1"].append(1)
    query.rows.clear()
    with caplog.at_level(logging.WARNING):
        query.drain(limit)
    assert sorted(query.rows) == [("orders-0", digits(n)) for n in range(8)] + [("orders-1", digits(5))]
    assert len([r for r in caplog.records if "created again" in r.getMessage()]) == 1


@pytest.mark.parametrize("tells_starts", [True, False])
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("incarnation", ["one", "two"])
def test_a_log_with_both_is_read_from_its_beginning_with_one_warning(
    incarnation: str, limit: int | None, tells_starts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As at the reference log's AMQP door: created again, or an older copy, which has the same identity."""
    log = FakeLog("0")
    log.has_log_identity = True
    log.partitions["0"].append(5)
    query = Query(log, **LENIENT)

    def run() -> None:
        if tells_starts:
            query.drain(limit)
            return
        query.clock.now += 1
        end = query.source.next_end_without_start()
        query.rows += query.read(query.committed or query.source.initial(), end)
        query.committed = end

    run()
    create_again(log, "0", 8)
    log.incarnation = incarnation
    query.rows.clear()
    with caplog.at_level(logging.WARNING):
        run()
    assert sorted(query.rows) == everything(log)
    assert len([r for r in caplog.records if "created again" in r.getMessage()]) == 1


def test_the_batch_of_the_new_stream_is_read_again_after_a_restart() -> None:
    log = numeric(5)
    query = Query(log, **LENIENT)
    query.batch()
    create_again(log, "orders-0", 8)
    start, end = query.plan()
    rows = query.read(start, end)
    query.restart()
    log.partitions["orders-0"].append(4)
    assert query.read(start, end) == rows == [("orders-0", digits(n)) for n in range(8)]
    query.committed, query.rows = end, rows
    query.drain()
    assert query.rows == everything(log)


def test_a_stream_created_again_before_a_replay_gives_no_rows_of_the_new_one() -> None:
    log = numeric(5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    log.partitions["orders-0"].append(3)
    start, end = query.plan()
    create_again(log, "orders-0", 20)
    query.restart()
    with pytest.raises(PositionLost, match=r"on after '0*7', but the stream was deleted and created again"):
        query.read(start, end)
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.read(start, end) == []
    query.committed, query.rows = end, []
    query.drain()
    assert query.rows == everything(log), "the next batch begins at the new one's beginning"


def test_an_idle_query_asks_for_no_identity() -> None:
    log = numeric(5)
    query = Query(log, startingOffsets="earliest")
    query.drain()
    asked = log.identified
    for _ in range(20):
        assert query.batch() == -1
    assert log.identified == asked
    log.partitions["orders-0"].append(1)
    assert query.batch() == 1
    assert log.identified - asked == 2, "of the new end, and of the old one"


def test_partitions_without_news_keep_their_identity_and_are_not_asked_about() -> None:
    log = numeric(5, 5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    log.partitions["orders-1"].created = "never asked for"
    log.partitions["orders-0"].append(1)
    assert query.batch() == 1
    assert query.committed["witnesses"] == {"orders-0": "one", "orders-1": "one"}


def test_a_position_that_retention_removed_has_no_identity_and_is_no_other_stream() -> None:
    log = numeric(5)
    query = Query(log, startingOffsets="earliest")
    query.drain()
    log.partitions["orders-0"].append(5)
    log.partitions["orders-0"].truncate(5)
    assert query.drain() == [5]


def test_checkpoints_without_identities_get_them_with_the_next_end() -> None:
    log = numeric(5)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    del query.committed["witnesses"]
    query.restart()
    log.partitions["orders-0"].append(1)
    assert query.batch() == 1
    assert query.committed["witnesses"] == {"orders-0": "one"}


@pytest.mark.parametrize("again", ["before", "after"])
def test_available_now_and_a_stream_created_again(again: str) -> None:
    log = numeric(5, 5)
    query = Query(log, **LENIENT)
    query.batch()
    query.restart()
    query.rows.clear()
    if again == "before":
        create_again(log, "orders-0", 8)
    else:
        log.partitions["orders-0"].append(1)
    log.partitions["orders-1"].append(1)
    query.source.fix_end()
    if again == "after":
        create_again(log, "orders-0", 8)
    query.drain(3)
    fixed = 8 if again == "before" else 6
    assert sorted(query.rows) == [("orders-0", digits(n)) for n in range(fixed)] + [("orders-1", digits(5))]
    query.restart()
    query.source.fix_end()
    query.drain(3)
    assert sorted(query.rows) == [("orders-0", digits(n)) for n in range(8)] + [("orders-1", digits(5))]


def test_a_stream_that_is_missing_when_it_was_just_seen_to_be_another_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log = numeric(5)
    query = Query(log, **LENIENT)
    query.batch()
    create_again(log, "orders-0", 8)
    describe = FakeClient.describe

    def missing_when_asked_again(self: FakeClient, stream: str, **how: Collection[str]):
        described = describe(self, stream, **how)
        log.hidden = {"orders-0"}
        return described

    monkeypatch.setattr(FakeClient, "describe", missing_when_asked_again)
    monkeypatch.setattr(FakeClient, "log_identity", lambda *_: {"orders-0": "one+"})
    assert query.batch() == -1
    monkeypatch.undo()
    log.hidden, query.rows = set(), []
    query.drain()
    assert query.rows == everything(log)


@pytest.mark.parametrize("numbered", [True, False])
def test_a_stream_that_is_missing_under_a_running_query_is_waited_for(
    numbered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FakeLog(tells=not numbered, numeric=numbered)
    log.partitions["0"].append(5)
    query = Query(log, **LENIENT)
    query.drain()
    log.stream = "deleted"
    pauses: list[float] = []

    def create_again(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            log.stream, log.incarnation = "orders", "two"
            log.partitions["0"] = FakePartition(digits if numbered else name, "two")
            log.partitions["0"].append(3)

    monkeypatch.setattr(retry, "_pause", create_again)
    query.rows.clear()
    query.drain()
    assert query.rows == everything(log)
    assert len(pauses) == 4


def test_without_a_start_a_stream_created_again_is_noticed_when_planned() -> None:
    log = numeric(5)
    query = Query(log, startingOffsets="earliest")
    first = query.source.next_end_without_start()
    query.read(query.source.initial(), first)
    create_again(log, "orders-0", 8)
    query.clock.now += 1
    second = query.source.next_end_without_start()
    with pytest.raises(PositionLost, match="created again"):
        query.read(first, second)
    query.options["failOnDataLoss"] = "false"
    query.restart()
    third = query.source.next_end_without_start()
    assert query.read(first, third) == [("orders-0", digits(n)) for n in range(8)]
    log.partitions["orders-0"].append(1)
    query.clock.now += 1
    assert query.read(third, query.source.next_end_without_start()) == [("orders-0", digits(8))]


# --- while a range is read


SCHEMA = pa.schema([("offset", pa.string())])


def batch_options(**more: str):
    return parse_source({"url": "amqp://h", "stream": "orders", **more}, streaming=False)


@pytest.mark.parametrize(
    "more", [{}, {"minPartitions": "3"}, {"endingOffsets": json.dumps({"orders-0": {"at": digits(7)}})}]
)
def test_a_batch_query_notices_that_the_stream_was_created_again_while_it_was_read(more: dict[str, str]) -> None:
    log = numeric(10)
    options = batch_options(**more)
    planned = plan_batch(options, ("offset",), log.connect)
    rows = [row for p in planned for b in read_range(options, p, SCHEMA, log.connect) for row in b[0].to_pylist()]
    assert rows == [digits(n) for n in range(7 if "endingOffsets" in more else 10)]
    create_again(log, "orders-0", 30)
    for each in planned:
        with pytest.raises(PositionLost, match="deleted and created again"):
            list(read_range(options, each, SCHEMA, log.connect))


def test_a_task_of_a_stream_notices_it_too(caplog: pytest.LogCaptureFixture) -> None:
    log = numeric(10)
    query = Query(log, **LENIENT)
    start, end = query.plan()
    (planned,) = query.source.reads(start, end)
    create_again(log, "orders-0", 30)
    with caplog.at_level(logging.WARNING):
        list(read_range(batch_options(), planned, SCHEMA, log.connect))
    assert "created again" in caplog.text


def test_a_range_whose_identity_retention_removed_is_taken_as_it_is() -> None:
    log = numeric(10)
    log.partitions["orders-0"].truncate(8)
    planned = PlannedRead(
        RangeRead("orders", "orders-0", EARLIEST, digits(9), ("offset",)), log_identity=(digits(5), "another")
    )
    assert list(read_range(batch_options(), planned, SCHEMA, log.connect))


def test_logs_with_an_incarnation_have_no_identity_of_offsets() -> None:
    log = FakeLog("0")
    log.partitions["0"].append(3)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    assert query.committed == {
        "version": 2,
        "format": "amqp-events",
        "stream": "orders",
        "partitions": {"0": {"after": name(2)}},
        "incarnation": "one",
        "started": {"0": {"at": name(0)}},
    }
