"""Offsets that are numbers: counts, limits and splits without a question to the peer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import OptionError, PositionLost
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST, After, At, Position
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.offset_counting import NumericWalk, events_between, split_points
from tests.examples import examples
from tests.spark.fake_client import FakeLog, FakePartition, digits, name
from tests.spark.fake_query import Query, everything

positions = st.one_of(
    st.just(EARLIEST), st.integers(0, 40).flatmap(lambda n: st.sampled_from([At(digits(n)), After(digits(n))]))
)


def held(first: int, end: int) -> FakePartition:
    partition = FakePartition(digits)
    partition.append(end)
    partition.truncate(first)
    return partition


@given(st.integers(0, 40), st.integers(0, 40), positions, st.integers(0, 39))
def test_a_count_is_what_is_there(first: int, more: int, start: Position, end: int) -> None:
    log = held(first, first + more)
    end = min(end, max(first + more - 1, 0))  # an end that the log has
    earliest = digits(first) if more else None
    assert events_between(start, digits(end), earliest) == len(log.offsets(start, digits(end)))


@given(st.integers(0, 40), st.integers(1, 40), positions, st.lists(st.integers(1, 9), max_size=6), st.integers(0, 90))
def test_a_walk_goes_where_a_walk_over_events_goes(
    first: int, more: int, start: Position, steps: list[int], bound: int
) -> None:
    there = held(first, first + more).offsets(start)
    walk, bound = NumericWalk(start, lambda: digits(first)), min(bound, first + more - 1)
    for step in steps:
        expected = [o for o in there[:step] if o <= digits(bound)]
        there = there[len(expected) :]
        before = walk.position
        assert walk.advance(step, digits(bound)) == (len(expected), expected[-1] if expected else None)
        assert walk.position == (After(expected[-1]) if expected else before)


def test_the_largest_offset_is_exact() -> None:
    top = 2**63 - 1
    assert events_between(After(digits(top - 3)), digits(top), digits(0)) == 3
    assert NumericWalk(After(digits(top - 3)), lambda: digits(0)).advance(2, digits(top)) == (2, digits(top - 1))


def test_a_walk_that_retention_overtakes_goes_on_with_what_is_left() -> None:
    earliest = digits(0)
    walk = NumericWalk(EARLIEST, lambda: earliest)
    assert walk.advance(5, digits(99)) == (5, digits(4))
    earliest = digits(50)
    assert walk.advance(5, digits(99)) == (5, digits(54))


def test_split_points_of_a_walk_over_numbers() -> None:
    assert split_points(NumericWalk(EARLIEST, lambda: digits(3)), digits(12), [4, 3, 3]) == [digits(6), digits(9)]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 9), st.integers(1, 12))
def test_min_partitions_without_a_question(one: int, two: int, removed: int, tasks: int) -> None:
    log = FakeLog("0", "1", numeric=True)
    log.partitions["0"].append(one)
    log.partitions["1"].append(two)
    log.partitions["0"].truncate(removed)
    options = parse_source({"url": "amqp://h", "stream": "orders", "minPartitions": str(tasks)}, streaming=False)
    planned = plan_batch(options, ("offset",), log.connect)
    events = [o for r in planned for o in log.partitions[r.read.partition].offsets(r.read.start, r.read.end)]
    left = [max(0, one - removed), two]
    assert sorted(events) == sorted([digits(n) for n in range(removed, one)] + [digits(n) for n in range(two)])
    ranges = sum(1 for count in left if count)
    assert len(planned) == max(ranges, min(tasks, sum(left)))
    assert (log.counted, log.walked) == (0, 0)


@pytest.mark.parametrize("partitions", [{"0": 10}, {"0": 30, "1": 10}])
def test_shares_of_tasks_are_in_proportion(partitions: dict[str, int]) -> None:
    log = FakeLog(*partitions, numeric=True)
    for p, count in partitions.items():
        log.partitions[p].append(count)
    options = parse_source({"url": "amqp://h", "stream": "orders", "minPartitions": "8"}, streaming=False)
    planned = plan_batch(options, ("offset",), log.connect)
    total = sum(partitions.values())
    for p, count in partitions.items():
        assert len([r for r in planned if r.read.partition == p]) == 8 * count // total


def test_a_peer_may_let_only_some_tasks_read_a_partition() -> None:
    log = FakeLog("0", "1", numeric=True)
    log.max_readers = 5
    log.partitions["0"].append(99)
    log.partitions["1"].append(2)

    def planned(tasks: int) -> list[int]:
        options = parse_source({"url": "amqp://h", "stream": "orders", "minPartitions": str(tasks)}, streaming=False)
        reads = [each.read.partition for each in plan_batch(options, ("offset",), log.connect)]
        return [reads.count("0"), reads.count("1")]

    assert planned(4) == [3, 1]
    assert planned(10) == [5, 1], "as many as may be, although the other partition has too few events"
    with pytest.raises(OptionError, match=r"'minPartitions': 11 tasks are too many for 2 partitions: .* up to 10"):
        planned(11)


@pytest.mark.parametrize(("events", "removed"), [(0, 0), (5, 0), (5, 5)])
def test_the_number_that_the_next_event_will_get_is_a_start(events: int, removed: int) -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(events)
    log.partitions["0"].truncate(removed)
    query = Query(log, startingOffsets=f'{{"0": {{"at": "{digits(events)}"}}}}')
    assert query.batch() == 0
    log.partitions["0"].append(2)
    query.restart()
    assert query.batch() == 2
    assert query.rows == everything(log)[events:]


def test_a_node_that_is_behind_does_not_say_what_is_there() -> None:
    log = FakeLog("0", numeric=True)
    log.partitions["0"].append(10)
    log.behind = 4
    starting = {"startingOffsets": f'{{"0": {{"at": "{digits(8)}"}}}}'}
    query = Query(log, **starting)
    assert query.batch() == 2, "its leader was asked"
    query.clock.now += 1
    assert query.batch() == -1
    ending = {"endingOffsets": f'{{"0": {{"after": "{digits(9)}"}}}}'}
    options = parse_source({"url": "amqp://h", "stream": "orders", **starting, **ending}, streaming=False)
    (planned,) = plan_batch(options, ("offset",), log.connect)
    assert (planned.read.start, planned.read.end) == (At(digits(8)), digits(9))


@pytest.mark.parametrize(("numeric", "start"), [(True, digits(6)), (True, digits(7)), (False, name(5))])
def test_a_start_beyond_it_is_a_loss(numeric: bool, start: str) -> None:
    log = FakeLog("0", numeric=numeric)
    log.partitions["0"].append(5)
    query = Query(log, startingOffsets=f'{{"0": {{"at": "{start}"}}}}')
    with pytest.raises(PositionLost, match=r"to '[e0]*4': the log was created again"):
        query.batch()
