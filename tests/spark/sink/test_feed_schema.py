"""The schema of a DataFrame that is published to a feed, and the columns of its events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from spark_streams.client.digested_rows import PART_SCHEMA
from spark_streams.client.feed.publisher import event_columns
from spark_streams.errors import OptionError, SchemaError
from spark_streams.spark.schemas import check_feed_schema


def schema(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


EVENT = ("value", StringType())


@pytest.mark.parametrize(
    "good",
    [
        schema(EVENT),
        schema(("value", BinaryType()), ("key", StringType()), ("stream", StringType()), ("partition", StringType()),
               ("offset", StringType()), ("timestamp", TimestampType())),
        schema(EVENT, ("key", NullType())),
        schema(("id", LongType())),
        schema(("key", StringType()), ("timestamp", StringType()), ("offset", LongType())),
        schema(("a", StructType([StructField("b", ArrayType(MapType(LongType(), DecimalType(9, 2))))])),
               ("c", TimestampNTZType()), ("d", NullType())),
    ],
)  # fmt: skip
def test_what_can_be_published(good: StructType) -> None:
    check_feed_schema(good, key_field=False)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (schema(EVENT, ("custmer", StringType())), ["unknown column 'custmer'", "let none be named 'value'"]),
        (schema(EVENT, ("properties", StringType())), ["unknown column 'properties'"]),
        (schema(("value", DoubleType())), ["'value' is DOUBLE, expected STRING or BINARY"]),
        (schema(EVENT, ("key", IntegerType())), ["'key' is INT, expected STRING"]),
        (schema(EVENT, EVENT), ["'value' is there 2 times"]),
        (schema(("id", LongType()), ("key", IntegerType())), ["'key' is INT, expected STRING", "name it otherwise"]),
        (schema(("id", LongType()), ("id", LongType())), ["'id' is there 2 times"]),
        (schema(("key", StringType())), ["there is no column to publish"]),
        (schema(), ["there is no column to publish"]),
        (schema(("i", DayTimeIntervalType())), ["'i' is INTERVAL DAY TO SECOND, which has no JSON form here: cast"]),
        (schema(("a", ArrayType(YearMonthIntervalType()))), ["column 'a[]' is INTERVAL YEAR TO MONTH"]),
        (schema(("m", MapType(StringType(), StructType([StructField("x", DayTimeIntervalType())])))),
         ["column 'm{value}.x' is"]),
    ],
)  # fmt: skip
def test_what_cannot_be_published(bad: StructType, words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        check_feed_schema(bad, key_field=False)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_key_comes_from_one_place() -> None:
    for columns in (schema(EVENT, ("key", StringType())), schema(("id", LongType()), ("key", StringType()))):
        with pytest.raises(OptionError, match="'keyField': cannot be used together with a column 'key'"):
            check_feed_schema(columns, key_field=True)
    check_feed_schema(schema(EVENT), key_field=True)


# --- events


def events(columns: dict[str, pa.Array], key_field: str | None = None) -> list[dict[str, Any]]:
    found = event_columns(columns, key_field)
    assert {name: column.type for name, column in found.items()} == {f.name: f.type for f in PART_SCHEMA}
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_values_are_published_as_they_are(kind: pa.DataType) -> None:
    instants = pa.array([None, 1_500], pa.timestamp("us", tz="Europe/Oslo"))
    columns = {"value": pa.array(["{}", ""], kind), "timestamp": instants, "offset": pa.array(["9", "10"])}
    found = events({**columns, "key": pa.array(["k", None], pa.large_string())})
    assert [row["value"] for row in found] == [b"{}", b""]
    assert [row["key"] for row in found] == ["k", None]
    assert found[0]["timestamp"] is None and found[1]["timestamp"].isoformat() == "1970-01-01T00:00:00.001500+00:00"


def test_objects_have_all_columns_but_the_key() -> None:
    columns = {"key": pa.array(["k"]), "id": pa.array([1]), "timestamp": pa.array(["t"])}
    assert events(columns) == [{"value": b'{"id":1,"timestamp":"t"}', "key": "k", "timestamp": None}]


def test_keys_out_of_the_event() -> None:
    values = pa.array([b'{"id":{"n":"a"}}', b'{"id":{"n":7}}', b'{"id":{"n":null}}', b"text"])
    assert [row["key"] for row in events({"value": values}, "/id/n")] == ["a", "7", None, None]
    assert [row["key"] for row in events({"id": pa.array([5, None])}, "/id")] == ["5", None]


def test_a_null_value_is_null_and_has_no_key() -> None:
    found = events({"value": pa.array([b'{"k":"a"}', None, b"null"])}, "/k")
    assert [(row["value"], row["key"]) for row in found] == [(b'{"k":"a"}', "a"), (None, None), (b"null", None)]
    assert [row["value"] for row in events({"value": pa.nulls(3)})] == [None] * 3
