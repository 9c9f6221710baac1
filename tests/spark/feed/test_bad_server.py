"""The micro-batches against a server that behaves as badly as the specification allows, while its partitions split."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from spark_streams.wire.feed.line import Dialect
from tests.client.feed.bad_feed import BadFeed
from tests.client.feed.bad_server import BadServer, Behaviour
from tests.spark.feed.batches import Life

FAULTS = ("cut", "part", "late-500", "malformed", "429", "500", "503", "reset")


def bodies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(row["value"]) for row in rows]


def in_order_of_keys(read: list[dict[str, Any]]) -> bool:
    newest: dict[str, int] = {}
    for body in read:
        if body["n"] < newest.get(body["key"], 0):
            return False
        newest[body["key"]] = body["n"]
    return True


def behaviour(dialect: Dialect, number: int, **more: Any) -> Behaviour:
    v2a = dialect is Dialect.V2A
    return Behaviour(
        dialect=dialect,
        checkpoints=("page", "event", "some")[number % 3],
        uncovered=True,
        empty=0.2,
        shuffled=True,
        noise=True,
        crlf=bool(number % 2),
        last_cursors=("closed", "always", "never")[number % 3],
        numbers=bool(number % 2),
        old_spellings=v2a and bool(number % 2),
        stream=v2a and number == 2,
        compressed=number == 1,
        **more,
    )


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("dialect", [Dialect.V2A, Dialect.V2B])
def test_each_event_once_and_those_of_a_key_in_order(dialect: Dialect, number: int, tmp_path: Path) -> None:
    """Faults, restarts in the middle of a micro-batch, and splits of both kinds between discovery and fetch."""
    feed = BadFeed(2, seed=number)
    chance = random.Random(number)
    feed.append(600)
    with BadServer(feed, behaviour(dialect, number)) as server:
        location = str(tmp_path)
        life = Life(server.url, spoolLocation=location, maxOffsetsPerTrigger="70")
        read: list[dict[str, Any]] = []
        splits = [(0, False), (1, True)]
        try:
            while len(read) < len(feed.events) or splits:
                if chance.random() < 0.2:
                    server.fail(chance.choice(FAULTS))
                if dialect is Dialect.V2B and chance.random() < 0.1:
                    server.rotate_token()
                rows = life.step(limit=70)
                read += bodies(rows)
                if splits and len(read) >= 150 * (3 - len(splits)):
                    parent, history = splits.pop(0)
                    feed.split(parent, history=history)
                    feed.append(50)
                    server.rotate_token()
                if chance.random() < 0.05:
                    planned = life.plan(70)
                    first = life.rows(planned) if planned != life.offset else []
                    life.batches.close()
                    life = Life(server.url, life.offset, spoolLocation=location)
                    if first:
                        assert life.rows(planned) == first
                        life.offset = planned
                        read += bodies(first)
            assert life.still() == []
        finally:
            life.batches.close()
    assert sorted(body["n"] for body in read) == [event.number for event in feed.events]
    assert in_order_of_keys(read)


def test_version_1(tmp_path: Path) -> None:
    feed = BadFeed(4, seed=9)
    feed.append(800)
    with BadServer(feed, behaviour(Dialect.V1, 2)) as server:
        server.fail(*FAULTS)
        with Life(server.url, partitions="4", spoolLocation=str(tmp_path)) as life:
            read = bodies(life.until(800, limit=90))
    assert sorted(body["n"] for body in read) == list(range(1, 801)) and in_order_of_keys(read)


def test_c22_duplicates_are_the_feeds_own(tmp_path: Path) -> None:
    """What ``exactlyOnce`` false allows comes through; nothing is missing, and nothing else is repeated."""
    feed = BadFeed(1, seed=4)
    feed.append(500)
    with (
        BadServer(feed, behaviour(Dialect.V2A, 0, duplicates=0.3)) as server,
        Life(server.url, spoolLocation=str(tmp_path)) as life,
    ):
        seen: set[int] = set()
        while len(seen) < 500:
            seen |= {body["n"] for body in bodies(life.step())}
    assert seen == set(range(1, 501))


def test_filters_are_the_feeds(tmp_path: Path) -> None:
    feed = BadFeed(2, seed=5)
    feed.append(500)
    wanted = [event.number for event in feed.events if event.body["subject"] == "a"]
    given = {"spoolLocation": str(tmp_path), "filter-subject": "a"}
    with BadServer(feed, behaviour(Dialect.V2A, 1, filters=("subject",))) as server:
        with Life(server.url, **given) as life:
            read = bodies(life.until(len(wanted) // 2, limit=30))
        with Life(server.url, life.offset, **given) as again:
            read += bodies(again.until(len(wanted) - len(read)))
            assert again.still() == []
    assert sorted(body["n"] for body in read) == wanted
