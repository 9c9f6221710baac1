"""Walking ahead: counts become offsets, nothing is skipped, and links are used sparingly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.position import EARLIEST, After, At
from spark_streams.spark.source import offset_counting
from spark_streams.spark.source.offset_counting import CountedWalk, sample, split_points
from spark_streams.spark.splitting import block_sizes
from tests.spark.fake_client import FakeClient, FakeLog, name


def walk(log: FakeLog, start=EARLIEST) -> CountedWalk:
    client = FakeClient(log)
    return CountedWalk(client.offsets("orders", "0", start, None), start)


def filled(count: int) -> FakeLog:
    log = FakeLog("0")
    log.partitions["0"].append(count)
    return log


@given(st.integers(0, 300), st.lists(st.tuples(st.integers(1, 80), st.integers(0, 320)), max_size=12))
def test_advance_counts_exactly_and_never_passes_the_bound(events: int, steps: list[tuple[int, int]]) -> None:
    ahead, reached = walk(filled(events)), 0
    for count, bound in steps:
        expected = max(0, min(count, bound + 1 - reached, events - reached))
        taken, last = ahead.advance(count, name(bound))
        assert taken == expected
        reached += taken
        assert last == (name(reached - 1) if taken else None)
        assert ahead.position == (After(name(reached - 1)) if reached else EARLIEST)


def test_a_walk_goes_on_when_events_come() -> None:
    log = filled(2)
    ahead = walk(log)
    assert ahead.advance(5, name(99)) == (2, name(1))
    assert ahead.advance(5, name(99)) == (0, None)
    log.partitions["0"].append(3)
    assert ahead.advance(2, name(99)) == (2, name(3))


def test_a_walk_may_start_at_an_event() -> None:
    assert walk(filled(9), At(name(4))).advance(2, name(99)) == (2, name(5))


@given(st.integers(1, 200), st.integers(1, 30), st.integers(0, 220))
def test_split_points_cut_into_the_sizes_asked(events: int, pieces: int, bound: int) -> None:
    pieces, bound = min(pieces, events), min(bound, events - 1)
    sizes = block_sizes(bound + 1, min(pieces, bound + 1))
    cuts = split_points(walk(filled(events)), name(bound), sizes)
    ends = [sum(sizes[: i + 1]) - 1 for i in range(len(sizes) - 1)]
    assert cuts == [name(end) for end in ends]


@pytest.mark.parametrize("most", [2, 8, 4096])
@pytest.mark.parametrize("events", [0, 1, 7, 64, 1000])
def test_sample_counts_all_and_remembers_few(monkeypatch: pytest.MonkeyPatch, most: int, events: int) -> None:
    monkeypatch.setattr(offset_counting, "MAX_SAMPLES", most)
    count, samples = sample(walk(filled(events)), name(10**5))
    assert count == events
    assert len(samples) < most
    assert samples == sorted(set(samples))
    if samples:
        step = int(samples[0][1:]) + 1
        assert samples == [name(step * (i + 1) - 1) for i in range(len(samples))]
        assert step * (len(samples) + 1) > events
