"""The check of a DataFrame's schema before it is published to a feed: events in column ``value``, or JSON objects."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_streams.errors import OptionError, SchemaError
from spark_streams.rows import COMMON_SCHEMA
from spark_streams.spark.sink.schema import MESSAGE_SINK_COLUMNS, check_schema

__all__ = ["FEED_SINK_COLUMNS", "check_feed_schema"]

FEED_SINK_COLUMNS: Final = {name: MESSAGE_SINK_COLUMNS[name] for name in COMMON_SCHEMA.names}
"""The columns of events that come ready in ``value``; stream, partition and offset may be there and do not count."""

_FLAT: Final = (
    BooleanType, NumericType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType, NullType,
)  # fmt: skip


def check_feed_schema(schema: StructType, *, key_field: bool) -> None:
    """Check that every row of ``schema`` can be published.

    With a column ``value`` the others are what a row of a source has. Without one, all columns but ``key`` become an
    object.

    Args:
        schema: of the DataFrame that is to be written.
        key_field: whether option ``keyField`` says where an event's key is.

    Raises:
        SchemaError: names the column, what was expected and what to do.
        OptionError: both the option and column ``key`` say what the key is.
    """
    names = [f.name for f in schema.fields]
    if key_field and "key" in names:
        raise OptionError("keyField", "cannot be used together with a column 'key': drop the column, or the option")
    if "value" in names:
        try:
            check_schema(schema, stream_option=True, columns=FEED_SINK_COLUMNS)
        except SchemaError as fault:
            if "unknown column" not in str(fault):
                raise
            raise SchemaError(
                f"{fault} To publish all columns as a JSON object, let none be named 'value'; or make the object "
                "yourself: to_json(struct(...)) AS value"
            ) from None
        return
    members = [f for f in schema.fields if f.name != "key"]
    if not members:
        raise SchemaError("there is no column to publish: name one 'value' (STRING or BINARY), or give any others")
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(f"column '{name}' is there {names.count(name)} times: keep one of them")
    for field in schema.fields:
        if field.name == "key":
            if not isinstance(field.dataType, (StringType, NullType)):
                raise SchemaError(
                    f"column 'key' is {field.dataType.simpleString().upper()}, expected STRING: it says which "
                    "partition an event goes to; cast it, or name it otherwise to have it in the event"
                )
        else:
            _check_member(field.name, field.dataType)


def _check_member(path: str, found: DataType) -> None:
    if isinstance(found, StructType):
        for field in found.fields:
            _check_member(f"{path}.{field.name}", field.dataType)
    elif isinstance(found, ArrayType):
        _check_member(f"{path}[]", found.elementType)
    elif isinstance(found, MapType):
        _check_member(f"{path}{{key}}", found.keyType)
        _check_member(f"{path}{{value}}", found.valueType)
    elif not isinstance(found, _FLAT):
        raise SchemaError(
            f"column '{path}' is {found.simpleString().upper()}, which has no JSON form here: cast it to STRING, or "
            "use to_json"
        )
