"""The rest of a filter as a mask over the rows of a batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_streams.errors import FilterError
from spark_streams.filters.row_columns import rows_that_match, wanted_columns
from spark_streams.filters.tree import BODY_SIZE, KEY, Not, Operator, Predicate, ValueType, all_of, property_of
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA

TYPE = Predicate(property_of("type"), Operator.EQUALS, ("order",), ValueType.STRING)
LARGE = Predicate(BODY_SIZE, Operator.GREATER_THAN, (2,), ValueType.LONG)
NO_KEY = Predicate(KEY, Operator.IS_NULL)
ROWS = [
    {"value": b"aaa", "key": "1", "offset": "00", "application_properties": [("type", "order"), ("x", None)]},
    {"value": b"bbb", "key": "2", "offset": "01", "application_properties": [("type", "click")]},
    {"value": b"c", "key": None, "offset": "02", "application_properties": [("type", "order")]},
    {"value": b"ddd", "key": "4", "offset": "03", "application_properties": None},
    {"value": b"eee", "key": None, "offset": "04", "application_properties": [("type", "order")]},
]
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=MESSAGE_SCHEMA)


def test_columns_of_the_rows_come_first() -> None:
    assert wanted_columns(("offset", "value"), None) == ("offset", "value")
    assert wanted_columns(("offset",), all_of([LARGE, TYPE])) == ("offset", "value", "application_properties")
    assert wanted_columns(("value", "key"), LARGE) == ("value", "key")
    assert wanted_columns((), TYPE) == ("application_properties",)
    assert wanted_columns(("key",), TYPE, feed=True) == ("key", "value")
    with pytest.raises(FilterError, match="no field"):
        wanted_columns(("key",), Predicate(property_of("properties.x"), Operator.IS_NULL))


def test_rows_that_match() -> None:
    columns = ("offset", "value")
    given = BATCH.select(wanted_columns(columns, all_of([TYPE, LARGE])))
    found = rows_that_match(given, all_of([TYPE, LARGE]), columns)
    assert found.schema == pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
    assert found.to_pylist() == [{"offset": "00", "value": b"aaa"}, {"offset": "04", "value": b"eee"}]


def test_what_is_unknown_does_not_match_nor_does_its_negation() -> None:
    assert rows_that_match(BATCH, TYPE, ("offset",)).column(0).to_pylist() == ["00", "02", "04"]
    assert rows_that_match(BATCH, Not(TYPE), ("offset",)).column(0).to_pylist() == ["01"]


def test_all_columns_of_rows_that_match() -> None:
    columns = tuple(MESSAGE_SCHEMA.names)
    found = rows_that_match(BATCH, NO_KEY, columns)
    assert found.schema == MESSAGE_SCHEMA
    assert found.to_pylist() == [row for row in BATCH.to_pylist() if row["key"] is None]
    assert found.num_rows == 2


def test_all_rows_and_no_rows() -> None:
    everything = Predicate(property_of("none"), Operator.IS_NULL)
    assert rows_that_match(BATCH, everything, ("key",)).to_pylist() == BATCH.select(["key"]).to_pylist()
    assert rows_that_match(BATCH, Not(everything), ("key",)).num_rows == 0
    assert rows_that_match(BATCH, Not(everything), ("key",)).schema.names == ["key"]
    assert rows_that_match(BATCH.slice(0, 0), TYPE, ("key",)).num_rows == 0
    assert rows_that_match(BATCH, None, ("key",)).num_rows == len(ROWS)


def test_rows_without_columns_are_still_counted() -> None:
    assert rows_that_match(BATCH, TYPE, ()).num_rows == 3
    assert rows_that_match(BATCH, None, ()).num_rows == len(ROWS)
    assert rows_that_match(BATCH, TYPE, ()).num_columns == 0


def test_rows_of_feeds() -> None:
    events = [b'{"type":"order"}', b'{"type":"click"}', b"[]", b'{"type":null}']
    batch = pa.RecordBatch.from_pylist([{"value": event} for event in events], schema=COMMON_SCHEMA)
    assert rows_that_match(batch, TYPE, ("value",), feed=True).to_pylist() == [{"value": events[0]}]
