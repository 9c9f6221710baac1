"""A feed in memory with filters of its own, and cursors that belong to a set of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from spark_streams.options.feedapi import FeedSourceOptions, parse_source
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.feed.reader import FeedSource
from spark_streams.spark.feed.tasks import FeedTask, read_task
from tests.client.feed.scripted import BadFeed, Part, Reply, Request

Passes = Callable[[Any, str], bool]


def equal(member: str) -> Passes:
    """Return a filter that compares a member exactly."""
    return lambda event, value: event.get(member) == value


class FilteringFeed(BadFeed):
    """A feed that filters.

    Args:
        parts: its partitions.
        compares: name of a filter to whether an event passes it with a value.
        tells: what discovery says in ``filterFields``; None for nothing.
        more: as ``BadFeed``.
    """

    def __init__(
        self,
        parts: Mapping[int, Part],
        compares: Mapping[str, Passes],
        tells: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(parts, **more)
        self.compares = dict(compares)
        self.tells = tells
        self._asked: dict[str, str] = {}
        self._sets: dict[str, dict[str, str]] = {}
        self._of_set: dict[tuple[int, int, str], str] = {}

    def discovery(self) -> bytes:
        self._asked = {}
        self.filters = tuple(self.compares)
        said = json.loads(super().discovery())
        if self.tells is not None:
            said["filterFields"] = dict(self.tells)
        return json.dumps(said).encode()

    def fetched(self, request: Request, partition: int, cursor: str) -> Reply:
        asked = {name.removeprefix("filter-"): value for name, value in request.pairs if name.startswith("filter-")}
        if asked.keys() - self.compares.keys():
            return Reply(b"filter is not supported\n", 400)
        if cursor in self._sets and self._sets[cursor] != asked:
            return Reply(b"cursor of another set of filters\n", 400)
        self._asked = asked
        return super().fetched(request, partition, cursor)

    def cursor(self, partition: int, index: int) -> str:
        place = partition, index, json.dumps(self._asked, sort_keys=True)
        if place not in self._of_set:
            text = f"{self.chance.getrandbits(40):x}/{len(self._sets)}"
            self._of_set[place], self._sets[text], self.places[text] = text, self._asked, (partition, index)
        return self._of_set[place]

    def event(self, partition: int, event: bytes) -> bytes:
        read = json.loads(event)
        if not all(self.compares[name](read, value) for name, value in self._asked.items()):
            return b""
        return super().event(partition, event)

    def pushed(self) -> list[dict[str, str]]:
        """Return the different sets of filters that were fetched with, in their order."""
        found: list[dict[str, str]] = []
        for request in self.fetches:
            asked = {name: value for name, value in request.pairs if name.startswith("filter-")}
            if asked not in found:
                found.append(asked)
        return found


def batch_options(url: str, **more: str) -> FeedSourceOptions:
    """Return the options of a batch query."""
    return parse_source({"url": f"{url}/orders", "requestTimeout": "120000", **more}, streaming=False)


def batch_rows(
    url: str, columns: tuple[str, ...] = tuple(COMMON_SCHEMA.names), **more: str
) -> tuple[list[dict[str, Any]], list[FeedTask]]:
    """Run a batch query; return its rows and tasks."""
    options = batch_options(url, **more)
    tasks = FeedSource().plan(options, ())
    rows: list[dict[str, Any]] = []
    for task in tasks:
        for batch in read_task(options, task, columns):
            assert batch.num_rows and batch.schema.names == list(columns)
            rows += batch.to_pylist()
    return rows, tasks
