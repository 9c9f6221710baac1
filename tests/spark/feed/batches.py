"""Micro-batches of a feed without Spark: what it would ask, in its order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from spark_streams.options.feedapi import FeedSourceOptions, parse_source
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.feed.micro_batch import FeedBatches
from spark_streams.spark.feed.tasks import FeedTask, read_task

WAIT_S = 120.0


def options_of(url: str, **more: str) -> FeedSourceOptions:
    """Options of a stream, with short waits."""
    given = {
        "url": url if url.count("/") > 2 else f"{url}/orders",
        "startingOffsets": "earliest",
        "pollInterval": "10",
        "requestTimeout": "120000",
    }
    return parse_source(given | more, streaming=True)


class Life:
    """One run of a query, between its start and its end.

    Args:
        url: of the server.
        offset: where the run before ended; None for a new query.
        more: options.
    """

    def __init__(self, url: str, offset: Mapping[str, Any] | None = None, **more: str) -> None:
        self.options = options_of(url, **more)
        self.batches = FeedBatches(self.options)
        self.offset: dict[str, Any] = through_json(offset) if offset is not None else self.batches.initial()

    def __enter__(self) -> Life:
        return self

    def __exit__(self, *_: object) -> None:
        self.batches.close()
        for fetcher in self.batches._fetchers.each.values():
            fetcher._ended.wait(120)  # what it has just asked for is answered, and counted, before the test goes on

    def plan(self, limit: int | None = None) -> dict[str, Any]:
        """Plan the next micro-batch, once."""
        return through_json(self.batches.next_end(self.offset, limit))

    def tasks(self, end: Mapping[str, Any]) -> list[FeedTask]:
        return self.batches.reads(self.offset, through_json(end))

    def rows(self, end: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the rows of a planned micro-batch."""
        found: list[dict[str, Any]] = []
        for task in self.tasks(end):
            batches = list(read_task(self.options, task, tuple(COMMON_SCHEMA.names)))
            found += pa.Table.from_batches(batches).to_pylist() if batches else []
        return found

    def step(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Run one micro-batch, if there is one; commit the one before as Spark does: late."""
        end = self.plan(limit)
        if end == self.offset:
            return []
        rows = self.rows(end)
        self.batches.committed(self.offset)
        self.offset = end
        return rows

    def until(self, count: int, limit: int | None = None) -> list[dict[str, Any]]:
        """Run micro-batches until there are so many rows."""
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + WAIT_S
        while len(rows) < count:
            rows += self.step(limit)
            assert time.monotonic() < deadline, f"{len(rows)} of {count} rows"
        return rows

    def come_to(self, cursors: dict[str, str]) -> None:
        """Run micro-batches until the offset has these cursors; none of them has rows."""
        deadline = time.monotonic() + WAIT_S
        while self.offset is None or self.offset["partitions"] != {p: {"after": c} for p, c in cursors.items()}:
            assert self.step() == []
            assert time.monotonic() < deadline, self.offset

    def still(self, seconds: float = 0.3) -> list[dict[str, Any]]:
        """Run micro-batches for some time; for checks that nothing more comes."""
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            rows += self.step()
        return rows

    def available_now(
        self, limit: int | None = None, meanwhile: Callable[[], None] = lambda: None
    ) -> list[list[dict[str, Any]]]:
        """Run as Trigger.AvailableNow does; return the rows of each micro-batch.

        Args:
            limit: of each.
            meanwhile: called once the end is fixed.
        """
        self.batches.fix_end()
        meanwhile()
        batches: list[list[dict[str, Any]]] = []
        deadline = time.monotonic() + WAIT_S
        while (end := self.plan(limit)) != self.offset:
            batches.append(self.rows(end))
            self.batches.committed(self.offset)
            self.offset = end
            assert time.monotonic() < deadline
        return batches


def through_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an offset as Spark's checkpoint gives it back."""
    result: dict[str, Any] = json.loads(json.dumps(value))
    return result


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    """Return the events of rows."""
    return [row["value"] for row in rows]


def together(batches: list[list[dict[str, Any]]]) -> list[bytes]:
    """Return the events of all micro-batches."""
    return [row["value"] for rows in batches for row in rows]
