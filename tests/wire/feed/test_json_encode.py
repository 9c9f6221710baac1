"""Rows as JSON objects: what Python's json reads of them is what the rows were."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.errors import SchemaError
from spark_streams.wire.feed.json_encode import encode_objects

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def texts(**columns: pa.Array) -> list[str]:
    count = len(next(iter(columns.values())))
    encoded = encode_objects(columns, count)
    assert encoded.null_count == 0 and len(encoded) == count
    found: list[str] = encoded.to_pylist()
    return found


def text(value: Any, kind: pa.DataType) -> str:
    """The JSON text of one value, which is in the middle of a longer array."""
    (found,) = texts(a=pa.array([value, value, None], kind).slice(1, 1))
    assert found.startswith('{"a":') and found.endswith("}")
    return found[5:-1]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (True, pa.bool_(), "true"),
        (-128, pa.int8(), "-128"),
        (2**63 - 1, pa.int64(), "9223372036854775807"),
        (1.0, pa.float64(), "1.0"),
        (-0.0, pa.float64(), "-0.0"),
        (0.1, pa.float64(), "0.1"),
        (0.1, pa.float32(), "0.1"),
        (1e300, pa.float64(), "1e+300"),
        (math.nan, pa.float64(), '"NaN"'),
        (math.inf, pa.float32(), '"Infinity"'),
        (-math.inf, pa.float64(), '"-Infinity"'),
        (Decimal("12.50"), pa.decimal128(10, 2), "12.50"),
        (Decimal("-1E-7"), pa.decimal128(38, 18), "-1.00000000000E-7"),
        ("", pa.string(), '""'),
        ('say "\\" \t\n\r\b\f\x00\x1f', pa.string(), '"say \\"\\\\\\" \\t\\n\\r\\b\\f\\u0000\\u001f"'),
        ("\x7f\u2028é😀", pa.string(), '"\x7f\u2028é😀"'),
        ("large", pa.large_string(), '"large"'),
        # Those beyond Arrow's years, as Spark 4.3's to_json writes them.
        (1_700_000_000_000_000_000, pa.timestamp("us", "UTC"), '"+55840-11-08T22:13:20Z"'),
        (2**63 - 1, pa.timestamp("us", "UTC"), '"+294247-01-10T04:00:54.775807Z"'),
        (-(2**63), pa.timestamp("us"), '"-290308-12-21T19:59:05.224192"'),
        (-62_167_219_200_000_001, pa.timestamp("us"), '"-0001-12-31T23:59:59.999999"'),
        (13_890_172, pa.date32(), '"+40000-01-01"'),
        (2**31 - 1, pa.date32(), '"+5881580-07-11"'),
        (-(2**31), pa.date32(), '"-5877641-06-23"'),
        (-735_525, pa.date32(), '"-0044-03-15"'),
        ([13_890_172, None], pa.list_(pa.date32()), '["+40000-01-01",null]'),
        ({"t": 2**63 - 1, "n": None}, pa.struct([("t", pa.timestamp("us")), ("n", pa.timestamp("us"))]),
         '{"t":"+294247-01-10T04:00:54.775807"}'),
        ([(13_890_172, 2**63 - 1)], pa.map_(pa.date32(), pa.timestamp("us", "UTC")),
         '{"+40000-01-01":"+294247-01-10T04:00:54.775807Z"}'),
        (b"", pa.binary(), '""'),
        (b"\xff", pa.binary(), '"/w=="'),
        (b"\xff\xfe", pa.large_binary(), '"//4="'),
        (b"\xff\xfe\xfd", pa.binary(), '"//79"'),
        (date(2024, 2, 29), pa.date32(), '"2024-02-29"'),
        (10_000_000, pa.date32(), '"+29349-01-26"'),
        (0, pa.timestamp("us", tz="UTC"), '"1970-01-01T00:00:00Z"'),
        (1, pa.timestamp("us", tz="UTC"), '"1970-01-01T00:00:00.000001Z"'),
        (120_000, pa.timestamp("us", tz="UTC"), '"1970-01-01T00:00:00.120Z"'),
        (-386_380_800_000_000, pa.timestamp("us", tz="UTC"), '"1957-10-04T00:00:00Z"'),
        (0, pa.timestamp("us", tz="Europe/Oslo"), '"1970-01-01T00:00:00Z"'),
        (253_402_300_800_000_000, pa.timestamp("us", tz="UTC"), '"+10000-01-01T00:00:00Z"'),
        (1_500_000, pa.timestamp("us"), '"1970-01-01T00:00:01.500"'),
        ([1, None, 3], pa.list_(pa.int64()), "[1,null,3]"),
        ([], pa.list_(pa.string()), "[]"),
        ([None], pa.list_(pa.null()), "[null]"),
        ([["a"], None, []], pa.list_(pa.list_(pa.string())), '[["a"],null,[]]'),
        ({"x": 1, "y": None}, pa.struct([("x", pa.int64()), ("y", pa.string())]), '{"x":1}'),
        ({"x": None}, pa.struct([("x", pa.int64())]), "{}"),
        ([{"x": 1}, None], pa.list_(pa.struct([("x", pa.int64())])), '[{"x":1},null]'),
        ([("k", 1), ('"', None)], pa.map_(pa.string(), pa.int64()), '{"k":1,"\\"":null}'),
        ([(1, ["a"])], pa.map_(pa.int64(), pa.list_(pa.string())), '{"1":["a"]}'),
        ([(math.nan, 1), (1.5, 2)], pa.map_(pa.float64(), pa.int64()), '{"NaN":1,"1.5":2}'),
        ([(date(2024, 2, 29), 1)], pa.map_(pa.date32(), pa.int64()), '{"2024-02-29":1}'),
        ([({"x": "y"}, 1)], pa.map_(pa.struct([("x", pa.string())]), pa.int64()), '{"{\\"x\\":\\"y\\"}":1}'),
        ([], pa.map_(pa.string(), pa.int64()), "{}"),
    ],
)  # fmt: skip
def test_a_value(value: Any, kind: pa.DataType, expected: str) -> None:
    assert text(value, kind) == expected
    json.loads(expected)


def test_nulls_are_left_out() -> None:
    found = texts(a=pa.array([1, None, None]), b=pa.nulls(3), c=pa.array(["x", "y", None]))
    assert found == ['{"a":1,"c":"x"}', '{"c":"y"}', "{}"]
    assert texts(b=pa.nulls(2)) == ["{}", "{}"]
    assert encode_objects({"a": pa.array([], pa.string())}, 0).to_pylist() == []


def test_a_null_struct_list_and_map_are_left_out() -> None:
    struct = pa.StructArray.from_arrays([pa.array([1, 2, 3])], names=["x"], mask=pa.array([False, True, False]))
    lists = pa.array([[1], None, [3]])
    maps = pa.array([[("k", 1)], None, [("l", 3)]], pa.map_(pa.string(), pa.int64()))
    found = texts(s=struct, l=lists, m=maps)
    assert found == ['{"s":{"x":1},"l":[1],"m":{"k":1}}', "{}", '{"s":{"x":3},"l":[3],"m":{"l":3}}']
    assert texts(s=struct.slice(2), l=lists.slice(2), m=maps.slice(2)) == found[2:]


def test_names_are_escaped() -> None:
    assert json.loads(texts(**{'a "b"\n': pa.array([1])})[0]) == {'a "b"\n': 1}


def test_bytes_that_are_no_text() -> None:
    array = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 2, 3], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\x22a")]
    )
    assert texts(a=array) == ['{"a":"\ufffd\\""}', '{"a":"a"}']


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us"), pa.month_day_nano_interval()])
def test_types_without_a_form(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'a' has values of type .*cast them to STRING"):
        encode_objects({"a": pa.array([None], kind)}, 1)


INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda d: d.replace(tzinfo=timezone.utc))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | st.text(),
            "b": st.none() | st.binary(max_size=20),
            "t": st.none() | INSTANTS,
            "n": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
            "m": st.none() | st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9), max_size=3),
            "o": st.none()
            | st.fixed_dictionaries({"x": st.none() | st.text(max_size=3), "y": st.none() | st.booleans()}),
        }
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.binary()),
        ("t", pa.timestamp("us", tz="UTC")), ("n", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int64())),
        ("o", pa.struct([("x", pa.string()), ("y", pa.bool_())])),
    ]
)  # fmt: skip


def plain(row: dict[str, Any]) -> dict[str, Any]:
    out = {name: value for name, value in row.items() if value is not None}
    if "b" in out:
        out["b"] = base64.b64encode(out["b"]).decode()
    if "t" in out:
        out["t"] = out["t"] - EPOCH
    if "o" in out:
        out["o"] = {name: value for name, value in out["o"].items() if value is not None}
    return out


@given(ROWS, st.integers(0, 3))
def test_any_row(rows: list[dict[str, Any]], skipped: int) -> None:
    given_rows = [{**row, "m": None if row["m"] is None else list(row["m"].items())} for row in rows]
    batch = pa.RecordBatch.from_pylist(given_rows, SCHEMA).slice(min(skipped, len(rows) - 1))
    found = [json.loads(each) for each in texts(**dict(zip(batch.schema.names, batch.columns, strict=True)))]
    for each in found:
        if "t" in each:
            instant = datetime.strptime(each["t"][:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
            each["t"] = instant - EPOCH + timedelta(seconds=float("0." + (each["t"][20:-1] or "0")))
    assert found == [plain(row) for row in rows[min(skipped, len(rows) - 1) :]]
