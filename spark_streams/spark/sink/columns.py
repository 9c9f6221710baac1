"""From the Arrow batches that Spark hands a sink to the columns that are encoded, all in columns.

Spark's batches differ by release and setting: timestamps carry the session's time zone, strings may be large, and what
the user wrote as ``NULL`` has a type of its own. What leaves here has the types of ``rows.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.client import encode_columns
from spark_streams.errors import SchemaError
from spark_streams.rows import FULL_MESSAGE_SCHEMA, PROPERTIES_TYPE

SLICE_BYTES: Final = 8 << 20
"""Encode about this many bytes of rows at a time: the encoded copy is bounded, whatever Spark's batch holds."""

_READ_ONLY: Final = frozenset({"offset"})
"""Columns that the log decides: accepted, so that rows of a source can be written as they are, and ignored."""


def slices(batch: pa.RecordBatch, max_bytes: int = SLICE_BYTES) -> Iterator[pa.RecordBatch]:
    """Cut a batch into runs of rows of about ``max_bytes`` each, judged by its mean row, at least one row a run."""
    if batch.num_rows == 0:
        return
    rows = max(1, batch.num_rows * max_bytes // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def message_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch with the types of ``rows.py``.

    A STRING ``value`` stays a string, ``properties`` keeps the fields it has, and read-only columns are left out.

    Args:
        batch: of a schema that ``check_schema`` let pass.
    """
    columns: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in _READ_ONLY or name not in FULL_MESSAGE_SCHEMA.names:
            continue
        if name == "properties":
            if not pa.types.is_null(column.type):
                columns[name] = _properties(column)
        elif name == "value" and _is_text(column.type):
            columns[name] = column.cast(pa.string())
        else:
            columns[name] = column.cast(FULL_MESSAGE_SCHEMA.field(name).type)
    return columns


def identify(columns: dict[str, pa.Array], prefix: str, first_row: int) -> pa.StringArray:
    """Add column ``message_id``: the row's own id, and ``<prefix><row>`` for every row without one.

    Args:
        columns: of ``message_columns``.
        prefix: what all ids of this task begin with.
        first_row: number of the first of these rows within the task, counted from 0.

    Returns:
        The column that was added; null for a row that brings its whole ``message``, which is sent as it is.
    """
    rows = len(next(iter(columns.values())))
    numbers = pa.array(np.arange(first_row, first_row + rows, dtype=np.int64)).cast(pa.string())
    ids = pc.binary_join_element_wise(pa.scalar(prefix), numbers, "")
    properties = columns.get("properties")
    if properties is not None and properties.type.get_field_index("message_id") >= 0:
        ids = pc.coalesce(pc.struct_field(properties, "message_id"), ids)
    if "message" in columns:
        ids = pc.if_else(columns["message"].is_valid(), pa.scalar(None, pa.string()), ids)
    columns["message_id"] = ids
    return ids


def encoded(columns: Mapping[str, pa.Array], label: Callable[[int], str]) -> pa.LargeBinaryArray:
    """Return the message of each row, encoded.

    Args:
        columns: as ``encode_columns`` takes them.
        label: names row i of these in errors.

    Raises:
        SchemaError: a row cannot be encoded.
    """
    try:
        return encode_columns(columns)
    except SchemaError as fault:
        raise SchemaError(f"{fault} (counted from {label(0)})") from fault


def _properties(column: pa.StructArray) -> pa.StructArray:
    # flatten() and not field(): it applies the struct's own nulls and the offset of a slice
    fields = [PROPERTIES_TYPE.field(f.name) for f in column.type]
    return pa.StructArray.from_arrays(
        [array.cast(f.type) for array, f in zip(column.flatten(), fields, strict=True)], fields=fields
    )


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))
