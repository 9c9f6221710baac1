"""What the checkpoint remembers of a feed."""

from __future__ import annotations

import json

import pytest

from spark_streams.client.feed.pushdown import FeedFilter
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.errors import CheckpointError
from spark_streams.spark.feed.offset import FeedOffset

FULL = FeedOffset(
    "orders",
    {0: "a+/=;& ö", 10: BEGINNING, 9: "earliest"},
    "s1",
    7,
    {"subject": "x", "b": ""},
    frozenset({10, 9}),
    {3: "old", 1: "older"},
    {9: BEGINNING},
    {"/type": FeedFilter("a", "/type", True), "k": FeedFilter("", "key")},
    {10: "n > 5", 3: "n = 'ö'"},
    {9: "n < 5"},
)


@pytest.mark.parametrize("offset", [FULL, FeedOffset("orders", {}, "s"), FeedOffset("o", {0: BEGINNING}, "s", 1)])
def test_json_round_trip(offset: FeedOffset) -> None:
    there = json.loads(json.dumps(offset.to_json()))
    back = FeedOffset.from_json(there, offset.stream, offset.filters)
    assert back == offset
    assert list(back.ancestors) == list(offset.ancestors), "the order says which one is nearer"
    assert back.to_json() == offset.to_json()


def test_partitions_are_as_in_the_checkpoints_of_all_formats() -> None:
    assert FULL.to_json()["partitions"] == {
        "0": {"after": "a+/=;& ö"},
        "9": {"after": "earliest"},
        "10": "earliest",
    }


@pytest.mark.parametrize(
    "filters", [{}, {"subject": "y", "b": ""}, {"subject": "x"}, {"subject": "x", "b": "", "c": "1"}]
)
def test_c13_other_filters_are_refused(filters: dict[str, str]) -> None:
    with pytest.raises(CheckpointError, match=r"filter-subject=x.*identical filters"):
        FeedOffset.from_json(FULL.to_json(), "orders", filters)


def test_another_feed_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"'orders'.*'others'.*option 'stream'"):
        FeedOffset.from_json(FULL.to_json(), "others", FULL.filters)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"format": None},
        {"version": None},
        {"partitions": {"0": 5}},
        {"partitions": {"x": "earliest"}},
        {"partitions": {"0": {"at": "c"}}},
        {"partitions": []},
        {"batch": "x"},
        {"spool": None, "batch": None},
        {"ancestors": 3},
        {"finished": ["x"]},
    ],
)
def test_what_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        FeedOffset.from_json(FULL.to_json() | change, "orders", FULL.filters)
