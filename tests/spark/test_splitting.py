"""Shares and splits: what holds for all inputs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_streams.spark.splitting import block_sizes, shares, split_evenly

left = st.dictionaries(st.text(max_size=2), st.integers(0, 2**62), min_size=1, max_size=8)


@given(st.integers(1, 2**63 - 1), left)
def test_shares_add_up_and_fit(limit: int, left: dict[str, int]) -> None:
    given_ = shares(limit, left)
    assert given_.keys() == left.keys()
    assert sum(given_.values()) == min(limit, sum(left.values()))
    assert all(0 <= given_[p] <= left[p] for p in left)


@given(st.integers(1, 10**6), left)
def test_shares_starve_none_that_could_get_one(limit: int, left: dict[str, int]) -> None:
    waiting = [p for p in left if left[p]]
    if limit >= len(waiting):
        assert all(shares(limit, left)[p] >= 1 for p in waiting)


@given(st.integers(1, 10**6), left)
def test_shares_are_in_proportion(limit: int, left: dict[str, int]) -> None:
    given_, total = shares(limit, left), sum(left.values())
    if total > limit:
        for p in left:
            assert abs(given_[p] - limit * left[p] / total) <= len(left) + 1


def test_shares_worked_by_hand() -> None:
    assert shares(10, {"a": 90, "b": 10, "c": 0}) == {"a": 9, "b": 1, "c": 0}
    assert shares(100, {"a": 9, "b": 1}) == {"a": 9, "b": 1}
    assert shares(2, {"a": 5, "b": 9, "c": 7}) == {"a": 0, "b": 1, "c": 1}
    assert shares(2, {"a": 5, "b": 9, "c": 7}, {"a": 1}) == {"a": 1, "b": 1, "c": 0}


@given(st.integers(1, 20), st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_whoever_waited_longest_is_next(limit: int, counts: list[int]) -> None:
    left, waited = {str(i): count + 1000 for i, count in enumerate(counts)}, dict[str, int]()
    served: set[str] = set()
    for _ in range(-(-len(left) // limit)):
        given_ = shares(limit, left, waited)
        served |= {p for p in given_ if given_[p]}
        waited = {p: waited.get(p, 0) + 1 for p in given_ if not given_[p]}
    assert served == set(left)


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 10**9), min_size=1, max_size=6), st.integers(1, 200))
def test_pieces(sizes: dict[str, int], at_least: int) -> None:
    parts = split_evenly(sizes, at_least)
    assert all(1 <= parts[p] <= max(1, sizes[p]) for p in sizes)
    possible = sum(max(1, size) for size in sizes.values())
    assert sum(parts.values()) == max(len(sizes), min(at_least, possible))


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_block_sizes(events: int, count: int) -> None:
    sizes = block_sizes(events, count)
    assert (sum(sizes), len(sizes)) == (events, count)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


class Counted(str):
    """A name that counts how often it is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        Counted.lookups += 1
        return super().__hash__()


def lookups(count: int) -> int:
    """How often names are looked up to share a limit among one huge partition and others that would get nothing."""
    left = {Counted(n): 10**9 if n == 0 else 1 for n in range(count)}
    Counted.lookups = 0
    given_ = shares(2 * count, left)
    assert sum(given_.values()) == 2 * count and min(given_.values()) == 1
    return Counted.lookups


def test_work_grows_with_the_number_of_partitions_and_not_with_its_square() -> None:
    assert lookups(2_000) <= 11 * lookups(200)
