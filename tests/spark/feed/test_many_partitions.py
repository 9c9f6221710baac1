"""Feeds of many partitions: an idle one costs no request where the list of partitions tells the ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_streams.client.feed.client import FeedClient
from spark_streams.log import LogConfig, ReferenceLog
from spark_streams.server import ServerThread
from spark_streams.server.feed.config import FeedConfig
from spark_streams.spark.feed import page_fetcher
from spark_streams.spark.feed.fetch_pool import MAX_FETCHES
from tests.spark.feed.batches import WAIT_S, Life

PARTITIONS = 60
"""More than are read with long responses."""


class Served:
    """A log with one stream, and how often each partition was asked for, and the list of them."""

    def __init__(self, log: ReferenceLog, server: ServerThread) -> None:
        self.stream = log.stream("orders")
        self.url = server.url("feedapi")
        self.calls: Counter[int] = Counter()
        self.lists = 0

    def add(self, partition: int) -> None:
        self.stream.partitions[str(partition)].append([b'\x00\x53\x75\xa0\x09{"id": 1}'])


@pytest.fixture(params=["v2a"])
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A log whose partitions are empty."""
    monkeypatch.setattr(page_fetcher, "REST_S", 1e6)  # or a slow machine may see polls
    with ReferenceLog(tmp_path / "log", LogConfig(fsync="never")) as log:
        log.create_stream("orders", PARTITIONS)
        with ServerThread(log, feed=FeedConfig(port=0, dialect=request.param)) as server:
            served = Served(log, server)
            page, discover = FeedClient._request_page, FeedClient._discover

            def counted_page(client: FeedClient, partition: int, *given: Any) -> Any:
                served.calls[partition] += 1
                return page(client, partition, *given)

            def counted_list(client: FeedClient) -> Any:
                served.lists += 1
                return discover(client)

            monkeypatch.setattr(FeedClient, "_request_page", counted_page)
            monkeypatch.setattr(FeedClient, "_discover", counted_list)
            yield served


def describe_anew(life: Life) -> None:
    """Let the planner ask for the list of partitions again at its next plan."""
    life.batches._discovered = None


def come_to_rest(life: Life) -> None:
    deadline = time.monotonic() + WAIT_S
    while not all(fetcher._rests for fetcher in life.batches._fetchers.each.values()):
        life.step()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_idle_partitions_rest_and_one_with_events_is_fetched(served: Served) -> None:
    with Life(served.url) as life:
        life.step()
        come_to_rest(life)
        served.calls.clear()
        lists = served.lists
        for _ in range(20):
            describe_anew(life)
            assert life.step() == []
        assert served.calls == {} and served.lists == lists + 20, "a request for all partitions together"
        for partition in (7, 41):
            served.add(partition)
            served.calls.clear()
            describe_anew(life)
            rows = life.step()
            assert [row["partition"] for row in rows] == [str(partition)], (
                "the plan waits for the partition that has more"
            )
            assert served.calls.keys() == {partition}
            come_to_rest(life)


def test_partitions_rest_only_at_the_end_that_the_feed_tells(served: Served) -> None:
    """With a filter the told end is another cursor than the read's, so that each partition is polled as before."""
    with Life(served.url, **{"filter-subject": "x"}) as life:
        life.step()
        deadline = time.monotonic() + WAIT_S
        while not served.calls or min(served.calls[p] for p in range(PARTITIONS)) < 5:
            describe_anew(life)
            assert life.step() == []
            assert time.monotonic() < deadline
        assert not any(fetcher._rests for fetcher in life.batches._fetchers.each.values())


def test_a_partition_is_polled_after_its_rest_whatever_the_feed_tells(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Life(served.url) as life:
        life.step()
        come_to_rest(life)
        monkeypatch.setattr(page_fetcher, "REST_S", 0.01)
        served.calls.clear()
        for fetcher in life.batches._fetchers.each.values():
            fetcher.pool.wake(fetcher)
        deadline = time.monotonic() + WAIT_S
        while min(served.calls[p] for p in range(PARTITIONS)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_threads_do_not_grow_with_partitions(served: Served) -> None:
    before = set(threading.enumerate())
    with Life(served.url) as life:
        most = 0
        for partition in range(PARTITIONS):
            served.add(partition)
        rows = 0
        deadline = time.monotonic() + WAIT_S
        while rows < PARTITIONS:
            rows += len(life.step())
            most = max(most, len([t for t in set(threading.enumerate()) - before if t.name == "feed-fetches"]))
            assert time.monotonic() < deadline
        assert 1 <= most <= MAX_FETCHES + 1
