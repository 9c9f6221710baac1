"""Filters and starting expressions of feeds of the reference log in Spark: rows, wire bytes, restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from spark_streams.testing import KeptQuery
from tests.e2e.feed.conftest import Feed, Feeds, in_dialects, load

pytestmark = pytest.mark.spark

MEMBERS = ("view", "order", "click", "order")


def events(start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Events, of which one in a hundred is rare."""
    for n in range(start, stop):
        yield {"n": n, "type": "rare" if n % 100 == 50 else MEMBERS[n % 4], "at": n * 1000, "pad": "x" * 80}


def chosen(start: int, stop: int, kind: str) -> list[int]:
    return [n for n in range(start, stop) if kind == ("rare" if n % 100 == 50 else MEMBERS[n % 4])]


class Counted(Feed):
    """A feed behind a proxy that counts the bytes of answers and remembers what was asked."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed.stream, feed.dialect)
        self.bytes = 0
        self.asked: list[str] = []
        counted, session, door = self, requests.Session(), feed.stream.process.urls["feedapi"]

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                answer = session.get(f"{door}{self.path}", headers={"Accept-Encoding": "identity"})
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

    def append(self, start: int, stop: int, partition: int = 0) -> None:
        given = (json.dumps(event) for event in events(start, stop))
        self.stream.produce({"value": event, "partition": str(partition)} for event in given)

    def options(self, **more: str) -> dict[str, str]:
        # Long responses would not get through the proxy.
        url = f"http://127.0.0.1:{self.proxy.server_address[1]}/{self.stream.name}"
        return super().options(**{"url": url, **more})


@pytest.fixture
def feed(feeds: Feeds) -> Iterator[Counted]:
    made = Counted(feeds.create(2))
    yield made
    made.close()


def numbers(found: DataFrame | list[Row]) -> list[int]:
    """The numbers of the events that were read."""
    rows = found if isinstance(found, list) else found.select("value").collect()
    return sorted(json.loads(bytes(row.value))["n"] for row in rows)


def batch(spark: SparkSession, feed: Counted, **more: str) -> list[int]:
    """Return what a batch query reads."""
    return numbers(spark.read.format("feedapi").options(**feed.options(**more)).load())


class TestBatch:
    @in_dialects("v2a")
    def test_the_filter_is_pushed_where_the_feed_can(self, spark: SparkSession, feed: Counted) -> None:
        for first in range(0, 20_000, 2_000):
            feed.append(first, first + 2_000, partition=first // 2_000 % 2)
        everything = batch(spark, feed)
        whole, feed.bytes = feed.bytes, 0
        assert everything == list(range(20_000))
        text = "type = 'rare' AND (n < 5000 OR n >= 15000)"
        wanted = [n for n in chosen(0, 20_000, "rare") if n < 5_000 or n >= 15_000]
        assert batch(spark, feed, filter=text) == wanted
        if feed.dialect == "v2a":
            assert feed.bytes < whole / 50
            assert any("filter-%2Ftype=rare" in path for path in feed.asked)
        else:
            assert feed.bytes > whole / 2 and not any("filter" in path for path in feed.asked)
        count = spark.read.format("feedapi").options(**feed.options(filter=text)).load().count()
        assert count == len(wanted)
        assert batch(spark, feed, filter=text, filterFields="none") == wanted

    @in_dialects("v1")
    def test_starts_at_the_first_match(self, spark: SparkSession, feed: Counted) -> None:
        feed.append(0, 500)
        feed.append(500, 900, partition=1)
        wanted = list(range(250, 500)) + list(range(550, 900))
        expression = "type = 'rare' AND n > 200 AND event_time > 200000"
        assert batch(spark, feed, startingExpression=expression, timestampField="/at") == wanted
        both = [n for n in wanted if n in chosen(0, 900, "order")]
        assert batch(spark, feed, startingExpression="type = 'rare' AND n > 200", filter="type = 'order'") == both


@pytest.fixture
def spool(tmp_path: Path) -> dict[str, str]:
    """The option that says where streams keep what they have fetched."""
    return {"spoolLocation": str(tmp_path / "spool")}


class TestStream:
    @pytest.mark.nightly  # by day test_filters.py restarts a stream of each format
    def test_over_restarts(self, spark: SparkSession, feed: Counted, query: KeptQuery, spool: dict[str, str]) -> None:
        for first in range(0, 8_000, 2_000):
            feed.append(first, first + 2_000, partition=first // 2_000 % 2)
        options = spool | feed.options(filter="type = 'rare' AND n >= 1000", startingOffsets="earliest")
        wanted = [n for n in chosen(0, 8_000, "rare") if n >= 1_000]
        query.drain(load(spark, options | {"maxOffsetsPerTrigger": "1000"}))
        assert numbers(query.rows) == wanted and len(query.batches) >= (1 if feed.dialect == "v2a" else 4)
        if feed.dialect == "v2a":
            assert feed.bytes < 8_000 * 110 / 20
        feed.append(8_000, 9_000)
        query.start(load(spark, options))
        query.wait_for_rows(len(wanted) + 10)
        feed.append(9_000, 10_000, partition=1)
        query.wait_for_rows(len(wanted) + 20)
        query.stop()
        assert numbers(query.rows) == [n for n in chosen(0, 10_000, "rare") if n >= 1_000]
        # a micro-batch that was under way is run again under the filter that is given then
        query.drain(load(spark, options))
        feed.append(10_000, 10_100)
        if feed.dialect == "v2a":
            with pytest.raises(PySparkException, match="filter-/type=rare"):
                query.drain(load(spark, spool | feed.options(filter="n >= 1000")))
        else:
            query.drain(load(spark, spool | feed.options(filter="type = 'order' AND n >= 10000")))
            assert [n for n in numbers(query.rows) if n >= 10_000] == chosen(10_000, 10_100, "order")

    @in_dialects("v2b")
    def test_starts_at_the_first_match_once(
        self, spark: SparkSession, feed: Counted, query: KeptQuery, spool: dict[str, str]
    ) -> None:
        feed.append(0, 400)
        frame = load(spark, spool | feed.options(startingExpression="n IN (230, 610)", filter="type = 'order'"))
        query.drain(frame)
        assert numbers(query.rows) == chosen(230, 400, "order")
        feed.append(600, 700, partition=1)
        feed.append(400, 450)
        query.drain(frame)
        assert numbers(query.rows) == chosen(230, 450, "order") + chosen(610, 700, "order")
        feed.append(0, 20, partition=1)
        query.drain(frame)
        assert numbers(query.rows) == chosen(0, 20, "order") + chosen(230, 450, "order") + chosen(610, 700, "order")
