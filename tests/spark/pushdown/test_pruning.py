"""Option ``filter`` on the driver's side: ranges that need no task, what is counted, what is logged; without Spark."""

from __future__ import annotations

import logging
import pickle
import sys
import types

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.client.log_client import Pushdown, RangeRead
from spark_streams.errors import PositionLost
from spark_streams.filters import parse
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.position import EARLIEST, After, At
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.feed.reader import FeedSource
from spark_streams.spark.pushdown.pruning import can_match
from spark_streams.spark.pushdown.spark_filters import filter_line
from spark_streams.spark.schemas import spark_schema
from spark_streams.spark.source import reader
from spark_streams.spark.source.batch_plan import plan_batch
from spark_streams.spark.source.task import read_range
from tests.examples import examples
from tests.spark.fake_client import FakeLog, FakePartition, digits, name
from tests.spark.fake_query import Query


def ranged(text: str, start: object = EARLIEST, end: str = name(9), partition: str = "0") -> RangeRead:
    assert isinstance(start, (type(EARLIEST), At, After))
    return RangeRead("orders", partition, start, end, ("offset",), filter=parse(text))


@pytest.mark.parametrize(
    ("text", "start", "can"),
    [
        ("key = 'a'", EARLIEST, True),
        ("partition = '0'", EARLIEST, True),
        ("partition = '1'", EARLIEST, False),
        ("partition <> '0'", EARLIEST, False),
        ("partition IN ('1', '0')", EARLIEST, True),
        ("partition LIKE '1%'", EARLIEST, False),
        ("partition IS NULL", EARLIEST, False),
        ("NOT partition = '0'", EARLIEST, False),
        ("partition = '1' AND key = 'a'", EARLIEST, False),
        ("partition = '1' OR key = 'a'", EARLIEST, True),
        ("NOT (partition = '0' OR key = 'a')", EARLIEST, False),
        ("NOT (partition = '0' AND key = 'a')", EARLIEST, True),
        (f"offset > '{name(9)}'", EARLIEST, False),
        (f"offset >= '{name(9)}'", EARLIEST, True),
        (f"offset = '{name(9)}'", EARLIEST, True),
        (f"offset = '{name(10)}'", EARLIEST, False),
        (f"offset = '{name(3)}'", After(name(3)), False),
        (f"offset = '{name(3)}'", At(name(3)), True),
        (f"offset < '{name(3)}'", At(name(3)), False),
        (f"offset <= '{name(3)}'", At(name(3)), True),
        (f"offset <= '{name(3)}'", After(name(3)), False),
        (f"offset < '{name(5)}'", After(name(3)), True),
        (f"offset BETWEEN '{name(10)}' AND '{name(12)}'", EARLIEST, False),
        (f"offset BETWEEN '{name(0)}' AND '{name(3)}'", After(name(3)), False),
        (f"offset BETWEEN '{name(0)}' AND '{name(3)}'", At(name(3)), True),
        (f"offset IN ('{name(1)}', '{name(10)}')", After(name(3)), False),
        (f"offset NOT IN ('{name(3)}', '{name(9)}')", At(name(3)), True),
        (f"NOT offset > '{name(3)}'", After(name(3)), False),
        (f"offset <> '{name(3)}'", EARLIEST, True),
        ("offset LIKE 'x%'", EARLIEST, True),
        ("offset > 12", EARLIEST, True),
    ],
)
def test_ranges_that_can_match(text: str, start: object, can: bool) -> None:
    assert can_match(ranged(text, start), numeric=False) is can


@pytest.mark.parametrize(
    ("text", "can"),
    [
        ("offset > 8", True),
        ("offset > 9", False),
        ("offset >= 9.5", False),
        ("offset >= 8.5", True),
        ("offset <= 3", False),
        ("offset < 4", False),
        ("NOT offset >= 3.5", False),
        ("offset < 5", True),
        ("offset IN (1, 2)", False),
        ("offset NOT IN (1, 2)", True),
        ("offset NOT IN (4, 9)", True),
        ("offset NOT IN (4, 5, 6, 7, 8, 9)", False),
        ("offset BETWEEN 5 AND 6", True),
        (f"offset > '{digits(9)}'", False),
    ],
)
def test_numbers_are_compared_as_numbers(text: str, can: bool) -> None:
    """The events are 4 to 9."""
    assert can_match(ranged(text, After(digits(3)), digits(9)), numeric=True) is can


offsets = st.integers(0, 12).map(name) | st.sampled_from(["", "e", "e0000005x", "z"])
atoms = st.one_of(
    st.builds("offset {} '{}'".format, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), offsets),
    st.builds("offset BETWEEN '{}' AND '{}'".format, offsets, offsets),
    st.builds("offset NOT IN ('{}', '{}')".format, offsets, offsets),
    st.builds("offset IN ('{}', '{}')".format, offsets, offsets),
    st.builds("partition {} '{}'".format, st.sampled_from(["=", "<>", ">="]), st.sampled_from(["0", "1"])),
    st.builds("key = '{}'".format, st.integers(0, 9)),
    st.just("missing = 'x'"),
)
texts = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({}) AND ({})".format, inner, inner),
        st.builds("({}) OR ({})".format, inner, inner),
        inner.map("NOT ({})".format),
    ),
    max_leaves=5,
)


@settings(max_examples=examples(500), deadline=None)
@given(text=texts, start=st.integers(-1, 9), inclusive=st.booleans(), end=st.integers(0, 9))
def test_nothing_that_matches_is_left_out(text: str, start: int, inclusive: bool, end: int) -> None:
    held = FakePartition()
    held.append(10)
    begin = EARLIEST if start < 0 else (At if inclusive else After)(name(start))
    read = ranged(text, begin, name(end))
    assert read.filter is not None
    matching = held.matching(held.offsets(read.start, read.end), read.filter, "0")
    if not can_match(read, numeric=False):
        assert matching == []


LITERAL = 9_065_425_643_520_960_000  # as a float it is another number, whose shortest decimal is this one
BASES = (0, 2**53 - 4, LITERAL - 4, 2**63 - 14)
close = st.builds(lambda base, more: str(base + more), st.sampled_from(BASES), st.integers(-2, 13))
far = st.sampled_from(["-1e308", "-9223372036854775808", "-0.5", "-0.0", "5e-324", "9.06542564352096e18", "1e308"])
halves = st.integers(-1, 12).map("{}.5".format)
whole = st.sampled_from(["offset = {}", "offset <> {}", "offset < {}", "offset <= {}", "offset > {}", "offset >= {}"])
numbers = close | far | halves
numeric_atoms = st.one_of(
    st.builds(str.format, whole, numbers),
    st.builds("offset IN ({}, {})".format, close, close),
    st.builds("offset NOT IN ({}, {})".format, halves, halves),
    st.builds("offset BETWEEN {} AND {}".format, close, close),
)


@example("offset = 9.06542564352096e18", LITERAL - 4, 0, True, 9)
@settings(max_examples=examples(500), deadline=None)
@given(
    text=numeric_atoms | st.builds("NOT ({} OR {})".format, numeric_atoms, numeric_atoms),
    base=st.sampled_from(BASES),
    start=st.integers(-1, 9),
    inclusive=st.booleans(),
    end=st.integers(0, 9),
)
def test_no_number_that_matches_is_left_out(text: str, base: int, start: int, inclusive: bool, end: int) -> None:
    begin = EARLIEST if start < 0 else (At if inclusive else After)(digits(base + start))
    read = ranged(text, begin, digits(base + end))
    expression = read.filter
    assert expression is not None
    held = range(base + max(0, start + (not inclusive)), base + end + 1)
    if not can_match(read, numeric=True):
        assert not any(evaluate(expression, lambda _, n=n: digits(n)) for n in held)


# --- plans


def filled(*partitions: str, numeric: bool = False) -> FakeLog:
    log = FakeLog(*partitions, numeric=numeric)
    for held in log.partitions.values():
        held.append(10)
    return log


def options(**more: str):
    return parse_source({"url": "amqp://h", "stream": "orders", **more}, streaming=False)


def rows(log: FakeLog, **more: str) -> list[tuple[str, str]]:
    parsed = options(**more)
    schema = pa.schema([("partition", pa.string()), ("offset", pa.string())])
    found = []
    for planned in plan_batch(parsed, ("partition", "offset"), log.connect):
        for batch in read_range(parsed, pickle.loads(pickle.dumps(planned)), schema, log.connect):
            assert batch.num_rows
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return found


def test_a_batch_reads_what_matches() -> None:
    log = filled("0", "1")
    both = [("0", name(3)), ("1", name(3))]
    assert rows(log, filter="key = '3'") == both
    assert rows(log, filter="n > 2.5 AND n < 4") == both
    assert rows(log, filter="key = '3'", minPartitions="7") == both
    assert rows(log, filter="key = 'x'") == []
    ends = f'{{"0": {{"at": "{name(4)}"}}, "1": "latest"}}'
    assert rows(log, filter="key = '3' OR key = '4'", endingOffsets=ends) == [*both, ("1", name(4))]


def test_what_cannot_match_needs_no_task() -> None:
    log = filled("0", "1")
    assert [p.read.partition for p in plan_batch(options(filter="partition = '1'"), ("offset",), log.connect)] == ["1"]
    given = options(filter=f"partition = '1' AND offset > '{name(7)}'", minPartitions="5")
    (planned,) = plan_batch(given, ("offset",), log.connect)
    assert planned.read.start == After(name(7))
    assert plan_batch(options(filter=f"offset > '{name(9)}'"), ("offset",), log.connect) == []
    assert log.fetched == 0
    assert rows(log, filter=f"offset > '{name(8)}'") == [("0", name(9)), ("1", name(9))]


def test_a_stream_reads_what_matches_and_counts_what_does_not() -> None:
    log = filled("0")
    query = Query(log, startingOffsets="earliest", filter="key = '3' OR key = '8'")
    assert query.drain(limit=4) == [1, 0, 1]
    log.partitions["0"].append(10)
    query.restart()
    assert query.drain(limit=5) == [1, 1]
    assert query.rows == [("0", name(n)) for n in (3, 8, 13, 18)]


def test_another_filter_after_a_restart_reads_on_where_the_first_ended() -> None:
    log = filled("0")
    query = Query(log, startingOffsets="earliest", filter="key = '3'")
    assert query.drain() == [1]
    query.options["filter"] = "key = '4'"
    query.restart()
    assert query.drain() == []
    log.partitions["0"].append(10)
    assert query.drain() == [1]
    assert query.rows == [("0", name(3)), ("0", name(14))]


def test_lost_events_are_a_loss_though_they_might_not_have_matched() -> None:
    log = filled("0")
    query = Query(log, startingOffsets="earliest", filter="key = 'x'")
    assert query.batch(5) == 0
    log.partitions["0"].truncate(8)
    with pytest.raises(PositionLost):
        query.batch()


# --- the log line


LABEL = "feedapi stream 'orders'"


def test_the_line_says_what_is_pushed_and_what_is_left() -> None:
    whole = parse("a = '1' AND b = '2'")
    assert filter_line(LABEL, whole, Pushdown("a in '1'", parse("b = '2'"))) == (
        "feedapi stream 'orders': filter a = '1' AND b = '2': pushed: a in '1'; checked by the tasks: b = '2'"
    )
    assert filter_line(LABEL, whole, Pushdown(None, whole)).endswith(
        "pushed: nothing; checked by the tasks: a = '1' AND b = '2'"
    )
    assert filter_line(LABEL, whole, Pushdown("x", None)).endswith("pushed: x; checked by the tasks: nothing")
    many = parse(f"a IN ({', '.join(str(n) for n in range(1000))})")
    assert len(filter_line(LABEL, many, Pushdown("x" * 5000, many))) < 4000


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.INFO, "spark_streams.spark.filter")
    return caplog.messages


def test_a_query_logs_it_once(lines: list[str]) -> None:
    log = filled("0")
    query = Query(log, startingOffsets="earliest", filter="key = '3'")
    query.drain(limit=4)
    query.restart()
    log.partitions["0"].append(1)
    query.drain()
    assert log.asked_pushdown == 2, "once for each start"
    rows(log, filter="key = '3'")
    assert log.asked_pushdown == 3
    rows(log)
    Query(log, startingOffsets="earliest").drain()
    assert log.asked_pushdown == 3


# --- which reader Spark gets


def readers(pushdown: str) -> list[object]:
    log = FakeLog()
    given = options(pushdown=pushdown, filter="a = 1")
    feed = parse_feed_source({"url": "http://h/x", "pushdown": pushdown, "filter": "a = 1"}, streaming=False)
    return [
        reader.batch_reader(given, spark_schema(MESSAGE_SCHEMA), MESSAGE_SCHEMA, reader.LogSource(log.connect)),
        reader.batch_reader(feed, spark_schema(COMMON_SCHEMA), COMMON_SCHEMA, FeedSource()),
    ]


def takes_filters(made: object) -> bool:
    from pyspark.sql.datasource import DataSourceReader

    base = getattr(DataSourceReader, "pushFilters", None)
    return getattr(getattr(made, "pushFilters", None), "__func__", None) is not base


def test_a_reader_takes_filters_where_spark_hands_them_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Anywhere else Spark fails a reader that has ``pushFilters``."""
    assert not any(takes_filters(made) for made in readers("false"))
    assert caplog.messages == []
    assert not any(takes_filters(made) for made in readers("true"))
    assert len(caplog.messages) == 2 and "spark.sql.python.filterPushdown.enabled" in caplog.messages[0]
    worker = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, worker, types.ModuleType(worker))
    assert not any(takes_filters(made) for made in readers("false"))
    pushed_to = readers("true")
    assert all(takes_filters(made) for made in pushed_to)
    assert len(caplog.messages) == 2
    for made in pushed_to:
        assert made.pushFilters([]) == []  # type: ignore[attr-defined]
