"""The source in Spark: feeds of the reference log in all three dialects, and a server of the PyPI package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from spark_streams.sources.feedapi import FeedDataSource

from spark_streams.errors import SparkStreamsError
from spark_streams.testing import KeptQuery
from tests.e2e.feed.conftest import WAIT_S, Feed, Feeds, in_dialects, load
from tests.server.foreign_programs import Driver

pytestmark = pytest.mark.spark

Rows = dict[str, list[int]]
"""Partition to the numbers of its events, in the order of the rows."""


@pytest.fixture
def feed(reference_log: Any) -> Feed:
    """A feed of three partitions, read in version 2a."""
    return Feed(reference_log.create("orders", 3), "v2a")


def append(feed: Feed, partition: int, start: int, stop: int) -> None:
    """Append ``{"n": start, ...}`` and so on to a partition."""
    events = ({"n": n, "at": n * 1_000, "who": {"id": f"k{n % 7}"}} for n in range(start, stop))
    feed.stream.produce({"value": json.dumps(event), "partition": str(partition)} for event in events)


def batch(spark: SparkSession, feed: Feed, **more: str) -> DataFrame:
    return spark.read.format("feedapi").options(**feed.options(**{"pageSize": "500", **more})).load()


def numbers(found: DataFrame | list[Row]) -> Rows:
    """Partition to the numbers of its events, in their order."""
    out: Rows = {}
    for row in found if isinstance(found, list) else found.select("partition", "value").collect():
        out.setdefault(row.partition, []).append(json.loads(bytes(row.value))["n"])
    return out


class TestBatch:
    def test_reads_all_there_is(self, spark: SparkSession, feeds: Feeds) -> None:
        feed = feeds.create(3)
        append(feed, 0, 0, 3_000)
        append(feed, 1, 50_000, 50_700)
        append(feed, 2, 5, 6)
        frame = batch(spark, feed, keyField="/who/id", timestampField="/at")
        rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
        assert numbers(rows) == {"0": list(range(3_000)), "1": list(range(50_000, 50_700)), "2": [5]}
        (row,) = [row for row in rows if row.partition == "2"]
        assert bytes(row.value) == b'{"n": 5, "at": 5000, "who": {"id": "k5"}}'
        assert (row.key, row.stream, row.ms) == ("k5", feed.stream.name, 5_000)
        assert row.offset
        assert frame.count() == 3_701

    @in_dialects("v2a")
    def test_from_cursor_to_cursor(self, spark: SparkSession, feeds: Feeds) -> None:
        feed = feeds.create(3)
        append(feed, 0, 0, 2_000)
        seen = batch(spark, feed).select("offset", "value").collect()
        cursors = list(dict.fromkeys(row.offset for row in seen))
        assert len(cursors) >= 3
        chosen = {"startingOffsets": {"0": cursors[0]}, "endingOffsets": {"0": cursors[2]}}
        for each in chosen.values():
            each |= {"1": "latest", "2": "latest"}
        given = {name: json.dumps(each).replace('"latest"', '"latest"') for name, each in chosen.items()}
        given["startingOffsets"] = given["startingOffsets"].replace('"latest"', '"earliest"')
        expected = [json.loads(bytes(r.value))["n"] for r in seen if r.offset in cursors[1:3]]
        assert numbers(batch(spark, feed, **given)) == {"0": expected}

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"startingTimestamp": "0"}, "cannot seek by time"),
            ({"spoolLocation": "/x"}, "this is for streams"),
            ({"filter-nosuch": "1"}, "does not offer this filter"),
            ({"dialect": "v2b"}, "but the feed speaks v2a"),
            ({"startingOffsets": '{"0": 5}'}, "is no position in a feed"),
            ({"nosuch": "1"}, "no such option"),
        ],
    )
    def test_is_refused(self, feed: Feed, more: dict[str, str], message: str) -> None:
        """As Spark plans it, without a session; the next test has one."""
        with pytest.raises(SparkStreamsError, match=message):
            source = FeedDataSource({**feed.options(pageSize="500"), **more})
            source.reader(source.schema()).partitions()

    def test_of_a_feed_that_is_not_there(self, spark: SparkSession, feed: Feeds) -> None:
        with pytest.raises(PySparkException, match=r"status 404") as caught:
            batch(spark, feed, url=feed.options()["url"] + "-nosuch?key=geheim").collect()
        assert "geheim" not in str(caught.value)


class TestStream:
    def test_without_columns(self, spark: SparkSession, feed: Feed, query: KeptQuery) -> None:
        append(feed, 0, 0, 1_000)
        frame = spark.readStream.format("feedapi").options(**feed.options(startingOffsets="earliest")).load()
        counted = frame.groupBy("partition").count().writeStream.format("memory").queryName("counted")
        running = counted.outputMode("complete").trigger(availableNow=True).start()
        assert running.awaitTermination(WAIT_S)
        assert [tuple(row) for row in spark.table("counted").collect()] == [("0", 1_000)]

    @pytest.mark.parametrize("history", [pytest.param(False, marks=pytest.mark.nightly), True])
    def test_splits(
        self, spark: SparkSession, reference_log: Any, query: KeptQuery, tmp_path: Path, history: bool
    ) -> None:
        feed = Feed(reference_log.create("orders"), "v2a")
        append(feed, 0, 0, 1_000)
        frame = load(spark, feed.options(startingOffsets="earliest", spoolLocation=str(tmp_path / "spool")))
        query.start(frame)
        query.wait_for_rows(1_000)
        first, second = feed.stream.split("0", history=history)
        append(feed, int(first), 1_000, 1_100)
        append(feed, int(second), 1_100, 1_150)
        query.wait_for_rows(1_150)
        query.stop()
        query.drain(frame)
        rows = numbers(query.rows)
        assert rows["0"] == list(range(1_000))
        assert rows[first] == list(range(1_000, 1_100))
        assert rows[second] == list(range(1_100, 1_150))

    @pytest.mark.nightly
    def test_c13_other_filters_after_a_restart(self, spark: SparkSession, feed: Feed, query: KeptQuery) -> None:
        append(feed, 0, 0, 10)
        options = feed.options(startingOffsets="earliest")
        query.drain(load(spark, options))
        with pytest.raises(PySparkException, match="filter-key"):
            query.drain(load(spark, options | {"filter-key": "k"}))

    def test_a_fault_of_the_feed_fails_the_query(self, spark: SparkSession, feed: Feed, query: KeptQuery) -> None:
        append(feed, 0, 0, 10)
        query.start(load(spark, feed.options(startingOffsets="earliest")))
        query.wait_for_rows(10)
        feed.stream.delete()
        with pytest.raises(PySparkException, match="status 404"):
            query.running.awaitTermination(WAIT_S)

    def test_a_feed_deleted_and_created_again(self, spark: SparkSession, feed: Feed, query: KeptQuery) -> None:
        append(feed, 0, 0, 10)
        options = feed.options(startingOffsets="earliest")
        query.start(load(spark, options | {"failOnDataLoss": "false"}))
        query.wait_for_rows(10)
        feed.stream.delete()
        feed.stream.create()
        append(feed, 0, 100, 105)
        query.wait_for_rows(15)
        query.stop()
        assert numbers(query.rows)["0"] == [*range(10), *range(100, 105)]
        feed.stream.delete()
        feed.stream.create()
        with pytest.raises(PySparkException, match=r"(?s)PositionLost.*start again.*failOnDataLoss"):
            query.drain(load(spark, options))


@pytest.mark.nightly  # by day version 1 is read from the log
def test_servers_of_the_zeroeventhub_package(
    spark: SparkSession, query: KeptQuery, tmp_path: Path, zeroeventhub: Driver
) -> None:
    """Thousands of events, four partitions; batch, stream, and a restart."""
    counts = [1_200, 900, 1, 850]
    events: list[list[dict[str, Any]]] = [[{"n": n, "text": f"ä{n}\u2028"} for n in range(count)] for count in counts]
    expected = {str(p): list(range(count)) for p, count in enumerate(counts)}
    url = zeroeventhub.ask("serve", events=events)
    options = {"url": url, "stream": "hub", "partitions": "4", "requestTimeout": "120000"}
    frame = spark.read.format("feedapi").options(**options).load()
    assert numbers(frame) == expected
    assert {row.stream for row in frame.select("stream").distinct().collect()} == {"hub"}
    text = frame.selectExpr("get_json_object(cast(value AS STRING), '$.text') AS t").where("t = 'ä7\u2028'")
    assert text.count() == 3
    streaming = options | {"startingOffsets": "earliest", "spoolLocation": str(tmp_path / "spool")}
    streaming |= {"maxOffsetsPerTrigger": "1000", "minPartitions": "4"}
    streamed = load(spark, streaming)
    query.start(streamed)
    query.wait_for_rows(900)
    query.stop()
    query.drain(streamed)
    assert {p: sorted(ns) for p, ns in numbers(query.rows).items()} == expected
    assert max(query.sizes) <= 1_000
    zeroeventhub.ask("add", partition=2, events=[{"n": n} for n in range(1, 50)])
    query.drain(streamed)
    assert sorted(numbers(query.rows)["2"]) == list(range(50))
    with pytest.raises(PySparkException, match=r"partitions.*version 1"):
        spark.read.format("feedapi").option("url", url).load().collect()
    with pytest.raises(PySparkException, match="Partition count doesn't match"):
        spark.read.format("feedapi").options(**options | {"partitions": "3"}).load().collect()
