"""A DataFrame's schema is checked before anything is written, and the message says what to do."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from spark_streams.errors import SchemaError
from spark_streams.rows import FULL_MESSAGE_SCHEMA, PROPERTIES_TYPE
from spark_streams.spark.schemas import MESSAGE_SINK_COLUMNS, STRING, check_schema


def schema(ddl: str) -> StructType:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DateType,
        DoubleType,
        IntegerType,
        LongType,
        MapType,
        NullType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )

    # DDL needs a session to be parsed; this little language needs none: "value:string key:void"
    simple = {
        "string": StringType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "timestamp_ntz": TimestampNTZType(),
        "date": DateType(),
        "double": DoubleType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "void": NullType(),
        "map": MapType(StringType(), StringType()),
        "map_int": MapType(StringType(), IntegerType()),
        "array": ArrayType(StringType()),
    }
    built = StructType()
    for part in ddl.split():
        name, _, type_name = part.partition(":")
        if type_name.startswith("struct("):
            inner = StructType()
            for field in type_name[7:-1].split(","):
                inner = inner.add(field.split("=")[0], simple[field.split("=")[1]])
            built = built.add(name, inner)
        else:
            built = built.add(name, simple[type_name])
    return built


GOOD = [
    "value:string",
    "value:binary",
    "value:binary key:string stream:string partition:string offset:string timestamp:timestamp",
    "value:binary application_properties:map message_annotations:map",
    "value:string properties:struct(message_id=string,group_sequence=bigint,creation_time=timestamp,user_id=binary)",
    "value:string properties:struct(group_sequence=int)",
    "value:string key:void properties:void timestamp:void application_properties:void",
    "value:string properties:struct(subject=void)",
    "message:binary",
    "value:void",
]


@pytest.mark.parametrize("ddl", GOOD)
def test_what_can_be_written_passes(ddl: str) -> None:
    check_schema(schema(ddl), stream_option=True)


BAD = [
    ("value:string kye:string", ["unknown column 'kye'", "'value', 'key', 'stream'", "Did you mean 'key'?"]),
    ("value:string applicationProperties:map", ["'applicationProperties'", "Did you mean 'application_properties'?"]),
    ("value:string customer:string", ["unknown column 'customer'", "'message'"]),
    ("Value:string", ["unknown column 'Value'", "Did you mean 'value'?"]),
    ("value:double", ["column 'value' is DOUBLE, expected STRING or BINARY", "cast it to STRING"]),
    ("value:struct(a=int)", ["column 'value' is STRUCT<A:INT>", "to_json(value) AS value"]),
    ("value:map", ["column 'value' is MAP<STRING,STRING>", "to_json"]),
    ("value:array", ["column 'value' is ARRAY<STRING>", "to_json"]),
    ("value:string key:bigint", ["column 'key' is BIGINT, expected STRING: cast it to STRING"]),
    ("value:string key:binary", ["column 'key' is BINARY, expected STRING"]),
    ("value:string timestamp:bigint", ["column 'timestamp' is BIGINT, expected TIMESTAMP"]),
    ("value:string timestamp:timestamp_ntz", ["'timestamp' is TIMESTAMP_NTZ, expected TIMESTAMP", "time zone"]),
    ("value:string timestamp:date", ["column 'timestamp' is DATE, expected TIMESTAMP", "cast it"]),
    ("value:string properties:map", ["column 'properties' is MAP<STRING,STRING>, expected STRUCT"]),
    ("value:string application_properties:map_int", ["MAP<STRING,INT>, expected MAP<STRING,STRING>"]),
    ("value:string properties:struct(messageId=string)", ["'properties.messageId'", "Did you mean 'message_id'?"]),
    ("value:string properties:struct(to=int)", ["column 'properties.to' is INT, expected STRING"]),
    ("value:string properties:struct(group_sequence=string)", ["expected BIGINT or INT"]),
    ("value:string properties:struct(to=string,to=string)", ["'properties.to' is there 2 times"]),
    ("value:string message:string", ["column 'message' is STRING, expected BINARY"]),
    ("value:string value:string", ["column 'value' is there 2 times"]),
    ("key:string", ["there is no column 'value'", "only 'key'", "to_json(struct(*)) AS value"]),
]


@pytest.mark.parametrize(("ddl", "words"), BAD, ids=[ddl for ddl, _ in BAD])
def test_what_cannot_be_written_is_named(ddl: str, words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(schema(ddl), stream_option=True)
    for word in words:
        assert word in str(caught.value)


def test_no_near_name_no_suggestion() -> None:
    with pytest.raises(SchemaError) as caught:
        check_schema(schema("value:string zzzzzz:string"), stream_option=True)
    assert "Did you mean" not in str(caught.value)


def test_something_must_say_where_rows_go() -> None:
    check_schema(schema("value:string stream:string"), stream_option=False)
    with pytest.raises(SchemaError, match="set option 'stream', or give each row a column 'stream'"):
        check_schema(schema("value:string"), stream_option=False)


def test_columns_that_options_name() -> None:
    tenant = {"tenant": STRING}
    check_schema(schema("value:string tenant:string"), stream_option=True, extra=tenant)
    check_schema(schema("value:string tenant:void"), stream_option=True, extra=tenant)
    check_schema(schema("value:binary key:string"), stream_option=True, extra={"key": STRING})
    for ddl, extra, words in [
        ("value:string tenant:bigint", "tenant", "column 'tenant' is BIGINT, expected STRING: cast it to STRING"),
        ("value:string", "tenant", "there is no column 'tenant', which an option names, only 'value'"),
        ("value:binary", "value", "column 'value' is BINARY, expected STRING"),
        ("value:string tenannt:string tenant:string", "tenant", r"unknown column 'tenannt'.*Did you mean 'tenant'\?"),
    ]:
        with pytest.raises(SchemaError, match=words):
            check_schema(schema(ddl), stream_option=True, extra={extra: STRING})
    with pytest.raises(SchemaError, match="unknown column 'tenant'"):
        check_schema(schema("value:string tenant:string"), stream_option=True)


def test_the_sink_takes_the_columns_that_the_source_gives() -> None:
    assert list(MESSAGE_SINK_COLUMNS) == FULL_MESSAGE_SCHEMA.names
    every = ",".join(
        f"{f.name}={ {'binary': 'binary', 'int64': 'bigint', 'string': 'string'}.get(str(f.type), 'timestamp') }"
        for f in PROPERTIES_TYPE
    ).replace(" ", "")
    check_schema(schema(f"value:binary properties:struct({every})"), stream_option=True)
