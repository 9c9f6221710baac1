"""Spark schemas: those of a source's rows, with the columns that a user selects, and the checks of rows to write.

The checks of a write run on the driver, when the query is planned, so that a misspelt column fails the query and not
one of its tasks. ``check_schema`` is for messages. ``check_feed_schema`` is for events of a feed, which column
``value`` has, or which are JSON objects made of all columns.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_streams.errors import OptionError, SchemaError
from spark_streams.rows import COMMON_SCHEMA, FULL_MESSAGE_SCHEMA, PROPERTIES_TYPE, TIMESTAMP


def spark_schema(rows: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow rows; every column may be null."""
    return StructType([StructField(f.name, from_arrow_type(f.type), True) for f in rows])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that batches must match exactly."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before Spark 4.3 the function has no such parameter, and always uses UTC
        return to_arrow_schema(schema)


def source_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a source's own batches, whose ``value`` is BINARY: ``as_schema`` finishes them."""
    place = schema.get_field_index("value")
    return schema if place < 0 else schema.set(place, schema.field(place).with_type(pa.binary()))


def as_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of ``source_schema`` in a schema that may have ``value`` as STRING.

    Its bytes stay as they are, whether they are UTF-8 or not, as by Spark's own ``CAST(value AS STRING)``.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [c if c.type == f.type else c.view(f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def chosen_columns(schema: StructType, rows: pa.Schema, format_name: str) -> tuple[str, ...]:
    """Return the columns that a user's schema names, in its order.

    Args:
        schema: the user's, or the default one.
        rows: all columns that the format has.
        format_name: for messages.

    Raises:
        SchemaError: the schema names no column, an unknown one, one twice, or one with another type; ``value`` may be
            STRING too.
    """
    known = {f.name: from_arrow_type(f.type) for f in rows}
    listing = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
    if not schema.fields:
        raise SchemaError(f"the schema names no column; {format_name} has {listing}")
    names: list[str] = []
    for column in schema.fields:
        if column.name not in known:
            close = difflib.get_close_matches(column.name, known, n=1, cutoff=0.6)
            hint = f", did you mean '{close[0]}'?" if close else "."
            raise SchemaError(f"{format_name} has no column '{column.name}'{hint} It has {listing}")
        if column.name in names:
            raise SchemaError(f"the schema names column '{column.name}' twice")
        expected = known[column.name]
        is_text = column.name == "value" and isinstance(column.dataType, StringType)  # see ``as_schema``
        # This form of a type leaves out only whether its parts may be null.
        if not is_text and column.dataType.simpleString() != expected.simpleString():
            raise SchemaError(
                f"column '{column.name}' of {format_name} has type {expected.simpleString()}, the schema says "
                f"{column.dataType.simpleString()}; cast it after reading"
            )
        names.append(column.name)
    return tuple(names)


Expected = tuple[str, tuple[type, ...]]
"""The expected type of a column: as text, and as the Spark types that it accepts."""

STRING: Final[Expected] = ("STRING", (StringType,))
"""Text."""
_OF_TYPE: Final[Mapping[pa.DataType, Expected]] = {
    pa.string(): STRING,
    pa.binary(): ("BINARY", (BinaryType,)),
    pa.int64(): ("BIGINT or INT", (LongType, IntegerType)),
    TIMESTAMP: ("TIMESTAMP", (TimestampType,)),
    pa.map_(pa.string(), pa.string()): ("MAP<STRING,STRING>", (MapType,)),
    PROPERTIES_TYPE: ("STRUCT", (StructType,)),
}
"""A type of a source's rows to the types that a sink accepts for it."""

MESSAGE_SINK_COLUMNS: Final[Mapping[str, Expected]] = {
    **{f.name: _OF_TYPE[f.type] for f in FULL_MESSAGE_SCHEMA},
    "value": ("STRING or BINARY", (StringType, BinaryType)),
}
"""The columns that the sink of a message format takes, each with its expected type."""

_PROPERTY_FIELDS: Final[Mapping[str, Expected]] = {f.name: _OF_TYPE[f.type] for f in PROPERTIES_TYPE}


_NO_MORE: Final[Mapping[str, Expected]] = MappingProxyType({})


def check_schema(
    schema: StructType,
    *,
    stream_option: bool,
    keyed: bool = False,
    extra: Mapping[str, Expected] = _NO_MORE,
    columns: Mapping[str, Expected] = MESSAGE_SINK_COLUMNS,
) -> None:
    """Check that every column of ``schema`` can be written.

    A column of type VOID (``lit(None)``) passes as a column of nulls.

    Args:
        schema: the schema of the DataFrame to write.
        stream_option: whether an option names the stream; if not, column ``stream`` must be there.
        keyed: whether column ``key`` decides where a row goes, and must be there.
        extra: columns that options name, each with the type that this use needs; they must be there. A column of
            messages among them must have this type too.
        columns: the columns that the sink takes.

    Raises:
        SchemaError: a column is unknown, repeated, missing, or has the wrong type; the text names the column, what was
            expected and what to do.
    """
    names = [f.name for f in schema.fields]
    known = {**columns, **extra}
    for name in names:
        if name not in known:
            raise SchemaError(_unknown("column", name, known))
        _check_once(name, names)
    for field in schema.fields:
        _check_type(field.name, field.dataType, known[field.name])
    for name in extra:
        if name not in names:
            raise SchemaError(f"there is no column '{name}', which an option names, only {_listing(names)}")
    if "value" not in names and "message" not in names:
        raise SchemaError(
            f"there is no column 'value' (STRING or BINARY), only {_listing(names)}: name what is to be sent, such as "
            'df.selectExpr("to_json(struct(*)) AS value")'
        )
    if not stream_option and "stream" not in names:
        raise SchemaError(
            "nothing says where the rows go: set option 'stream', or give each row a column 'stream' (STRING)"
        )
    if keyed and "key" not in names:
        raise SchemaError(
            "there is no column 'key' (STRING), which decides what partition of the super stream a row goes to: "
            'name one, such as df.selectExpr("customer AS key", "to_json(struct(*)) AS value")'
        )


def _check_once(name: str, names: list[str]) -> None:
    if names.count(name) > 1:
        raise SchemaError(f"column '{name}' is there {names.count(name)} times: keep one of them")


def _check_type(name: str, found: DataType, expected: Expected) -> None:
    words, types = expected
    if isinstance(found, NullType):
        return
    if not isinstance(found, types):
        hint = ""
        if isinstance(found, (TimestampNTZType, DateType)) and types == (TimestampType,):
            hint = ": an instant needs a time zone, so cast it to TIMESTAMP in the session's"
        elif types in ((StringType,), (StringType, BinaryType)):
            nested = isinstance(found, (StructType, MapType)) or found.typeName() in ("array", "variant")
            hint = f': convert it, such as "to_json({name}) AS {name}"' if nested else ": cast it to STRING"
        raise SchemaError(f"column '{name}' is {found.simpleString().upper()}, expected {words}{hint}")
    if isinstance(found, MapType):
        for part in (found.keyType, found.valueType):
            if not isinstance(part, StringType):
                raise SchemaError(f"column '{name}' is {found.simpleString().upper()}, expected {words}")
    if isinstance(found, StructType):
        fields = [f.name for f in found.fields]
        for field in found.fields:
            if field.name not in _PROPERTY_FIELDS:
                raise SchemaError(_unknown("field", field.name, _PROPERTY_FIELDS, within=name))
            if fields.count(field.name) > 1:
                raise SchemaError(f"field '{name}.{field.name}' is there {fields.count(field.name)} times: keep one")
            _check_type(f"{name}.{field.name}", field.dataType, _PROPERTY_FIELDS[field.name])


def _unknown(what: str, name: str, known: Iterable[str], within: str = "") -> str:
    # Users write message-id and messageId where the column is message_id: compare without case, dash and underscore.
    plain = {k.replace("_", ""): k for k in known}
    near = difflib.get_close_matches(name.lower().replace("-", "").replace("_", ""), plain, n=1, cutoff=0.6)
    path = f"{within}.{name}" if within else name
    suggestion = f" Did you mean '{plain[near[0]]}'?" if near else ""
    return f"unknown {what} '{path}': {within or 'a row'} may have {_listing(known)}.{suggestion}"


def _listing(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n in names) or "none"


FEED_SINK_COLUMNS: Final = {name: MESSAGE_SINK_COLUMNS[name] for name in COMMON_SCHEMA.names}
"""The columns of rows with ``value``; the sink accepts ``stream``, ``partition`` and ``offset``, and ignores them."""

_FLAT: Final = (
    BooleanType, NumericType, StringType, BinaryType, DateType, TimestampType, TimestampNTZType, NullType,
)  # fmt: skip


def check_feed_schema(schema: StructType, *, key_field: bool) -> None:
    """Check that every row of ``schema`` can be published.

    With a column ``value`` the other columns must be those of a source's rows. Without it, all columns but ``key``
    become a JSON object.

    Args:
        schema: the schema of the DataFrame to write.
        key_field: whether option ``keyField`` is set, which names the field of an event's key.

    Raises:
        SchemaError: a column is unknown, repeated, missing, or has a type that cannot be published; the text names the
            column, what was expected and what to do.
        OptionError: both option ``keyField`` and column ``key`` are there.
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
    for field in schema.fields:
        _check_once(field.name, names)
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
