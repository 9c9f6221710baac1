"""The sink in Spark: what is written is read back by our source, and by the PyPI client of the protocol's version 1.

A log in a folder that nobody serves, and a door that asks for tokens, are made in this process.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import requests
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.testing import LogStream, StreamFactory
from tests.server.foreign_programs import Driver

pytestmark = pytest.mark.spark

WAIT_S = 120
DDL = "value BINARY, key STRING, stream STRING, partition STRING, offset STRING, timestamp TIMESTAMP"


class Feed:
    """What Spark does with a feed."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url, self.folder = spark, url, folder

    def write(self, frame: DataFrame, **more: str) -> None:
        frame.write.format("feedapi").options(**{"url": self.url, **more}).mode("append").save()

    def not_written(self, frame: DataFrame, **more: str) -> str:
        with pytest.raises(PySparkException) as caught:
            self.write(frame, **more)
        return str(caught.value)

    def read(self) -> list[Any]:
        rows: list[Any] = self.spark.read.format("feedapi").option("url", self.url).load().collect()
        return rows

    def events(self) -> list[Any]:
        return [json.loads(bytes(row.value)) for row in self.read()]

    def load(self) -> DataFrame:
        """A streaming read."""
        given = {"url": self.url, "startingOffsets": "earliest", "spoolLocation": str(self.folder / "spool")}
        return self.spark.readStream.format("feedapi").options(**given).load()

    def copy(self, frame: DataFrame) -> None:
        """Write a stream to the feed until there is no more of it."""
        checkpoint = str(self.folder / "checkpoint")
        writer = frame.writeStream.format("feedapi").options(url=self.url, checkpointLocation=checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WAIT_S), query.lastProgress
        finally:
            query.stop()


@pytest.fixture
def create(spark: SparkSession, reference_log: StreamFactory, tmp_path: Path) -> Callable[..., Feed]:
    """A function that makes feeds of the log."""

    def made(partitions: int = 1, name: str = "orders") -> Feed:
        return Feed(spark, url_of(reference_log.create(name, partitions)), tmp_path)

    return made


def url_of(stream: LogStream) -> str:
    return stream.options("feedapi")["url"]


# --- rows and events


def test_rows_read_back_equal_the_rows_written(create: Callable[..., Feed], spark: SparkSession) -> None:
    feed = create(1)
    written = [
        (b'{"a" : 1.50}', "k", None, None, None, None),
        (b"text", "\u043a\u043b\u044e\u0447", "elsewhere", "9", "99", None),
        (b"\x00\xff\xfe", None, None, None, None, datetime(2024, 2, 29, tzinfo=timezone.utc)),
        (b"", "", None, None, None, None),
        (b"x" * 6_000_000, None, None, None, None, None),
    ]
    feed.write(spark.createDataFrame(written, DDL).coalesce(1))
    read = feed.read()
    assert [bytes(row.value) for row in read] == [row[0] for row in written]
    assert [row.key for row in read] == ["k", "\u043a\u043b\u044e\u0447", None, "", None]
    assert {(row.stream, row.partition, row.timestamp) for row in read} == {(feed.url.rpartition("/")[2], "0", None)}


def test_a_frame_without_value_is_published_as_objects(create: Callable[..., Feed], spark: SparkSession) -> None:
    feed = create(2)
    frame = spark.range(0, 3_000, 1, 2).selectExpr(
        "id", "concat('c', id % 7) AS key", "if(id % 2 = 0, 'say \"hi\"\\n', null) AS note", "id / 4 AS quarter",
        "cast(id AS FLOAT) AS f", "cast('NaN' AS DOUBLE) AS n", "cast(id AS DECIMAL(12,2)) AS price",
        "id % 3 = 0 AS third",
        "timestamp_micros(id * 1000003) AS at", "timestamp_ntz'2024-02-29 12:00:00.5' AS local",
        "date_add(date'2024-02-29', cast(id AS INT)) AS day", "cast(concat('b', id) AS BINARY) AS raw",
        "struct(id AS x, cast(null AS STRING) AS y) AS s", "array(struct(id AS x), null) AS l",
        "map('k', id, 'none', null) AS m", "null AS nothing",
    )  # fmt: skip
    feed.write(frame)
    found = sorted(feed.events(), key=lambda event: event["id"])
    epoch = datetime(1970, 1, 1)
    for n, event in enumerate(found):
        at = epoch + timedelta(microseconds=n * 1_000_003)
        expected = {
            "id": n, "quarter": n / 4, "f": float(n), "n": "NaN", "price": float(Decimal(n)), "third": n % 3 == 0,
            "local": "2024-02-29T12:00:00.500", "day": (date(2024, 2, 29) + timedelta(n)).isoformat(),
            "raw": base64.b64encode(f"b{n}".encode()).decode(), "s": {"x": n}, "l": [{"x": n}, None],
            "m": {"k": n, "none": None}, **({} if n % 2 else {"note": 'say "hi"\n'}),
        }  # fmt: skip
        assert datetime.fromisoformat(event.pop("at").removesuffix("Z")) == at
        assert event == expected
    assert len(found) == 3_000
    assert math.isclose(found[2]["price"], 2.0)
    keys = {row.key: row.partition for row in feed.read()}
    assert set(keys) == {f"c{n}" for n in range(7)} and set(keys.values()) == {"0", "1"}


def test_objects_are_those_of_to_json(create: Callable[..., Feed], spark: SparkSession) -> None:
    feed = create(1)
    frame = spark.range(0, 200, 1, 1).selectExpr(
        "id", "if(id % 3 = 0, null, concat('\u00e9\"\\\\/', chr(id % 128))) AS text", "id / 8 AS d",
        "cast(null AS INT) AS i",
        "array(id, null) AS l", "map('a', id, 'b', null) AS m", "struct(null AS x, id AS y) AS s",
        "date'2024-02-29' AS day",
        "timestamp'2024-02-29 12:00:00.123Z' AS at", "cast(id AS DECIMAL(10,1)) AS dec", "id = 1 AS b",
        "X'ff00' AS raw",
        # Years that Arrow has no text for, and years before 0.
        "timestamp_millis(1700000000000123 * if(id % 2 = 0, 1, -1) + id * 1000) AS far",
        "timestamp_ntz'+40000-01-01 00:00:00.500' AS far_local",
        "date_add(date'+40000-01-01', cast(id AS INT)) AS far_day",
        "date'-0044-03-15' AS early", "array(date'+40000-01-01', null) AS days",
        "map('a', timestamp_ntz'-9999-01-01 00:00:00.001', 'b', null) AS times",
        "struct(date'-12000-12-31' AS x, timestamp'+294247-01-10 04:00:54.775Z' AS y) AS both",
    )  # fmt: skip
    feed.write(frame)
    theirs = [json.loads(row.t) for row in frame.select(F.to_json(F.struct("*")).alias("t")).collect()]
    assert feed.events() == theirs
    read = spark.read.format("feedapi").options(url=feed.url, timestampField="/far").load()
    as_spark_casts = "unix_micros(CAST(get_json_object(CAST(value AS STRING), '$.far') AS TIMESTAMP)) AS theirs"
    found = [tuple(row) for row in read.selectExpr("unix_micros(timestamp) AS ours", as_spark_casts).collect()]
    written = frame.selectExpr("unix_micros(far) AS far").collect()
    assert found == [(row.far, row.far) for row in written]


def test_the_pypi_client_of_version_1_reads_what_is_written(
    create: Callable[..., Feed], spark: SparkSession, zeroeventhub: Driver
) -> None:
    feed = create(2)
    feed.write(spark.range(0, 4_000, 1, 4).selectExpr("id AS n", "concat('c', id % 50) AS key", "'\u2028 \u00e9' AS t"))
    found = dict(enumerate(zeroeventhub.ask("read", url=feed.url, partitions=2, page_size=1_000)))
    assert sorted(event["n"] for events in found.values() for event in events) == list(range(4_000))
    assert all(event["t"] == "\u2028 \u00e9" for events in found.values() for event in events)
    customers = [{event["n"] % 50 for event in events} for events in found.values()]
    assert not customers[0] & customers[1], "a key has one partition"
    in_order: dict[tuple[int, int], int] = {}
    for events in found.values():
        for event in events:  # of one task, which has 1,000 consecutive rows
            of_task = (event["n"] // 1_000, event["n"] % 50)
            assert in_order.get(of_task, -1) < event["n"]
            in_order[of_task] = event["n"]


def test_keys_out_of_the_event(create: Callable[..., Feed], spark: SparkSession) -> None:
    feed = create(2)
    frame = spark.range(0, 40, 1, 1).selectExpr("id", "struct(concat('c', id % 4) AS `a/b`) AS customer")
    feed.write(frame, keyField="/customer/a~1b")
    assert {row.key for row in feed.read()} == {"c0", "c1", "c2", "c3"}
    assert sorted(event["id"] for event in feed.events()) == list(range(40))
    message = feed.not_written(frame.withColumn("key", F.lit("x")), keyField="/id")
    assert "OptionError" in message and "cannot be used together with a column 'key'" in message
    texts = create(2, "texts")
    texts.write(frame.selectExpr("to_json(struct(id)) AS value"), keyField="/id")
    assert {row.key for row in texts.read()} == {str(n) for n in range(40)}


def test_a_data_directory_is_written_to_and_served_afterwards(spark: SparkSession, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 2)
    frame = spark.range(0, 1_000, 1, 4).selectExpr("id", "cast(id AS STRING) AS key")
    options = {"url": (tmp_path / "log").as_uri(), "stream": "orders"}
    frame.write.format("feedapi").options(**options).mode("append").save()
    frame.write.format("feedapi").options(**{**options, "url": str(tmp_path / "log")}).mode("append").save()
    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, feed=FeedConfig(port=0)) as server:
        feed = Feed(spark, f"{server.feed_url}/orders", tmp_path)
        assert sorted(event["id"] for event in feed.events()) == sorted([*range(1_000), *range(1_000)])
        message = feed.not_written(frame, **{**options, "requestTimeout": "100"})
    assert "LogLocked" in message and "give the feed's http address in option 'url'" in message


# --- streams


def uncommit(checkpoint: Path) -> None:
    """Make Spark run the first micro-batch again, as if the driver had died before it noted its end."""
    (checkpoint / "commits" / "0").unlink()
    for checksum in (checkpoint / "commits").glob(".0*.crc"):
        checksum.unlink()


@pytest.mark.nightly  # three copies; by day the kill test writes a micro-batch again
@pytest.mark.usefixtures("streams_of_feeds")
def test_a_micro_batch_that_is_written_again_adds_nothing(create: Callable[..., Feed], spark: SparkSession) -> None:
    feed, copies = create(3), create(2, "copies")
    feed.write(spark.range(0, 500, 1, 2).selectExpr("id AS n", "concat('k', id % 9) AS key"))
    frame = feed.load()
    copies.copy(frame)
    assert len(copies.read()) == 500
    uncommit(feed.folder / "checkpoint")
    feed.write(spark.range(500, 600, 1, 2).selectExpr("id AS n", "concat('k', id % 9) AS key"))
    copies.copy(frame)
    assert sorted(event["n"] for event in copies.events()) == list(range(600)), "the first 500 are there once"
    shutil.rmtree(feed.folder / "checkpoint")
    copies.copy(frame)
    assert len(copies.read()) == 1_200, "another checkpoint is another query"


@pytest.mark.usefixtures("streams_of_feeds")
def test_rows_that_differ_when_a_micro_batch_is_written_again(create: Callable[..., Feed], spark: SparkSession) -> None:
    feed, copies = create(), create(2, "copies")
    feed.write(spark.range(0, 50, 1, 1).selectExpr("id AS n"))
    frame = feed.load()
    copies.copy(frame)
    uncommit(feed.folder / "checkpoint")
    with pytest.raises(
        PySparkException, match=r"rows-differ.*an earlier attempt at micro-batch 0 has written other rows"
    ):
        copies.copy(frame.withColumn("key", F.lit("other")))
    assert len(copies.read()) == 50


# --- faults


MORE_FAULTS = [
    ({"url": ""}, "SELECT 'a' AS value", ["OptionError", "names no feed"]),
    ({"url": "/orders", "filter-key": "k"}, "SELECT 'a' AS value", ["OptionError", "filter-key", "reading"]),
    ({"url": "/orders"}, "SELECT 1 AS key, 2 AS n", ["SchemaError", "column 'key' is INT"]),
    ({"url": "/orders"}, "SELECT 'a' AS key", ["SchemaError", "no column to publish"]),
    ({"url": "/orders"}, "SELECT INTERVAL 1 DAY AS i", ["SchemaError", "column 'i' is INTERVAL DAY", "STRING"]),
]  # fmt: skip
"""That options and schemas are refused is proved without Spark, too (tests/options, tests/spark)."""


@pytest.mark.parametrize(
    ("given", "frame", "words"),
    [
        ({"url": "/no-such"}, "SELECT 'a' AS value", ["NotFound", "status 404", "no feed 'no-such'"]),
        ({"url": "/orders", "token": "wrong-guess"}, "SELECT 'a' AS value", ["AuthenticationFailed", "status 401"]),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in MORE_FAULTS),
    ],
)  # fmt: skip
def test_faults_are_told_before_any_task_starts(
    spark: SparkSession, tmp_path: Path, given: dict[str, str], frame: str, words: list[str]
) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 1)
        with ServerThread(log, feed=FeedConfig(port=0, tokens=("secret",))) as server:
            options = {"token": "secret", **given, "url": server.feed_url + given["url"]}
            message = Feed(spark, options["url"], tmp_path).not_written(spark.sql(frame), **options)
    assert all(word in message for word in words), message
    assert "Failed to initialize Python data source writer" in message, "it failed on the driver"
    assert "wrong-guess" not in message


def test_null_is_null_on_the_way_there_and_back(create: Callable[..., Feed], spark: SparkSession) -> None:
    """As an event and as a cell, told from the text null and from an empty one, by every filter."""
    feed = create(1)
    rows = [(None, "a"), ("null", "b"), ("", "c"), ('{"k":null,"t":5}', "d"), ("{}", None)]
    feed.write(spark.createDataFrame(rows, "value STRING, key STRING").coalesce(1))
    lines = [
        json.loads(line)
        for line in requests.get(f"{feed.url}?partition=0&cursor=_first", timeout=WAIT_S).text.splitlines()
    ]
    assert [line["event"] for line in lines[:-1]] == [None, "null", "", {"k": None, "t": 5}, {}]

    def values(where: str = "true", **options: str) -> list[Any]:
        read = spark.read.format("feedapi").options(url=feed.url, **options).schema("value STRING, key STRING").load()
        return [(row.value, row.key) for row in read.where(where).collect()]

    assert values() == rows
    assert values("value IS NULL") == values("value IS NULL", pushdown="true") == rows[:1]
    assert values(filter="body_size IS NULL") == rows[:1]
    assert values(filter="body_size = 0") == [("", "c")]
    assert values(filter="body_size IS NOT NULL") == rows[1:]
    assert values(filter="key = 'a' OR t = 5") == [rows[0], rows[3]]
    assert values(filter="t = 5") == rows[3:4], "pushed as filter-/t"
    assert [key for _, key in values(keyField="/t")] == [None, None, None, "5", None]
    timed = spark.read.format("feedapi").options(url=feed.url, timestampField="/t").load()
    assert [row.ms for row in timed.selectExpr("unix_millis(timestamp) AS ms").collect()] == [None, None, None, 5, None]
    again = create(1, "again")
    again.copy(feed.load().selectExpr("value", "key"))
    assert [(None if row.value is None else bytes(row.value).decode(), row.key) for row in again.read()] == rows
