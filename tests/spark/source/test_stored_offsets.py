"""Committed positions stored with the peer: when, and that nothing hangs on it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_streams.options.rabbitmq_stream import parse_source
from spark_streams.position import Checkpoint
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.spark.schemas import spark_schema
from spark_streams.spark.source.reader import LogSource, StreamReader
from spark_streams.spark.source.stored_offsets import FEW_OFFSETS, StoredPositions
from tests.spark.fake_client import FakeLog, digits
from tests.spark.fake_query import Query

RABBITMQ = "rabbitmq-stream"
OPTIONS = parse_source(
    {"url": "rabbitmq-stream://h", "stream": "orders", "startingOffsets": "earliest"}, streaming=True
)


def filled(*counts: int) -> FakeLog:
    log = FakeLog(*(str(i) for i in range(len(counts))), numeric=True)
    for held, count in zip(log.partitions.values(), counts, strict=True):
        held.append(count)
    return log


def storing(log: FakeLog) -> StoredPositions:
    return StoredPositions(OPTIONS, log.connect_store)


class Storing:
    """A query that tells its commits a batch late, as Spark does."""

    def __init__(self, log: FakeLog) -> None:
        self.query, self.stored, self.before = Query(log, startingOffsets="earliest"), storing(log), None

    def batch(self) -> int:
        size = self.query.batch()
        if size >= 0:
            if self.before is not None:
                self.stored.store(Checkpoint.from_json(self.before, RABBITMQ))
            self.before = self.query.committed
        return size


def end_of(**offsets: int) -> Checkpoint:
    return Checkpoint.from_json(
        {
            "version": 2,
            "format": "rabbitmq-stream",
            "stream": "orders",
            "partitions": {p[1:]: {"after": digits(n)} for p, n in offsets.items()},
        },
        RABBITMQ,
    )


def test_the_last_event_of_each_partition_is_stored() -> None:
    log = filled(5, 3, 0)
    query = Query(log, startingOffsets="earliest")
    query.batch()
    storing(log).store(Checkpoint.from_json(query.committed, RABBITMQ))
    assert log.stored == [("tools", {"0": digits(4), "1": digits(2)})]


def test_what_storing_writes_into_the_stream_is_not_stored_again() -> None:
    log = filled(5)
    run = Storing(log)
    run.batch()
    for _ in range(3):
        log.partitions["0"].append(1)
        sizes = []
        while (size := run.batch()) >= 0:
            sizes.append(size)
            assert len(sizes) < 20, "batches follow each other for ever"
        assert sum(sizes) == 1
        assert log.stored[-1][1]["0"] >= run.query.rows[-2][1], "only the last batch may be missing: Spark tells late"


def test_two_queries_that_store_do_not_keep_each_other_busy() -> None:
    log = filled(5)
    runs = [Storing(log), Storing(log)]
    for _ in range(3):
        log.partitions["0"].append(1)
        rounds = 0
        while max([run.batch() for run in runs]) >= 0:
            rounds += 1
            assert rounds < 20
    assert all(len(run.query.rows) == 8 for run in runs)


def test_a_large_advance_is_stored_without_looking_at_it() -> None:
    log = filled(500)
    stored = storing(log)
    stored.store(end_of(p0=0))
    fetched = log.fetched
    stored.store(end_of(p0=FEW_OFFSETS + 1))
    assert log.fetched == fetched
    assert [at["0"] for _, at in log.stored] == [digits(0), digits(FEW_OFFSETS + 1)]


def test_an_unchanged_position_is_not_stored_again_and_one_that_went_back_is() -> None:
    log = filled(9)
    stored = storing(log)
    for last in (5, 5, 2):
        stored.store(end_of(p0=last))
    assert [at["0"] for _, at in log.stored] == [digits(5), digits(2)]


def test_failures_are_logged_once_and_the_next_position_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    log = filled(9)
    stored = storing(log)
    log.broken = 2
    with caplog.at_level(logging.WARNING):
        for last in (1, 2, 3):
            stored.store(end_of(p0=last))
    assert log.stored == [("tools", {"0": digits(3)})]
    assert [r.getMessage() for r in caplog.records] == [
        "rabbitmq-stream stream 'orders': positions could not be stored: h:5552 closed the connection"
    ]
    assert log.connected == 3, "a new connection after each failure"


@pytest.mark.parametrize("wanted", [True, False])
def test_the_reader_stores_what_spark_commits_if_it_is_asked_to(wanted: bool) -> None:
    log = filled(5)
    rows: Any = spark_schema(FULL_MESSAGE_SCHEMA)
    store = log.connect_store if wanted else None
    stream = StreamReader(OPTIONS, rows, FULL_MESSAGE_SCHEMA, LogSource(log.connect, store))
    stream.commit(
        {"version": 2, "format": "rabbitmq-stream", "stream": "orders", "partitions": {"0": {"after": digits(3)}}}
    )
    stream.stop()
    assert log.stored == ([("tools", {"0": digits(3)})] if wanted else [])


def test_positions_are_stored_at_the_nodes_that_the_query_was_told_of() -> None:
    log = filled(5)
    log.advertised = (("b", 1),)
    stream = StreamReader(
        OPTIONS, spark_schema(FULL_MESSAGE_SCHEMA), FULL_MESSAGE_SCHEMA, LogSource(log.connect, log.connect_store)
    )
    start: Any = stream.initialOffset()
    stream.commit(start)
    stream.stop()
    assert log.reached_by == [(), log.advertised]
