"""A feed of version 1 whose answer is empty where it has no more events: no checkpoint tells that."""

from __future__ import annotations

import json
import time

import pytest

from spark_streams.client.feed.range_reader import FeedRange
from spark_streams.errors import ConnectionLost, RemoteProtocolError
from spark_streams.options.feedapi import parse_source
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.feed.reader import FeedSource
from spark_streams.spark.feed.tasks import read_task
from tests.client.feed.brief import BriefFeed
from tests.client.feed.scripted import Reply, client_of
from tests.spark.feed.batches import WAIT_S, Life, together, values


def numbered(first: int, end: int) -> list[bytes]:
    return [json.dumps({"n": n}).encode() for n in range(first, end)]


@pytest.mark.parametrize("events", [0, 5])
def test_a_batch_ends_at_the_empty_answer(events: int) -> None:
    with BriefFeed(events) as feed:
        options = parse_source({"url": f"{feed.url}/orders", "partitions": "1"}, streaming=False)
        (task,) = FeedSource().plan(options, tuple(COMMON_SCHEMA.names))
        assert task.fetch == FeedRange(0, "_first", ())
        batches = list(read_task(options, task, ("value", "offset")))
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [(row["value"], row["offset"]) for row in rows] == [
            (value, f"c{n}") for n, value in enumerate(numbered(0, events))
        ]


def test_a_stream_asks_again_at_the_same_cursor_and_no_sooner_than_its_interval() -> None:
    with BriefFeed(3) as feed, Life(feed.url, partitions="1", pollInterval="600000") as life:
        assert values(life.until(3)) == numbered(0, 3)
        deadline = time.monotonic() + WAIT_S
        while [asked["cursor0"] for asked in feed.asked if "cursor0" in asked] != ["_first", "c1", "c2"]:
            assert time.monotonic() < deadline, feed.asked
            life.step()
        assert life.still() == []
        assert [asked["cursor0"] for asked in feed.asked if "cursor0" in asked] == ["_first", "c1", "c2"]
        offset = life.offset
    with BriefFeed(6) as feed, Life(feed.url, offset, partitions="1") as life:
        assert values(life.until(3)) == numbered(3, 6)
        feed.events = 7
        assert values(life.until(1)) == numbered(6, 7)
        assert {asked["cursor0"] for asked in feed.asked if "cursor0" in asked} <= {"c2", "c4", "c5", "c6"}


def test_available_now_ends() -> None:
    with BriefFeed(5) as feed, Life(feed.url, partitions="1") as life:
        assert together(life.available_now()) == numbered(0, 5)


def test_its_end_is_no_place_to_start() -> None:
    with BriefFeed(5) as feed, pytest.raises(RemoteProtocolError, match=r"no cursor, .* start 'earliest'"):
        Life(feed.url, partitions="1", startingOffsets="latest")


def test_events_without_a_cursor_and_an_end_that_may_be_a_cut_are_errors() -> None:
    event = b'{"partition": 0, "data": {"n": 1}}\n'
    with BriefFeed(0) as feed, client_of(feed.url, "v1", partitions=1) as client:
        for reply, fault, words in (
            (Reply(event), RemoteProtocolError, "nothing can be read after its 1 events"),
            (Reply(b"", length=False), ConnectionLost, "may have been cut"),
        ):
            feed.answer = lambda _, reply=reply: reply
            with pytest.raises(fault, match=words):
                list(client.lines(0, "_first"))
