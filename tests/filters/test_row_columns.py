"""What references mean in rows: the lookups over batches against straightforward Python over the same rows."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import FilterError
from spark_streams.filters.evaluate_many import ColumnLookup
from spark_streams.filters.row_columns import columns_needed, feed_columns, message_columns
from spark_streams.filters.tree import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    Not,
    Operator,
    Predicate,
    Reference,
    all_of,
    any_of,
    property_of,
)
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA, PROPERTIES_TYPE
from tests.examples import examples

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
FIELDS = [PROPERTIES_TYPE.field(i).name for i in range(PROPERTIES_TYPE.num_fields)]


def instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def ms(value: datetime | None) -> int | None:
    return None if value is None else (value - EPOCH) // timedelta(milliseconds=1)


def of_message(row: dict[str, Any], reference: Reference) -> str | int | None:
    """What the documentation says, one row at a time."""
    properties = row["properties"] or {}
    if reference == EVENT_TIME:
        return ms(properties.get("creation_time")) or None
    if reference == PUBLISH_TIME:
        return ms(row["timestamp"])
    if reference == BODY_SIZE:
        return None if row["value"] is None else len(row["value"])
    if reference in (KEY, PARTITION, OFFSET):
        return row[reference.kind.name.lower()]
    section, _, name = (reference.name or "").partition(".")
    if section == "properties":
        value = properties.get(name)
        if isinstance(value, datetime):
            return str(ms(value))
        return None if value is None else str(value)
    if section not in ("application_properties", "message_annotations"):
        section, name = "application_properties", reference.name or ""
    return dict(row[section] or []).get(name)


def answers(lookup: ColumnLookup, reference: Reference) -> list[str | int | None]:
    found = lookup(reference).to_pylist()
    return [str(each) if reference.name and isinstance(each, int) else each for each in found]


words = st.text(st.sampled_from("ab.\0é\U0001f600"), max_size=3)
names = st.one_of(st.sampled_from(["a", "b", "ab", "", "type"]), words)
maps = st.one_of(
    st.none(), st.dictionaries(names, st.one_of(st.none(), words), max_size=4).map(lambda d: list(d.items()))
)
times = st.one_of(
    st.none(), st.just(EPOCH), st.integers(-(10**14), 10**14).map(instant), st.integers(-5, 1005).map(instant)
)
properties = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "message_id": st.one_of(st.none(), words),
            "user_id": st.one_of(st.none(), st.binary(max_size=2)),
            "subject": st.one_of(st.none(), words),
            "absolute_expiry_time": times,
            "creation_time": times,
            "group_sequence": st.one_of(st.none(), st.integers(0, 2**32 - 1)),
        }
    ).map(lambda fields: {name: fields.get(name) for name in FIELDS}),
)


def rows_with(application: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "value": st.one_of(st.none(), st.binary(max_size=5)),
            "key": st.one_of(st.none(), words),
            "stream": st.just("orders"),
            "partition": st.just("0"),
            "offset": st.integers(0, 2**64 - 1).map("{:020d}".format),
            "timestamp": times,
            "properties": properties,
            "application_properties": application,
            "message_annotations": maps,
        }
    )


tables = st.one_of(
    st.lists(rows_with(maps), max_size=6),
    # The same keys in every row, as producers do it.
    st.lists(names, max_size=3, unique=True).flatmap(
        lambda keys: st.lists(
            rows_with(st.tuples(*(st.tuples(st.just(key), st.one_of(st.none(), words)) for key in keys)).map(list)),
            max_size=6,
        )
    ),
)
references = st.one_of(
    st.sampled_from([EVENT_TIME, PUBLISH_TIME, KEY, PARTITION, OFFSET, BODY_SIZE]),
    names.map(property_of),
    names.map("application_properties.{}".format).map(property_of),
    names.map("message_annotations.{}".format).map(property_of),
    st.sampled_from([name for name in FIELDS if name != "user_id"]).map("properties.{}".format).map(property_of),
)


@settings(max_examples=examples(300), deadline=None)
@given(rows=tables, asked=st.lists(references, min_size=1, max_size=4), cut=st.integers(0, 3))
def test_messages(rows: list[dict[str, Any]], asked: list[Reference], cut: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA).slice(cut)
    lookup = message_columns(batch)
    for reference in asked:
        assert answers(lookup, reference) == [of_message(row, reference) for row in rows[cut:]]


def predicate(reference: Reference) -> Predicate:
    return Predicate(reference, Operator.IS_NULL)


@settings(max_examples=examples(100), deadline=None)
@given(rows=tables, reference=references)
def test_the_columns_needed_are_enough(rows: list[dict[str, Any]], reference: Reference) -> None:
    needed = columns_needed(predicate(reference))
    batch = pa.RecordBatch.from_pylist(rows, schema=MESSAGE_SCHEMA).select(list(needed))
    assert answers(message_columns(batch), reference) == [of_message(row, reference) for row in rows]


def test_columns_needed() -> None:
    asked = [predicate(property_of("x")), Not(predicate(BODY_SIZE)), any_of([predicate(EVENT_TIME), predicate(KEY)])]
    assert columns_needed(all_of(asked)) == ("value", "key", "properties", "application_properties")
    assert columns_needed(all_of(asked), feed=True) == ("value", "key", "timestamp")
    assert columns_needed(predicate(property_of("message_annotations.x"))) == ("message_annotations",)
    assert columns_needed(predicate(property_of("properties.x")), feed=True) == ("value",)
    assert columns_needed(predicate(property_of("key"))) == ("application_properties",)
    assert [columns_needed(predicate(r)) for r in (PUBLISH_TIME, OFFSET, PARTITION)] == [
        ("timestamp",),
        ("offset",),
        ("partition",),
    ]


@pytest.mark.parametrize(
    ("name", "feed", "reason"),
    [
        ("properties.user_id", False, "properties.user_id is bytes, which no value of a filter can equal"),
        ("properties.subjekt", False, "no field 'subjekt': expected one of message_id, to, subject"),
        ("properties.", False, "expected a name after properties."),
        ("/a~2", True, "no JSON pointer"),
    ],
)
def test_references_that_rows_cannot_have(name: str, feed: bool, reason: str) -> None:
    with pytest.raises(FilterError, match=reason) as fault:
        columns_needed(predicate(property_of(name)), feed)
    assert fault.value.text == name


# --- feeds


def feed_batch(events: list[Any]) -> pa.RecordBatch:
    values = [event if isinstance(event, bytes) else json.dumps(event, ensure_ascii=False).encode() for event in events]
    rows = [{"value": value, "partition": "3", "timestamp": instant(-1500)} for value in values]
    return pa.RecordBatch.from_pylist(rows, schema=COMMON_SCHEMA)


def member(event: Any, name: str) -> str | None:
    found = event.get(name) if isinstance(event, dict) else None
    if found is None or isinstance(found, str):
        return found
    return json.dumps(found, separators=(",", ":"))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from([0.5, 1e300]), words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "0"]), inner, max_size=2)
    ),
    max_leaves=4,
)
member_names = st.sampled_from(["a", "0", "a/b", "~1", "é", ""])
objects = st.dictionaries(member_names, json_values, max_size=4)


@settings(max_examples=examples(300), deadline=None)
@given(
    events=st.one_of(st.lists(objects, max_size=4), st.lists(st.one_of(objects, json_values), max_size=4)),
    name=member_names,
)
def test_members_of_feed_events(events: list[Any], name: str) -> None:
    found = feed_columns(feed_batch(events))(property_of(name)).to_pylist()
    # Nested texts are JSON too, and may be escaped in another way.
    expected = [member(event, name) for event in events]
    for event, mine, theirs in zip(events, found, expected, strict=True):
        if isinstance(event, dict) and isinstance(event.get(name), (list, dict)):
            assert mine is not None and theirs is not None and json.loads(mine) == json.loads(theirs)
        else:
            assert mine == theirs


@given(st.lists(st.fixed_dictionaries({"a": st.sampled_from(["x", "\U0001f600", "", None])}), min_size=1, max_size=4))
def test_members_that_are_texts(events: list[dict[str, str | None]]) -> None:
    assert feed_columns(feed_batch(events))(property_of("a")).to_pylist() == [event["a"] for event in events]


def test_feed_rows() -> None:
    batch = feed_batch([{"a": {"b": 1.50}}, b'{"a":{"b":1.50}}', b" [1]", "text", b"", b"{"])
    lookup = feed_columns(batch)
    assert lookup(property_of("/a/b")).to_pylist() == ["1.5", "1.50", None, None, None, None]
    assert lookup(property_of("0")).to_pylist() == [None] * 6
    assert lookup(property_of("/0")).to_pylist() == [None, None, "1", None, None, None]
    assert lookup(EVENT_TIME).to_pylist() == lookup(PUBLISH_TIME).to_pylist() == [-2] * 6
    assert lookup(BODY_SIZE).to_pylist() == [17, 16, 4, 6, 0, 1]
    assert lookup(KEY).to_pylist() == [None] * 6
    assert lookup(PARTITION).to_pylist() == ["3"] * 6
