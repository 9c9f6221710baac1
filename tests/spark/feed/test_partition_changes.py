"""Which partitions of a feed are read, and behind which cursors new ones start."""

from __future__ import annotations

import pytest

from spark_streams.client.feed import Discovery, FeedPartition
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.spark.feed.offset import FeedOffset
from spark_streams.spark.feed.partition_changes import PartitionChanges, trace


def look(
    begin: FeedOffset, *listed: FeedPartition, ordered: bool = True, drained: tuple[int, ...] = ()
) -> PartitionChanges:
    return trace(begin, Discovery(listed), ordered=ordered, drained=drained)


def at(
    cursors: dict[int, str], *, finished: tuple[int, ...] = (), ancestors: dict[int, str] | None = None
) -> FeedOffset:
    return FeedOffset("orders", cursors, "s", 1, {}, frozenset(finished), ancestors or {})


ROOT = FeedPartition(0)
CLOSED = FeedPartition(0, closed=True, last_cursor="z")
CHILDREN = (FeedPartition(1, starts_after=0), FeedPartition(2, starts_after=0))
HEIRS = (FeedPartition(1, cursor_from=(0,)), FeedPartition(2, cursor_from=(0,)))


def test_nothing_new() -> None:
    assert look(at({0: "a"}), ROOT) == PartitionChanges({0: "a"}, {}, frozenset(), frozenset(), {})


def test_c10_a_new_partition_starts_at_its_beginning() -> None:
    found = look(at({0: "a"}), ROOT, FeedPartition(1))
    assert found.reading == {0: "a", 1: BEGINNING} and found.begins == {1: BEGINNING}


def test_c11_children_wait_until_the_parent_is_finished() -> None:
    assert look(at({0: "a"}), CLOSED, *CHILDREN).begins == {}
    assert look(at({0: "z"}, finished=(0,)), CLOSED, *CHILDREN).begins == {1: BEGINNING, 2: BEGINNING}


def test_c11_unordered_children_do_not() -> None:
    assert look(at({0: "a"}), CLOSED, *CHILDREN, ordered=False).begins == {1: BEGINNING, 2: BEGINNING}


def test_f16_a_closed_partition_without_children_yet() -> None:
    found = look(at({0: "z"}, finished=(0,)), CLOSED)
    assert found.reading == {0: "z"} and not found.gone


def test_c12_heirs_start_at_the_cursor_of_the_partition_that_left() -> None:
    found = look(at({0: "a"}), *HEIRS, drained=(0,))
    assert found == PartitionChanges({1: "a", 2: "a"}, {1: "a", 2: "a"}, frozenset({0}), frozenset(), {0: "a"})


def test_c12_heirs_wait_until_all_that_was_fetched_is_planned() -> None:
    found = look(at({0: "a"}), *HEIRS)
    assert found.reading == {0: "a"} and found.leaving == {0} and not found.begins and not found.ancestors


def test_c12_an_heir_that_is_listed_later_starts_there_too() -> None:
    found = look(at({0: "a"}), HEIRS[0], drained=(0,))
    assert found.reading == {1: "a"} and found.ancestors == {0: "a"}
    later = look(at({1: "b"}, ancestors={0: "a"}), *HEIRS)
    assert later.reading == {1: "b", 2: "a"} and later.begins == {2: "a"}


def test_c12_two_splits_at_once() -> None:
    listed = (
        FeedPartition(2, cursor_from=(0,)),
        FeedPartition(3, cursor_from=(1, 0)),
        FeedPartition(4, cursor_from=(0, 1)),
    )
    found = look(at({0: "a"}), *listed, drained=(0,))
    assert found.begins == {2: "a", 3: "a", 4: "a"} and found.ancestors == {0: "a"}


def test_c12_the_nearest_ancestor_counts() -> None:
    listed = (FeedPartition(3, cursor_from=(0, 1)), FeedPartition(4, cursor_from=(1, 0)))
    found = look(at({1: "b"}, ancestors={0: "a"}), *listed, drained=(1,))
    assert found.begins == {3: "b", 4: "b"} and found.ancestors == {0: "a", 1: "b"}
    later = look(at({3: "c"}, ancestors={0: "a", 1: "b"}), *listed)
    assert later.begins == {4: "b"}


def test_heirs_of_several_of_which_one_is_not_planned() -> None:
    """A partition cannot take one cursor and leave the other."""
    heir = FeedPartition(5, cursor_from=(0, 1))
    assert look(at({0: "a", 1: "b"}), heir, drained=(0,)).begins == {}


def test_f17_an_heir_of_what_was_never_read_starts_at_its_beginning() -> None:
    assert look(at({7: "x"}), FeedPartition(7), *HEIRS).begins == {1: BEGINNING, 2: BEGINNING}


def test_gone_without_a_successor() -> None:
    found = look(at({0: "a", 1: "b"}), FeedPartition(1), drained=(0,))
    assert found.gone == {0} and found.reading == {0: "a", 1: "b"}
    back = look(at({0: "a", 1: "b"}), ROOT, FeedPartition(1))
    assert back.gone == frozenset() and back.reading[0] == "a"


@pytest.mark.parametrize("ordered", [True, False])
def test_f15_no_partitions(ordered: bool) -> None:
    assert look(at({}), ordered=ordered) == PartitionChanges({}, {}, frozenset(), frozenset(), {})
