"""How micro-batches are cut from what a fetcher has fetched: at checkpoints, under limits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.options.feedapi import parse_source
from spark_streams.spark.feed.page_fetchers import PageFetchers
from spark_streams.spark.feed.page_file import Checkpoints, PageRange
from spark_streams.spark.feed.pages import Pages, PlannedPages, SpooledFile

MOST = 1 << 40


def file(name: str, *blocks: list[tuple[int, int, str]]) -> SpooledFile:
    """Return a file whose blocks have checkpoints: byte after it, events before it, cursor."""
    found = []
    for block in blocks:
        ends, events, cursors = zip(*block, strict=True)
        columns = np.array(ends, np.int64), np.array(events, np.int64), pa.array(cursors, pa.string())
        found.append(Checkpoints(*columns))
    return SpooledFile(name, Checkpoints.joined(found))


def pages(*files: SpooledFile) -> Pages:
    made = Pages()
    for each in files:
        made.add(each)
    return made


def planned(from_: Pages, events: int | None = None, size: int = MOST) -> PlannedPages:
    taken = from_.plan(events, size)
    assert taken is not None
    return taken


def test_everything_without_a_limit() -> None:
    made = pages(file("a", [(10, 1, "x"), (20, 2, "y")], [(30, 5, "z")]), file("b", [(7, 1, "w")]))
    assert (made.events, made.bytes) == (6, 37)
    taken = planned(made)
    assert taken.ranges == [PageRange("a", 0, 5), PageRange("b", 0, 1)]
    assert (taken.bytes, taken.events, taken.cursor, taken.done) == (37, 6, "w", ["a", "b"])
    assert made.plan(None, MOST) is None and made.events == 0


@pytest.mark.parametrize(
    ("limit", "size", "events", "cursor"),
    [(1, 10, 1, "x"), (2, 20, 2, "y"), (3, 20, 2, "y"), (4, 20, 2, "y"), (5, 30, 5, "z")],
)
def test_at_the_last_checkpoint_within_the_limit(limit: int, size: int, events: int, cursor: str) -> None:
    taken = planned(pages(file("a", [(10, 1, "x"), (20, 2, "y")], [(30, 5, "z")])), limit)
    assert taken.ranges == [PageRange("a", 0, events)]
    assert (taken.bytes, taken.events, taken.cursor) == (size, events, cursor)
    assert taken.done == (["a"] if size == 30 else [])


def test_the_first_checkpoint_with_events_is_taken_whole() -> None:
    made = pages(file("a", [(10, 50, "x"), (20, 60, "y")]))
    assert planned(made, 3).ranges == [PageRange("a", 0, 50)]
    assert planned(made, 3).ranges == [PageRange("a", 50, 60)]
    made = pages(file("a", [(10, 50, "x")]))
    assert planned(made, None, 1).events == 50


def test_bytes_are_a_limit_too() -> None:
    made = pages(file("a", [(10, 1, "x"), (20, 2, "y"), (30, 3, "z")]), file("b", [(10, 1, "w")]))
    assert planned(made, None, 25).ranges == [PageRange("a", 0, 2)]
    assert planned(made, None, 25).ranges == [PageRange("a", 2, 3), PageRange("b", 0, 1)]


def test_goes_on_where_it_was_cut() -> None:
    made = pages(file("a", [(10, 2, "x")], [(20, 4, "y"), (30, 6, "z")]), file("b", [(10, 3, "w")]))
    assert planned(made, 2).ranges == [PageRange("a", 0, 2)]
    assert (made.events, made.bytes) == (7, 30)
    taken = planned(made, 5)
    assert taken.ranges == [PageRange("a", 2, 6)] and taken.done == ["a"] and taken.events == 4
    taken = planned(made, 5)
    assert taken.ranges == [PageRange("b", 0, 3)] and taken.done == ["b"]


def test_checkpoints_without_events_move_the_cursor() -> None:
    made = pages(file("a", [(10, 0, "x"), (20, 0, "y")]), file("b", [(10, 0, "z"), (20, 4, "w"), (30, 4, "v")]))
    taken = planned(made, 0)
    assert (taken.cursor, taken.events, taken.done) == ("z", 0, ["a"])
    taken = planned(made, 1)
    assert (taken.cursor, taken.events) == ("w", 4)
    taken = planned(made, 0)
    assert (taken.cursor, taken.events, taken.done) == ("v", 0, ["b"])


@pytest.mark.parametrize(("at_least", "cursor"), [(3, "x"), (4, "y"), (None, "y")])
def test_a_first_checkpoint_that_covers_too_much_waits(at_least: int | None, cursor: str) -> None:
    made = pages(file("a", [(10, 0, "x"), (20, 4, "y"), (30, 5, "z")]))
    taken = made.plan(1, MOST, at_least)
    assert taken is not None and taken.cursor == cursor
    assert planned(made, 5).cursor == "z"


def test_partitions_do_not_exceed_a_limit_together() -> None:
    """Their shares of 200 are less than their pages of 500; one of them is first, in turn."""
    waiting = {number: pages(file(f"f{number}", [(10, 500, "x")], [(20, 1_000, "y")])) for number in range(3)}
    options = parse_source({"url": "http://localhost", "stream": "orders"}, streaming=True)
    fetchers = PageFetchers(options)
    fetchers.each = waiting  # type: ignore[assignment]
    seen = []
    for turn in range(7):
        cuts = fetchers.plan({number: each.events for number, each in waiting.items()}, 600, turn)
        seen.append({number: taken.events for number, taken in cuts.items() if taken.events})
    assert seen == [{0: 500}, {1: 500}, {2: 500}, {0: 500}, {1: 500}, {2: 500}, {}]


def test_a_limit_of_none_takes_no_events() -> None:
    made = pages(file("a", [(10, 4, "x")]))
    assert made.plan(0, MOST) is None
    assert made.events == 4


class TestSplit:
    def test_at_checkpoints_in_about_equal_pieces(self) -> None:
        taken = planned(pages(file("a", [(n * 10, n, str(n)) for n in range(1, 13)])))
        assert taken.split(3) == [[PageRange("a", 0, 4)], [PageRange("a", 4, 8)], [PageRange("a", 8, 12)]]
        assert taken.split(1) == [[PageRange("a", 0, 12)]]

    def test_by_their_bytes_and_not_by_their_number(self) -> None:
        taken = planned(pages(file("a", [(10, 5, "x"), (20, 10, "y"), (30, 15, "z"), (60, 16, "w")])))
        assert taken.split(2) == [[PageRange("a", 0, 15)], [PageRange("a", 15, 16)]]

    def test_over_files(self) -> None:
        taken = planned(pages(file("a", [(10, 1, "x")]), file("b", [(10, 1, "y")]), file("c", [(10, 1, "z")])))
        pieces = taken.split(3)
        assert [r for piece in pieces for r in piece] == taken.ranges
        assert len(pieces) <= 3

    def test_no_more_than_there_are_checkpoints(self) -> None:
        taken = planned(pages(file("a", [(10, 1, "x"), (20, 2, "y")])))
        assert taken.split(10) == [[PageRange("a", 0, 1)], [PageRange("a", 1, 2)]]

    def test_of_a_file_that_is_begun(self) -> None:
        made = pages(file("a", [(n * 10, n, str(n)) for n in range(1, 11)]))
        planned(made, 4)
        taken = planned(made)
        assert taken.split(2) == [[PageRange("a", 4, 7)], [PageRange("a", 7, 10)]]


@st.composite
def fetched(draw: st.DrawFn) -> list[list[list[tuple[int, int]]]]:
    """Files of blocks of checkpoints: bytes and events since the one before."""
    checkpoint = st.tuples(st.integers(1, 30), st.integers(0, 9))
    return draw(st.lists(st.lists(st.lists(checkpoint, min_size=1, max_size=5), min_size=1, max_size=4), max_size=5))


@given(
    fetched(), st.lists(st.tuples(st.none() | st.integers(0, 20), st.integers(1, 90)), max_size=40), st.integers(1, 6)
)
def test_all_of_it_once_in_order(
    shape: list[list[list[tuple[int, int]]]], limits: list[tuple[int | None, int]], pieces: int
) -> None:
    made = Pages()
    expected: list[tuple[str, int]] = []
    total, cursors = 0, {}
    for number, blocks in enumerate(shape):
        name, at, events = f"f{number}", 0, 0
        done: list[list[tuple[int, int, str]]] = []
        for block in blocks:
            done.append([])
            for size, count in block:
                at, events, total = at + size, events + count, total + count
                done[-1].append((at, events, f"{name}-{at}"))
                cursors[f"{name}-{at}"] = total
        made.add(file(name, *done))
        expected += [(name, event) for event in range(events)]
    seen: list[tuple[str, int]] = []
    found = 0
    for most, size in [*limits, *[(None, MOST)] * 2]:
        taken = made.plan(most, size)
        if taken is None:
            continue
        found += taken.events
        flat = [r for piece in taken.split(pieces) for r in piece]
        assert len(taken.split(pieces)) <= max(1, pieces)
        seen += [(r.file, event) for r in flat for event in range(r.start, r.stop)]
        assert found == cursors[taken.cursor] == len(seen)
        if most == 0:
            assert taken.events == 0
    assert seen == expected and found == total


def test_checkpoints_behind_the_limit_in_bytes_wait_also_where_they_add_no_events() -> None:
    made = pages(file("a", [(8, 0, "8")], [(17, 0, "17"), (24, 3, "24")], [(30, 3, "30"), (38, 3, "38")]))
    assert made.plan(1, 1, 2) is None
    taken = planned(made, 3, 24)
    assert (taken.events, taken.cursor) == (3, "24")
