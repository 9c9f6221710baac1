"""The Spark and Arrow schemas of a source's rows, and the columns that a user's schema selects."""

from __future__ import annotations

import difflib
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from spark_streams.errors import SchemaError


def spark_schema(rows: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow rows; every column may be null."""
    return StructType([StructField(f.name, from_arrow_type(f.type), True) for f in rows])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that batches must match exactly."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before Spark 4.3 the function has no such parameter, and always uses UTC
        return to_arrow_schema(schema)


def chosen_columns(schema: StructType, rows: pa.Schema, format_name: str) -> tuple[str, ...]:
    """Return the columns that a user's schema names, in its order.

    Args:
        schema: the user's, or the default one.
        rows: all columns that the format has.
        format_name: for messages.

    Raises:
        SchemaError: the schema names no column, an unknown one, one twice, or one with another type.
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
        if _nullable(column.dataType) != _nullable(expected):
            raise SchemaError(
                f"column '{column.name}' of {format_name} has type {expected.simpleString()}, the schema says "
                f"{column.dataType.simpleString()}; cast it after reading"
            )
        names.append(column.name)
    return tuple(names)


def _nullable(kind: DataType) -> Any:
    """Return the type with all its fields, values and elements nullable, and without metadata."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True) for f in kind.fields])
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    return kind
