"""Makes the events that are published of rows: columns of values, keys and timestamps."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client.digested_rows import PART_SCHEMA
from spark_streams.errors import SchemaError
from spark_streams.wire.feed.json_encode import encode_objects
from spark_streams.wire.feed.json_pointer import extract_text

__all__ = ["event_columns"]


def event_columns(
    columns: Mapping[str, pa.Array], key_field: str | None, first_row: int, partition: int
) -> dict[str, pa.Array]:
    """Return value, key and timestamp of the event of each row.

    Args:
        columns: with ``value``, and ``key`` and ``timestamp`` or not; or without ``value``: all columns but ``key`` are
            then the members of a JSON object.
        key_field: JSON pointer to the key within the event, None when column ``key`` has it.
        first_row: number of the first of these rows within its task, for errors.
        partition: number of the Spark partition, for errors.

    Shape: ``PART_SCHEMA``.

    Raises:
        SchemaError: a row has no value, or a column has no JSON form.
    """
    rows = len(next(iter(columns.values())))
    key, instants = columns.get("key"), None
    if "value" in columns:
        value = columns["value"].cast(pa.large_binary())
        if value.null_count:
            row = first_row + pc.index(value.is_valid(), False).as_py()
            raise SchemaError(
                f"row {row} of Spark partition {partition} has null in column 'value': an event needs a value, so "
                "filter such rows out"
            )
        instants = columns.get("timestamp")
    else:
        members = {name: column for name, column in columns.items() if name != "key"}
        value = encode_objects(members, rows).cast(pa.large_binary())
    if key_field is not None:
        key = extract_text(value.cast(pa.binary()), key_field)
    found = {"value": value, "key": key, "timestamp": instants}
    return {field.name: _typed(found[field.name], field.type, rows) for field in PART_SCHEMA}


def _typed(column: pa.Array | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, kind) if column is None else column.cast(kind)
