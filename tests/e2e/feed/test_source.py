"""The source in Spark: feeds of the embedded log's door, in all three dialects, and a server of the PyPI package."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.wire.columns import encode_columns

pytestmark = pytest.mark.spark

WAIT_S = 120
Rows = dict[str, list[int]]
"""Partition to the numbers of its events, in the order of the rows."""


class Feeds:
    """A served log."""

    def __init__(self, folder: Path, dialect: str) -> None:
        self.dialect = dialect
        self.log = ReferenceLog(folder).__enter__()
        config = FeedConfig(port=0, page_size=500, dialect="v2b" if dialect == "v2b" else "v2a")
        self.server = ServerThread(self.log, feed=config)
        self.server.start()

    def close(self) -> None:
        self.server.stop()
        self.log.close()

    def create(self, partitions: int = 3, name: str = "orders") -> None:
        self.log.create_stream(name, partitions)

    def append(self, partition: int, start: int, stop: int, name: str = "orders") -> None:
        """Append ``{"n": start, ...}`` and so on to a partition."""
        events = [b'{"n": %d, "at": %d, "who": {"id": "k%d"}}' % (n, n * 1_000, n % 7) for n in range(start, stop)]
        batch = encode_columns({"value": pa.array(events, pa.binary())})
        self.server.call(lambda: self.log.stream(name).partitions[str(partition)].append(batch))

    def options(self, **more: str) -> dict[str, str]:
        given = {"url": f"{self.server.feed_url}/orders", "requestTimeout": "20000", "pollInterval": "50"}
        if self.dialect == "v1":
            given |= {"dialect": "v1", "partitions": "3"}
        return given | more


@pytest.fixture(params=["v1", "v2a", "v2b"])
def feeds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Feeds]:
    made = Feeds(tmp_path / "log", request.param)
    yield made
    made.close()


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feeds]:
    made = Feeds(tmp_path / "log", "v2a")
    yield made
    made.close()


def batch(spark: SparkSession, feeds: Feeds, **more: str) -> DataFrame:
    return spark.read.format("feedapi").options(**feeds.options(**more)).load()


def numbers(frame: DataFrame) -> Rows:
    """Return what a frame of the source has."""
    out: Rows = {}
    for row in frame.select("partition", "value").collect():
        out.setdefault(row.partition, []).append(json.loads(bytes(row.value))["n"])
    return out


class Query:
    """A streaming query over its lives, which keeps what each of its micro-batches held."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.checkpoint = spark, folder / "checkpoint"
        self.batches: dict[int, list[tuple[str, int]]] = {}
        self.running: Any = None

    def take(self, frame: DataFrame, number: int) -> None:
        found = [(r.partition, json.loads(bytes(r.value))["n"]) for r in frame.select("partition", "value").collect()]
        assert self.batches.setdefault(number, found) == found, "a micro-batch that is run again has the same rows"

    def start(self, options: dict[str, str], **trigger: Any) -> None:
        frame = self.spark.readStream.format("feedapi").options(**options).load()
        writer = frame.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        self.running = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def drain(self, options: dict[str, str]) -> None:
        self.start(options, availableNow=True)
        assert self.running.awaitTermination(WAIT_S), self.running.lastProgress

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while sum(map(len, self.batches.values())) < count:
            if self.running.exception() is not None:
                raise self.running.exception()
            assert time.monotonic() < deadline, self.running.lastProgress
            time.sleep(0.05)

    @property
    def rows(self) -> Rows:
        out: Rows = {}
        for number in sorted(self.batches):
            for partition, n in self.batches[number]:
                out.setdefault(partition, []).append(n)
        return out


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path, rate_limits: bool) -> Iterator[Query]:
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    made = Query(spark, tmp_path)
    yield made
    if made.running is not None:
        made.running.stop()


class TestBatch:
    def test_reads_all_there_is(self, spark: SparkSession, feeds: Feeds) -> None:
        feeds.create()
        for start in range(0, 30_000, 3_000):
            feeds.append(0, start, start + 3_000)
        feeds.append(1, 50_000, 50_700)
        assert numbers(batch(spark, feeds)) == {"0": list(range(30_000)), "1": list(range(50_000, 50_700))}
        assert batch(spark, feeds).count() == 30_700

    def test_rows(self, spark: SparkSession, feeds: Feeds) -> None:
        feeds.create()
        feeds.append(1, 5, 6)
        frame = batch(spark, feeds, keyField="/who/id", timestampField="/at")
        (row,) = frame.collect()
        assert bytes(row.value) == b'{"n": 5, "at": 5000, "who": {"id": "k5"}}'
        assert (row.key, row.stream, row.partition) == ("k5", "orders", "1")
        assert row.offset and frame.selectExpr("unix_millis(timestamp)").head()[0] == 5_000

    def test_from_cursor_to_cursor(self, spark: SparkSession, feeds: Feeds) -> None:
        feeds.create()
        feeds.append(0, 0, 2_000)
        seen = batch(spark, feeds).select("offset", "value").collect()
        cursors = list(dict.fromkeys(row.offset for row in seen))
        assert len(cursors) >= 3
        chosen = {"startingOffsets": {"0": cursors[0]}, "endingOffsets": {"0": cursors[2]}}
        for each in chosen.values():
            each |= {"1": "latest", "2": "latest"}
        given = {name: json.dumps(each).replace('"latest"', '"latest"') for name, each in chosen.items()}
        given["startingOffsets"] = given["startingOffsets"].replace('"latest"', '"earliest"')
        expected = [json.loads(bytes(r.value))["n"] for r in seen if r.offset in cursors[1:3]]
        assert numbers(batch(spark, feeds, **given)) == {"0": expected}

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
    def test_is_refused(self, spark: SparkSession, feed: Feeds, more: dict[str, str], message: str) -> None:
        feed.create()
        with pytest.raises(PySparkException, match=message):
            batch(spark, feed, **more).collect()

    def test_of_a_feed_that_is_not_there(self, spark: SparkSession, feed: Feeds) -> None:
        with pytest.raises(PySparkException, match=r"status 404") as caught:
            batch(spark, feed, url=f"{feed.server.feed_url}/nosuch?key=geheim").collect()
        assert "geheim" not in str(caught.value)


class TestStream:
    def test_restart_from_the_checkpoint(self, feeds: Feeds, query: Query, tmp_path: Path) -> None:
        feeds.create()
        feeds.append(0, 0, 2_000)
        feeds.append(1, 0, 1_000)
        options = feeds.options(
            startingOffsets="earliest", maxOffsetsPerTrigger="600", spoolLocation=str(tmp_path / "spool")
        )
        query.start(options)
        query.wait(1_200)
        query.running.stop()
        feeds.append(2, 0, 500)
        query.drain(options)
        assert query.rows == {"0": list(range(2_000)), "1": list(range(1_000)), "2": list(range(500))}
        assert max(map(len, query.batches.values())) <= 600
        feeds.append(0, 2_000, 2_010)
        query.drain(options)
        assert query.rows["0"] == list(range(2_010))

    def test_latest_and_what_comes_while_it_runs(self, feeds: Feeds, query: Query) -> None:
        feeds.create()
        feeds.append(0, 0, 100)
        query.start(feeds.options())
        deadline = time.monotonic() + WAIT_S
        while not list((query.checkpoint / "offsets").glob("[0-9]*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        feeds.append(0, 100, 150)
        feeds.append(2, 0, 50)
        query.wait(100)
        assert query.rows == {"0": list(range(100, 150)), "2": list(range(50))}

    def test_without_columns(self, spark: SparkSession, feed: Feeds, query: Query) -> None:
        feed.create()
        feed.append(0, 0, 1_000)
        frame = spark.readStream.format("feedapi").options(**feed.options(startingOffsets="earliest")).load()
        counted = frame.groupBy("partition").count().writeStream.format("memory").queryName("counted")
        running = counted.outputMode("complete").trigger(availableNow=True).start()
        assert running.awaitTermination(WAIT_S)
        assert [tuple(row) for row in spark.table("counted").collect()] == [("0", 1_000)]

    @pytest.mark.parametrize("history", [False, True])
    def test_splits(self, feed: Feeds, query: Query, tmp_path: Path, history: bool) -> None:
        feed.create(1)
        feed.append(0, 0, 1_000)
        options = feed.options(startingOffsets="earliest", spoolLocation=str(tmp_path / "spool"))
        query.start(options)
        query.wait(1_000)
        feed.server.call(lambda: feed.log.split_partition("orders", "0", into=2, history=history))
        children = sorted(int(p) for p in feed.log.stream("orders").partitions if p != "0")
        feed.append(children[0], 1_000, 1_100)
        feed.append(children[1], 1_100, 1_150)
        query.wait(1_150)
        query.running.stop()
        query.drain(options)
        rows = query.rows
        assert rows["0"] == list(range(1_000))
        assert rows[str(children[0])] == list(range(1_000, 1_100))
        assert rows[str(children[1])] == list(range(1_100, 1_150))

    def test_c13_other_filters_after_a_restart(self, feed: Feeds, query: Query) -> None:
        feed.create()
        feed.append(0, 0, 10)
        options = feed.options(startingOffsets="earliest")
        query.drain(options)
        query.start(options | {"filter-key": "k"})
        with pytest.raises(PySparkException, match="filter-key"):
            query.running.awaitTermination(WAIT_S)

    def test_a_fault_of_the_feed_fails_the_query(self, feed: Feeds, query: Query) -> None:
        feed.create()
        feed.append(0, 0, 10)
        query.start(feed.options(startingOffsets="earliest"))
        query.wait(10)
        feed.server.call(lambda: feed.log.delete_stream("orders"))
        with pytest.raises(PySparkException, match="status 404"):
            query.running.awaitTermination(WAIT_S)


class ZeroEventHub:
    """A server made of the parts of the PyPI package ``zeroeventhub``, whose pages end anywhere."""

    def __init__(self, events: list[list[dict[str, Any]]]) -> None:
        fastapi = pytest.importorskip("fastapi")
        uvicorn = pytest.importorskip("uvicorn")
        zeroeventhub = pytest.importorskip("zeroeventhub")

        class Reader:
            def get_data(self, cursors: Any, headers: Any, page_size: int | None) -> Iterator[dict[str, Any]]:
                (cursor,) = cursors
                mine = events[cursor.partition_id]
                places = {"_first": 0, "_last": len(mine)}
                at = places[cursor.cursor] if cursor.cursor in places else int(cursor.cursor, 16)
                end = min(len(mine), at + (page_size or 777))
                for n in range(at, end):
                    yield {"partition": cursor.partition_id, "headers": {}, "data": mine[n]}
                    if n % 100 == 99:
                        yield {"partition": cursor.partition_id, "cursor": f"{n + 1:x}"}
                yield {"partition": cursor.partition_id, "cursor": f"{end:x}"}

        app = fastapi.FastAPI()
        handler = zeroeventhub.ZeroEventHubFastApiHandler(Reader(), len(events))

        def feed(request: Any) -> Any:
            return handler.handle(request)

        feed.__annotations__["request"] = fastapi.Request
        app.get("/feed/v1")(feed)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/feed/v1"
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)

    def __enter__(self) -> ZeroEventHub:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(20)


def test_servers_of_the_zeroeventhub_package(spark: SparkSession, query: Query, tmp_path: Path) -> None:
    """Tens of thousands of events, four partitions; batch, stream, and a restart."""
    counts = [12_000, 9_000, 1, 8_500]
    events: list[list[dict[str, Any]]] = [[{"n": n, "text": f"ä{n}\u2028"} for n in range(count)] for count in counts]
    expected = {str(p): list(range(count)) for p, count in enumerate(counts)}
    with ZeroEventHub(events) as server:
        options = {"url": server.url, "stream": "hub", "partitions": "4", "requestTimeout": "20000"}
        frame = spark.read.format("feedapi").options(**options).load()
        assert numbers(frame) == expected
        assert {row.stream for row in frame.select("stream").distinct().collect()} == {"hub"}
        text = frame.selectExpr("get_json_object(cast(value AS STRING), '$.text') AS t").where("t = 'ä7\u2028'")
        assert text.count() == 3
        streaming = options | {"startingOffsets": "earliest", "spoolLocation": str(tmp_path / "spool")}
        streaming |= {"maxOffsetsPerTrigger": "4000", "minPartitions": "4"}
        query.start(streaming)
        query.wait(9_000)
        query.running.stop()
        query.drain(streaming)
        assert {p: sorted(ns) for p, ns in query.rows.items()} == expected
        assert max(map(len, query.batches.values())) <= 4_000
        events[2] += [{"n": n} for n in range(1, 50)]
        query.drain(streaming)
        assert sorted(query.rows["2"]) == list(range(50))
        with pytest.raises(PySparkException, match=r"partitions.*version 1"):
            spark.read.format("feedapi").option("url", server.url).load().collect()
        with pytest.raises(PySparkException, match="Partition count doesn't match"):
            spark.read.format("feedapi").options(**options | {"partitions": "3"}).load().collect()
