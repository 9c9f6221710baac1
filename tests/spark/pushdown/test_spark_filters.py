"""Filters that Spark pushes: what we take and what we give back are together what Spark means."""

from __future__ import annotations

import logging
import sys
from datetime import date, datetime, timedelta, timezone
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_streams.filters import KEY, Operator, Predicate, ValueType, parse, to_text
from spark_streams.filters.evaluate_many import mask
from spark_streams.filters.row_columns import feed_columns, message_columns
from spark_streams.options.amqp_events import parse_source
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA
from spark_streams.spark.pushdown.spark_filters import push, translate, translated_columns, wants_filters
from tests.examples import examples

sql = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(sql, "EqualTo"):
    pytest.skip("Spark before 4.1 pushes no filters", allow_module_level=True)

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TEXTS = [
    "",
    "a",
    "A",
    "b",
    "ab",
    "a%",
    "a_",
    "%",
    "_",
    "it's",
    '"',
    "\\",
    "a\\b",
    "é",
    "\uffee",
    "𝄞",
    ";",
    "&",
    "0",
    "3.0",
]
TEXTS += ["3", "x\ny", " a", "NaN", "NULL", "\0", "e000001", "e000002"]
MILLISECONDS = [0, 1, -1, 2, 1_000, -1_000, -386_380_800_000, 253_402_300_799_999, -62_135_596_800_000]
NUMBERS = [0, 1, -1, 3, 2**63 - 1, -(2**63)]

texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=3))
instants = st.sampled_from(MILLISECONDS)
sections = st.fixed_dictionaries(
    {
        "subject": st.none() | texts,
        "group_sequence": st.none() | st.sampled_from(NUMBERS),
        "creation_time": st.none() | instants.map(lambda ms: ms * 1000),
        "user_id": st.none() | st.binary(max_size=2),
    }
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.just(b"{}"),
            "key": st.none() | texts,
            "partition": st.sampled_from(["0", "1"]),
            "offset": st.sampled_from(["e000001", "e000002", "e000003"]),
            "timestamp": st.none() | instants.map(lambda ms: ms * 1000),
            "properties": st.none() | sections,
        }
    ),
    min_size=1,
    max_size=8,
)

moments = st.builds(
    lambda ms, us: EPOCH + timedelta(milliseconds=ms, microseconds=us),
    instants,
    st.sampled_from([0, 1, 999]),
)
PATHS = {
    ("key",): texts,
    ("partition",): st.sampled_from(["0", "1", "2"]),
    ("offset",): st.sampled_from(["e000001", "e000002", "e0000015", ""]),
    ("stream",): texts,
    ("value",): st.binary(max_size=2),
    ("timestamp",): moments,
    ("properties", "subject"): texts,
    ("properties", "group_sequence"): st.sampled_from(NUMBERS),
    ("properties", "creation_time"): moments,
    ("properties", "user_id"): st.binary(max_size=2),
}
STRINGS = [path for path in PATHS if path not in ((("timestamp",)), ("properties", "creation_time"))]
COMPARISONS = [
    sql.EqualTo, sql.EqualNullSafe, sql.GreaterThan, sql.GreaterThanOrEqual, sql.LessThan, sql.LessThanOrEqual,
]  # fmt: skip
PATTERNS = [sql.StringStartsWith, sql.StringEndsWith, sql.StringContains]


@st.composite
def leaves(draw: Any) -> Any:
    """One filter without NOT, of the types that Spark would use."""
    path = draw(st.sampled_from(list(PATHS)))
    value = PATHS[path]
    kind = draw(st.sampled_from(["comparison", "in", "null", "pattern", "other"]))
    if kind == "comparison":
        return draw(st.sampled_from(COMPARISONS))(path, draw(value))
    if kind == "in":
        return sql.In(path, tuple(draw(st.lists(st.none() | value, max_size=3))))
    if kind == "null":
        return draw(st.sampled_from([sql.IsNull, sql.IsNotNull]))(draw(st.sampled_from([path, ("properties",)])))
    if kind == "pattern":
        return draw(st.sampled_from(PATTERNS))(
            draw(st.sampled_from([("key",), ("properties", "subject")])), draw(texts)
        )
    return draw(st.sampled_from([sql.EqualNullSafe, sql.EqualTo]))(path, None)


filters = st.lists(st.one_of(leaves(), leaves().map(sql.Not)), max_size=4)


def cell(row: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = {"stream": "orders", **row}
    for name in path:
        value = None if value is None else value[name]
    return value


def comparable(value: Any) -> Any:
    """What Spark compares: UTF-8 bytes, microseconds, numbers, bytes."""
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    return value.encode() if isinstance(value, str) else value


def spark(condition: Any, row: dict[str, Any]) -> bool | None:
    """What Spark says of a row, by its own rules for null; written from its documentation, not from our code."""
    if isinstance(condition, sql.Not):
        inner = spark(condition.child, row)
        return None if inner is None else not inner
    found = comparable(cell(row, condition.attribute))
    if isinstance(condition, sql.IsNull):
        return found is None
    if isinstance(condition, sql.IsNotNull):
        return found is not None
    if isinstance(condition, sql.In):
        if found is None:
            return None if condition.value else False
        if any(v is not None and comparable(v) == found for v in condition.value):
            return True
        return None if None in condition.value else False
    value = comparable(condition.value)
    if isinstance(condition, sql.EqualNullSafe):
        return found == value
    if found is None or value is None:
        return None
    answers = {
        sql.EqualTo: lambda: found == value,
        sql.GreaterThan: lambda: found > value,
        sql.GreaterThanOrEqual: lambda: found >= value,
        sql.LessThan: lambda: found < value,
        sql.LessThanOrEqual: lambda: found <= value,
        sql.StringStartsWith: lambda: found.startswith(value),
        sql.StringEndsWith: lambda: found.endswith(value),
        sql.StringContains: lambda: value in found,
    }
    return bool(answers[type(condition)]())


def options(**more: str) -> Any:
    return parse_source({"url": "amqp://h", "stream": "orders", **more}, streaming=False)


def batch_of(events: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([event.get(field.name) for event in events], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def passing(events: list[dict[str, Any]], conditions: list[Any]) -> list[bool]:
    return [all(spark(condition, event) is True for condition in conditions) for event in events]


@settings(max_examples=examples(600), deadline=None)
@given(events=rows, conditions=filters, message=st.booleans())
def test_what_is_taken_and_what_is_given_back_are_the_whole(events: list, conditions: list, message: bool) -> None:
    if not message:
        conditions = [c for c in conditions if getattr(c, "child", c).attribute[0] != "properties"]
        # A feed's times have microseconds.
        events = [{**e, "timestamp": None if e["timestamp"] is None else e["timestamp"] + 1} for e in events]
    read, left = push(options(), conditions, message=message)
    assert all(any(back is condition for condition in conditions) for back in left), "the very objects"
    batch = batch_of(events, MESSAGE_SCHEMA if message else COMMON_SCHEMA)
    kept = [True] * len(events)
    if read.filter is not None:
        lookup = message_columns(batch) if message else feed_columns(batch)
        kept = mask(read.filter, lookup, len(events)).to_pylist()
    after = [pushed and still for pushed, still in zip(kept, passing(events, left), strict=True)]
    assert after == passing(events, conditions)


@settings(max_examples=examples(300), deadline=None)
@given(conditions=filters)
def test_what_is_taken_can_be_said_in_text(conditions: list) -> None:
    """The log line and ``filter explain`` show it."""
    read, _ = push(options(), conditions, message=True)
    if read.filter is not None:
        assert parse(to_text(read.filter)) == read.filter


S = ("key",)
T = ("timestamp",)
G = ("properties", "group_sequence")
MOMENT = datetime(2020, 1, 1, 0, 0, 0, 1, timezone.utc)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (sql.EqualTo(S, "it's"), "key = 'it''s'"),
        (sql.Not(sql.EqualTo(S, "a")), "key <> 'a'"),
        (sql.EqualNullSafe(S, "a"), "key = 'a'"),
        (sql.EqualNullSafe(S, None), "key IS NULL"),
        (sql.Not(sql.EqualNullSafe(S, None)), "key IS NOT NULL"),
        (sql.Not(sql.EqualNullSafe(S, "a")), "key IS NULL OR key <> 'a'"),
        (sql.In(S, ("a", None, "b")), "key IN ('a', 'b')"),
        (sql.In(S, ("a",)), "key = 'a'"),
        (sql.Not(sql.In(S, ("a", "b"))), "key NOT IN ('a', 'b')"),
        (sql.IsNotNull(S), "key IS NOT NULL"),
        (sql.Not(sql.IsNull(S)), "key IS NOT NULL"),
        (sql.StringStartsWith(S, "a"), "key LIKE 'a%'"),
        (sql.StringEndsWith(S, "a"), "key LIKE '%a'"),
        (sql.Not(sql.StringContains(S, "a")), "key NOT LIKE '%a%'"),
        (sql.GreaterThan(("offset",), "x"), "offset > 'x'"),
        (sql.Not(sql.GreaterThan(("partition",), "x")), "partition <= 'x'"),
        (sql.LessThan(G, 2**63 - 1), "properties.group_sequence < 9223372036854775807"),
        (sql.GreaterThan(T, MOMENT), "publish_time > 1577836800000"),
        (sql.GreaterThanOrEqual(T, MOMENT), "publish_time >= 1577836800001"),
        (sql.LessThan(T, MOMENT), "publish_time < 1577836800001"),
        (sql.LessThanOrEqual(T, MOMENT), "publish_time <= 1577836800000"),
        (sql.LessThan(T, EPOCH - timedelta(microseconds=1)), "publish_time < 0"),
        (sql.GreaterThan(T, EPOCH - timedelta(microseconds=1)), "publish_time > -1"),
        (sql.EqualTo(T, MOMENT.replace(microsecond=1000)), "publish_time = 1577836800001"),
        (sql.EqualTo(("properties", "creation_time"), EPOCH), "properties.creation_time = 0"),
    ],
)
def test_translations(condition: Any, text: str) -> None:
    assert translate(condition, translated_columns()) == parse(text)


@pytest.mark.parametrize(
    "condition",
    [
        sql.EqualTo(S, None),
        sql.In(S, (None,)),
        sql.In(S, ()),
        sql.Not(sql.In(S, ("a", None))),
        sql.EqualTo(S, 5),
        sql.EqualTo(S, True),
        sql.EqualTo(S, "\ud800"),
        sql.In(S, ("a", 5)),
        sql.StringStartsWith(S, "50%"),
        sql.StringContains(S, "a_b"),
        sql.GreaterThan(G, 5.5),
        sql.EqualTo(G, float("nan")),
        sql.EqualTo(G, True),
        sql.EqualTo(G, 2**63),
        sql.EqualTo(T, MOMENT),
        sql.Not(sql.EqualTo(T, MOMENT)),
        sql.EqualTo(T, MOMENT.replace(tzinfo=None)),
        sql.EqualTo(T, date(2020, 1, 1)),
        sql.EqualTo(T, 5),
        sql.In(T, (EPOCH,)),
        sql.IsNull(T),
        sql.IsNotNull(T),
        sql.Not(sql.EqualNullSafe(T, EPOCH)),
        sql.IsNull(("properties",)),
        sql.EqualTo(("stream",), "orders"),
        sql.EqualTo(("value",), b"x"),
        sql.EqualTo(("properties", "user_id"), b"x"),
        sql.EqualTo(("properties", "subject", "x"), "a"),
        sql.EqualTo(("application_properties", "x"), "a"),
        sql.EqualTo(("KEY",), "a"),
        sql.Not(sql.Not(sql.EqualTo(S, "a"))),
    ],
)
def test_these_go_back_to_spark(condition: Any) -> None:
    assert translate(condition, translated_columns()) is None
    read, left = push(options(), [condition, sql.EqualTo(S, "a")], message=True)
    assert left[0] is condition and len(left) == 1
    assert read.filter == Predicate(KEY, Operator.EQUALS, ("a",), ValueType.STRING)


def test_feeds_take_only_what_their_rows_have() -> None:
    feed = translated_columns(message=False)
    assert translate(sql.EqualTo(S, "a"), feed) == parse("key = 'a'")
    assert translate(sql.GreaterThan(T, EPOCH), feed) is None
    assert translate(sql.EqualTo(("properties", "subject"), "a"), feed) is None


def test_times_stay_with_spark_where_a_row_may_show_null_for_one() -> None:
    condition = sql.GreaterThan(T, EPOCH)
    assert push(options(), [condition], message=True)[1] == []
    assert push(options(timestampOverflow="null"), [condition], message=True)[1] == [condition]


def test_what_the_option_says_stays() -> None:
    read, left = push(options(filter="a = '1'"), [sql.EqualTo(S, "x"), sql.IsNotNull(S)], message=True)
    assert (read.filter, left) == (parse("a = '1' AND key = 'x' AND key IS NOT NULL"), [])
    assert push(options(filter="a = '1'"), [], message=True) == (options(filter="a = '1'"), [])


def test_what_is_larger_than_the_language_takes_goes_back() -> None:
    many = sql.In(S, tuple(str(n) for n in range(1001)))
    half = sql.In(S, tuple(str(n) for n in range(600)))
    other = sql.In(("offset",), tuple(str(n) for n in range(600)))
    assert push(options(), [many], message=True)[1] == [many]
    read, left = push(options(), [half, other, sql.EqualTo(S, "1")], message=True)
    assert left == [other]
    assert read.filter is not None and to_text(read.filter).endswith("AND key = '1'")


@example(text="a\ud800")
@given(text=st.text(max_size=4))
def test_any_text_is_taken_or_given_back(text: str) -> None:
    for condition in (sql.EqualTo(S, text), sql.StringContains(S, text), sql.In(S, (text, "x"))):
        read, left = push(options(), [condition], message=True)
        assert (read.filter is None) == (left == [condition])


WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@pytest.mark.parametrize(("name", "wanted"), [(WORKER, True), ("pyspark.sql.worker.plan_data_source_read", False)])
def test_filters_are_wanted_in_the_program_that_hands_them_over(
    name: str, wanted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Elsewhere a reader with ``pushFilters`` would fail, so it has none and says so."""
    given = {"url": "amqp://h", "stream": "orders"}
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delitem(sys.modules, WORKER, raising=False)
    asking = parse_source({**given, "pushdown": "true"}, streaming=False)
    with caplog.at_level(logging.WARNING, "spark_streams"):
        assert wants_filters(asking) is wanted
        told = [record.getMessage() for record in caplog.records if record.name.startswith("spark_streams")]
        words = "amqp-events stream 'orders': option 'pushdown' has no effect"
        assert [text.startswith(words) for text in told] == [True] * (not wanted)
        monkeypatch.setitem(sys.modules, WORKER, ModuleType(WORKER))
        assert wants_filters(asking)
        assert not wants_filters(parse_source(given, streaming=False))


def test_filters_are_not_wanted_by_a_program_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.delitem(sys.modules, WORKER, raising=False)
    options = parse_source({"url": "amqp://h", "stream": "orders", "pushdown": "true"}, streaming=False)
    assert not wants_filters(options)
