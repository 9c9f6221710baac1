"""Filters and starting expressions of feeds in Spark, over the embedded log's door: rows, wire bytes, restarts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.wire.columns import encode_columns

pytestmark = pytest.mark.spark

WAIT_S = 120
DIALECTS = ("v1", "v2a", "v2b")
MEMBERS = ("view", "order", "click", "order")


def events(start: int, stop: int) -> list[bytes]:
    """Return events, of which one in a hundred is rare."""
    return [
        json.dumps(
            {"n": n, "type": "rare" if n % 100 == 50 else MEMBERS[n % 4], "at": n * 1000, "pad": "x" * 80}
        ).encode()
        for n in range(start, stop)
    ]


def chosen(start: int, stop: int, kind: str) -> list[int]:
    return [n for n in range(start, stop) if kind == ("rare" if n % 100 == 50 else MEMBERS[n % 4])]


class Counted:
    """A served log behind a proxy that counts the bytes of answers and remembers what was asked."""

    def __init__(self, folder: Path, dialect: str) -> None:
        self.dialect = dialect
        self.log = ReferenceLog(folder).__enter__()
        self.server = ServerThread(self.log, feed=FeedConfig(port=0, dialect="v2b" if dialect == "v2b" else "v2a"))
        self.server.start()
        self.bytes = 0
        self.asked: list[str] = []
        counted, session = self, requests.Session()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answer = session.get(f"{counted.server.feed_url}{self.path}", headers={"Accept-Encoding": "identity"})
                counted.bytes += len(answer.content)
                counted.asked.append(self.path)
                self.send_response(answer.status_code)
                self.send_header("Content-Type", answer.headers["Content-Type"])
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None:
                pass

        self.proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.proxy.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.proxy.shutdown()
        self.proxy.server_close()
        self.server.stop()
        self.log.close()

    def append(self, start: int, stop: int, partition: int = 0) -> None:
        batch = encode_columns({"value": pa.array(events(start, stop), pa.binary())})
        self.server.call(lambda: self.log.stream("orders").partitions[str(partition)].append(batch))

    def options(self, **more: str) -> dict[str, str]:
        # Long responses would not get through the proxy.
        given = {"url": f"http://127.0.0.1:{self.proxy.server_address[1]}/orders", "pollInterval": "50"}
        if self.dialect == "v1":
            given |= {"dialect": "v1", "partitions": "2"}
        return given | more


@pytest.fixture(params=DIALECTS)
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Counted]:
    made = Counted(tmp_path / "log", request.param)
    made.log.create_stream("orders", 2)
    yield made
    made.close()


def numbers(spark: SparkSession, feed: Counted, **more: str) -> list[int]:
    """Return what a batch query reads, in any order."""
    rows = spark.read.format("feedapi").options(**feed.options(**more)).load().select("value").collect()
    return sorted(json.loads(bytes(row.value))["n"] for row in rows)


class TestBatch:
    def test_the_filter_is_pushed_where_the_feed_can(self, spark: SparkSession, feed: Counted) -> None:
        for first in range(0, 20_000, 2_000):
            feed.append(first, first + 2_000, partition=first // 2_000 % 2)
        everything = numbers(spark, feed)
        whole, feed.bytes = feed.bytes, 0
        assert everything == list(range(20_000))
        text = "type = 'rare' AND (n < 5000 OR n >= 15000)"
        wanted = [n for n in chosen(0, 20_000, "rare") if n < 5_000 or n >= 15_000]
        assert numbers(spark, feed, filter=text) == wanted
        if feed.dialect == "v2a":
            assert feed.bytes < whole / 50
            assert any("filter-%2Ftype=rare" in path for path in feed.asked)
        else:
            assert feed.bytes > whole / 2 and not any("filter" in path for path in feed.asked)
        count = spark.read.format("feedapi").options(**feed.options(filter=text)).load().count()
        assert count == len(wanted)
        assert numbers(spark, feed, filter=text, filterFields="none") == wanted

    def test_starts_at_the_first_match(self, spark: SparkSession, feed: Counted) -> None:
        feed.append(0, 500)
        feed.append(500, 900, partition=1)
        wanted = list(range(250, 500)) + list(range(550, 900))
        expression = "type = 'rare' AND n > 200 AND event_time > 200000"
        assert numbers(spark, feed, startingExpression=expression, timestampField="/at") == wanted
        both = [n for n in wanted if n in chosen(0, 900, "order")]
        assert numbers(spark, feed, startingExpression="type = 'rare' AND n > 200", filter="type = 'order'") == both


class Copy:
    """A streaming query over its lives; keeps the numbers of its micro-batches."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.batches: dict[int, list[int]] = {}
        self.running: Any = None

    def take(self, frame: Any, number: int) -> None:
        found = [json.loads(bytes(row.value))["n"] for row in frame.select("value").collect()]
        assert self.batches.setdefault(number, found) == found

    def start(self, options: dict[str, str], **trigger: Any) -> None:
        frame = self.spark.readStream.format("feedapi").options(**options, spoolLocation=str(self.folder / "spool"))
        writer = frame.load().writeStream.foreachBatch(self.take)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        self.running = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def drain(self, options: dict[str, str]) -> None:
        self.start(options, availableNow=True)
        assert self.running.awaitTermination(WAIT_S), self.running.lastProgress

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(self.numbers) < count:
            if self.running.exception() is not None:
                raise self.running.exception()
            assert time.monotonic() < deadline, self.running.lastProgress
            time.sleep(0.05)

    @property
    def numbers(self) -> list[int]:
        return sorted(n for batch in self.batches.values() for n in batch)


@pytest.fixture
def copy(spark: SparkSession, tmp_path: Path, rate_limits: bool) -> Iterator[Copy]:
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    made = Copy(spark, tmp_path)
    yield made
    if made.running is not None:
        made.running.stop()


class TestStream:
    def test_over_restarts(self, spark: SparkSession, feed: Counted, copy: Copy) -> None:
        for first in range(0, 8_000, 2_000):
            feed.append(first, first + 2_000, partition=first // 2_000 % 2)
        options = feed.options(filter="type = 'rare' AND n >= 1000", startingOffsets="earliest")
        wanted = [n for n in chosen(0, 8_000, "rare") if n >= 1_000]
        copy.drain(options | {"maxOffsetsPerTrigger": "1000"})
        assert copy.numbers == wanted and len(copy.batches) >= (1 if feed.dialect == "v2a" else 4)
        if feed.dialect == "v2a":
            assert feed.bytes < 8_000 * 110 / 20
        feed.append(8_000, 9_000)
        copy.start(options)
        copy.wait(len(wanted) + 10)
        feed.append(9_000, 10_000, partition=1)
        copy.wait(len(wanted) + 20)
        copy.running.stop()
        assert copy.numbers == [n for n in chosen(0, 10_000, "rare") if n >= 1_000]
        copy.drain(options)  # a micro-batch that was under way is run again under the filter that is given then
        feed.append(10_000, 10_100)
        if feed.dialect == "v2a":
            copy.start(feed.options(filter="n >= 1000"), availableNow=True)
            with pytest.raises(PySparkException, match="filter-/type=rare"):
                copy.running.awaitTermination(WAIT_S)
        else:
            copy.drain(feed.options(filter="type = 'order' AND n >= 10000"))
            assert [n for n in copy.numbers if n >= 10_000] == chosen(10_000, 10_100, "order")

    def test_starts_at_the_first_match_once(self, spark: SparkSession, feed: Counted, copy: Copy) -> None:
        feed.append(0, 400)
        options = feed.options(startingExpression="n IN (230, 610)", filter="type = 'order'")
        copy.drain(options)
        assert copy.numbers == chosen(230, 400, "order")
        feed.append(600, 700, partition=1)
        feed.append(400, 450)
        copy.drain(options)
        assert copy.numbers == chosen(230, 450, "order") + chosen(610, 700, "order")
        feed.append(0, 20, partition=1)
        copy.drain(options)
        assert copy.numbers == chosen(0, 20, "order") + chosen(230, 450, "order") + chosen(610, 700, "order")
