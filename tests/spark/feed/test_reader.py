"""The readers that Spark gets: what goes to the tasks, and a Spark that is too old for streams."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import pytest

from spark_streams.client.feed import Dialect
from spark_streams.errors import OptionError
from spark_streams.options.feedapi import parse_source
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.feed import reader as readers
from spark_streams.spark.feed.reader import FeedSource
from spark_streams.spark.feed.tasks import address_of
from spark_streams.spark.schemas import spark_schema
from spark_streams.spark.source.reader import StreamReader, batch_reader
from tests.client.feed.scripted import BadFeed, Part, Reply, numbered
from tests.spark.feed.batches import Life, options_of

SCHEMA = spark_schema(COMMON_SCHEMA)


def test_streams_are_refused_before_spark_4_2_and_batches_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "HAS_ADMISSION_CONTROL", False)
    with BadFeed({0: Part(numbered(0, 10))}) as feed:
        given = {"url": f"{feed.url}/orders"}
        with pytest.raises(OptionError, match=r"Spark 4\.2 or later.*spark\.read"):
            StreamReader(parse_source(given, streaming=True), SCHEMA, COMMON_SCHEMA, FeedSource())
        reader = batch_reader(parse_source(given, streaming=False), SCHEMA, COMMON_SCHEMA, FeedSource())
        there = pickle.loads(pickle.dumps(reader))
        rows = [batch for task in pickle.loads(pickle.dumps(reader.partitions())) for batch in there.read(task)]
        assert [value for batch in rows for value in batch.column("value").to_pylist()] == numbered(0, 10)


@pytest.mark.skipif(not readers.HAS_ADMISSION_CONTROL, reason="streams of feeds need Spark 4.2")
def test_what_goes_to_the_tasks_of_a_stream_only_reads() -> None:
    with BadFeed({0: Part(numbered(0, 10))}) as feed:
        given = {"url": f"{feed.url}/orders", "startingOffsets": "earliest", "token": "geheim"}
        reader = StreamReader(parse_source(given, streaming=True), SCHEMA, COMMON_SCHEMA, FeedSource())
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        sent = pickle.dumps((reader, reader.partitions(start, end)))
        assert b"geheim" not in sent
        there, tasks = pickle.loads(sent)
        assert sum(batch.num_rows for task in tasks for batch in there.read(task)) == 10
        deadline = time.monotonic() + 240
        while (progress := reader.reportLatestOffset() or {})["lag"] != {"0": 0}:  # the next response shows the end
            assert progress["lag"] == {"0": None} and time.monotonic() < deadline, progress
            time.sleep(0.01)
        reader.stop()


def test_a_poll_without_events_does_not_make_the_lag_unknown() -> None:
    """While its response goes on, after a checkpoint that says nothing new."""
    begun, go_on = threading.Event(), threading.Event()
    with BadFeed({0: Part(numbered(0, 10))}) as feed, Life(feed.url) as life:

        def held() -> Iterator[bytes]:
            yield feed.checkpoint(0, 10)
            begun.set()
            go_on.wait(120)
            yield feed.checkpoint(0, 10)

        assert len(life.until(10)) == 10
        fetcher = life.batches._fetchers.each[0]
        deadline = time.monotonic() + 240
        while not fetcher.idle:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        feed.faults = [Reply(held(), chunked=True)]
        assert begun.wait(120)
        seen = []
        for _ in range(30):
            seen.append(fetcher.idle)
            time.sleep(0.01)
        go_on.set()
    assert all(seen)


def test_sparks_own_placeholder_has_no_rows() -> None:
    from pyspark.sql.datasource import InputPartition

    options = parse_source({"url": "http://127.0.0.1:1/x"}, streaming=False)
    reader = batch_reader(options, SCHEMA, COMMON_SCHEMA, FeedSource())
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize("dialect", ["v1", "v2a", "v2b"])
def test_a_client_speaks_the_dialect_that_the_user_said(dialect: str) -> None:
    more = {"partitions": "2"} if dialect == "v1" else {}
    options = options_of("http://h/x", dialect=dialect, **more)
    assert address_of(options).dialect is Dialect(dialect)
    assert address_of(options, Dialect.V2A).dialect is Dialect.V2A


def test_a_client_finds_out_the_dialect_unless_it_is_known() -> None:
    assert address_of(options_of("http://h/x")).dialect is None
    assert address_of(options_of("http://h/x"), Dialect.V2B).dialect is Dialect.V2B
