"""Where the next micro-batch of a feed ends, as a table of what was fetched and of the ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_streams.client.feed import Discovery, FeedPartition
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.spark.feed.offset import FeedOffset
from spark_streams.spark.feed.pages import PlannedPages
from spark_streams.spark.feed.partition_changes import trace
from spark_streams.spark.feed.planning import FeedState, next_end

STATE = FeedState("run", planned_at=1.0, looked_at=5.0)
BEGIN = FeedOffset("orders", {0: "a"}, "spool", 3, begins={0: "old"}, found={0: "n > 1"}, run="before")
ONE = FeedPartition(0)
CLOSED = replace(ONE, closed=True)


def pages(events: int, cursor: str) -> PlannedPages:
    return PlannedPages([], events, 0, cursor, [], {})


def follows(partition: int, parent: int, *, takes_cursors: bool = False) -> FeedPartition:
    return FeedPartition(partition, starts_after=parent, cursor_from=(parent,) if takes_cursors else ())


@pytest.mark.parametrize(
    ("begin", "listed", "finished", "taken", "ends"),
    [
        (BEGIN, [ONE], {}, {0: pages(5, "b")}, {"cursors": {0: "b"}}),
        (BEGIN, [ONE], {}, {0: pages(5, "a")}, {"cursors": {0: "a"}}),
        (BEGIN, [ONE], {}, {0: pages(0, "b")}, {"cursors": {0: "b"}}),
        (BEGIN, [ONE], {}, {0: pages(0, "a")}, None),
        (BEGIN, [ONE], {}, {}, None),
        (replace(BEGIN, batch=0), [ONE], {}, {}, {"cursors": {0: "a"}}),
        (BEGIN, [CLOSED], {0}, {}, {"cursors": {0: "a"}, "finished": {0}}),
        (replace(BEGIN, finished=frozenset({0})), [CLOSED], {0}, {}, None),
        (
            replace(BEGIN, finished=frozenset({0})),
            [CLOSED, follows(1, 0)],
            {0},
            {1: pages(2, "x")},
            {"cursors": {0: "a", 1: "x"}, "finished": {0}, "begins": {1: BEGINNING}},
        ),
        (
            BEGIN,
            [follows(1, 0, takes_cursors=True)],
            {},
            {1: pages(2, "x")},
            {"cursors": {1: "x"}, "ancestors": {0: "a"}, "begins": {1: "a"}},
        ),
        (
            replace(BEGIN, searching={0: "n > 1"}),
            [ONE],
            {},
            {0: pages(0, "b")},
            {"cursors": {0: "b"}, "searching": {0: "n > 1"}},
        ),
        (
            replace(BEGIN, searching={0: "n > 1"}),
            [ONE],
            {},
            {0: pages(1, "b")},
            {"cursors": {0: "b"}, "found": {0: "n > 1"}},
        ),
    ],
    ids=[
        *("events", "events without another cursor", "another cursor", "nothing of it", "nothing", "the first"),
        *("read to its end", "at its end", "a new partition", "one takes over", "no match yet", "a match"),
    ],
)
def test_where_it_ends(
    begin: FeedOffset,
    listed: list[FeedPartition],
    finished: set[int],
    taken: Mapping[int, PlannedPages],
    ends: dict[str, Any] | None,
) -> None:
    changes = trace(begin, Discovery(partitions=tuple(listed)), ordered=True, drained={0})
    state, end = next_end(STATE, begin, changes, finished, taken)
    if ends is None:
        assert (state, end) == (STATE, None)
        return
    assert end == FeedOffset("orders", spool="spool", batch=begin.batch + 1, run="run", **ends)
    assert state == replace(STATE, planned_at=5.0, end=end)
