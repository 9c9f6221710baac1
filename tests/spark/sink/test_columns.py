"""Spark's Arrow batches become columns of messages, whatever release or setting made them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.spark.sink.columns import identify, message_columns, slices

BERLIN = pa.timestamp("us", tz="Europe/Berlin")


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def test_types_are_those_of_rows_whatever_spark_sends() -> None:
    columns = message_columns(
        batch(
            value=pa.array([b"a"], pa.large_binary()),
            key=pa.array(["k"], pa.large_string()),
            stream=pa.array(["s"]),
            partition=pa.array(["0"]),
            offset=pa.array(["7"]),
            application_properties=pa.array([[("a", "b")]], pa.map_(pa.large_string(), pa.large_string())),
            message_annotations=pa.array([None], pa.null()),
            message=pa.array([None], pa.null()),
        )
    )
    assert "offset" not in columns, "the log decides offsets"
    for name, column in columns.items():
        assert column.type == FULL_MESSAGE_SCHEMA.field(name).type, name
    assert columns["application_properties"].to_pylist() == [[("a", "b")]]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_a_string_value_stays_text(type_: pa.DataType) -> None:
    columns = message_columns(batch(value=pa.array(["ä", None], type_)))
    assert columns["value"].type == pa.string()
    assert columns["value"].to_pylist() == ["ä", None]


def test_an_instant_is_the_same_whatever_the_sessions_time_zone() -> None:
    # 1957-10-04T00:00Z, -1 ms and 5 µs, given by a session in another time zone
    micros = [-386_380_800_000_000, -1_000, 5, None]
    struct = pa.struct([("creation_time", BERLIN)])
    given = pa.array(micros, pa.int64()).cast(BERLIN)
    columns = message_columns(
        batch(
            value=pa.array(["a", "b", "c", "d"]),
            timestamp=given,
            properties=pa.StructArray.from_arrays([given], fields=list(struct)),
        )
    )
    assert columns["timestamp"].type == FULL_MESSAGE_SCHEMA.field("timestamp").type
    assert columns["timestamp"].cast(pa.int64()).to_pylist() == micros
    assert columns["properties"].field("creation_time").cast(pa.int64()).to_pylist() == micros


def test_properties_may_be_any_subset_in_any_order_and_sliced() -> None:
    struct = pa.struct([("subject", pa.string()), ("message_id", pa.large_string()), ("group_sequence", pa.int32())])
    whole = batch(
        value=pa.array(["a", "b", "c"]),
        properties=pa.array([{"subject": "x"}, None, {"subject": "y", "message_id": "m", "group_sequence": 3}], struct),
    )
    properties = message_columns(whole.slice(1))["properties"]
    assert [(f.name, f.type) for f in properties.type] == [
        ("subject", pa.string()),
        ("message_id", pa.string()),
        ("group_sequence", pa.int64()),
    ]
    assert properties.to_pylist() == [
        {"subject": None, "message_id": None, "group_sequence": None},
        {"subject": "y", "message_id": "m", "group_sequence": 3},
    ]


def test_void_columns_and_fields_are_nulls_of_the_right_type() -> None:
    void = pa.nulls(2)
    columns = message_columns(
        batch(
            value=void,
            timestamp=void,
            key=void,
            application_properties=void,
            properties=pa.StructArray.from_arrays([void, pa.array(["s", "t"])], names=["message_id", "subject"]),
        )
    )
    assert columns["value"].type == pa.binary()
    assert columns["application_properties"].type == FULL_MESSAGE_SCHEMA.field("application_properties").type
    assert columns["properties"].type.field("message_id").type == pa.string()
    assert identify(columns, "q/0/0/", 0).to_pylist() == ["q/0/0/0", "q/0/0/1"]
    assert "properties" not in message_columns(batch(value=void, properties=void))


def test_a_null_struct_hides_what_its_fields_hold() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array(["hidden", "seen"])], names=["message_id"], mask=pa.array([True, False])
    )
    columns = message_columns(batch(value=pa.array(["a", "b"]), properties=hidden))
    assert identify(columns, "q/0/0/", 0).to_pylist() == ["q/0/0/0", "seen"]


def test_ids_are_given_to_rows_without_one_and_count_on() -> None:
    ids = pa.array([{"message_id": None}, {"message_id": "mine"}, None], pa.struct([("message_id", pa.string())]))
    columns = message_columns(batch(value=pa.array(["a", "b", "c"]), properties=ids))
    assert identify(columns, "q/7/1/", 10).to_pylist() == ["q/7/1/10", "mine", "q/7/1/12"]
    assert columns["message_id"].to_pylist() == ["q/7/1/10", "mine", "q/7/1/12"]


def test_ids_are_given_when_there_is_no_column_properties() -> None:
    columns = message_columns(batch(value=pa.array([b"a", b"b"])))
    identify(columns, "q/7/1/", 0)
    assert columns["message_id"].to_pylist() == ["q/7/1/0", "q/7/1/1"]


def test_a_row_that_brings_its_whole_message_gets_no_id() -> None:
    columns = message_columns(batch(value=pa.array([b"a", b"b"]), message=pa.array([b"\x00Su\xa0\x01x", None])))
    assert identify(columns, "q/0/0/", 0).to_pylist() == [None, "q/0/0/1"]


def test_slices_bound_bytes_and_lose_nothing() -> None:
    big = batch(value=pa.array([bytes([i]) * 1000 for i in range(100)]))
    parts = list(slices(big, max_bytes=10_000))
    assert len(parts) > 5
    assert max(part.nbytes for part in parts) <= 12_000
    assert pa.Table.from_batches(parts) == pa.Table.from_batches([big])
    assert [part.num_rows for part in slices(big, max_bytes=1)] == [1] * 100
    assert list(slices(big.slice(0, 0))) == []
