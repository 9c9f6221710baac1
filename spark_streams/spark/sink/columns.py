"""Conversion of Spark's Arrow batches to the columns that a sink encodes, without a Python object per row.

Spark's batches differ by release and setting: timestamps have the session's time zone, strings may be large, and a
literal ``NULL`` has its own type. The results have the types of ``rows.py``.
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
"""Bytes of rows, about, that are encoded at a time: it bounds the encoded copy, whatever the size of Spark's batch."""

_READ_ONLY: Final = frozenset({"offset"})
"""Columns whose values the log decides: a sink accepts them, as rows of a source have them, and ignores them."""


def slices(batch: pa.RecordBatch, max_bytes: int = SLICE_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch of about ``max_bytes`` each, by the mean size of its rows, with at least one row each."""
    if batch.num_rows == 0:
        return
    rows = max(1, batch.num_rows * max_bytes // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def message_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch with the types of ``rows.py``.

    A STRING ``value`` stays a string, ``properties`` keeps its fields, and read-only columns are left out.

    Args:
        batch: rows with a schema that ``check_schema`` accepts.
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


def named_texts(batch: pa.RecordBatch, named: Mapping[str, str | None]) -> dict[str, pa.StringArray]:
    """Return columns of texts that options name, by our own names for them.

    Args:
        batch: rows with a schema that ``check_schema`` accepts.
        named: our name to the column's; None where no option names one.
    """
    return {own: batch.column(name).cast(pa.string()) for own, name in named.items() if name is not None}


def identify(columns: dict[str, pa.Array], prefix: str, first_row: int) -> pa.StringArray:
    """Add column ``message_id``: the row's own id, and ``<prefix><row>`` for every row without one.

    Args:
        columns: the result of ``message_columns``.
        prefix: the prefix of all ids of this task.
        first_row: number of the first of these rows within the task, counted from 0.

    Returns:
        The new column; null for a row with a whole ``message``, which is sent unchanged.
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


Encode = Callable[[Mapping[str, pa.Array]], pa.LargeBinaryArray]
"""Encodes columns as ``encode_columns`` does, for one peer."""


def encoded(
    columns: Mapping[str, pa.Array], label: Callable[[int], str], encode: Encode = encode_columns
) -> pa.LargeBinaryArray:
    """Return the message of each row, encoded.

    Args:
        columns: as ``encode_columns`` takes them.
        label: names row i of these rows in errors.
        encode: what encodes them.

    Raises:
        SchemaError: a row cannot be encoded.
    """
    try:
        return encode(columns)
    except SchemaError as fault:
        raise SchemaError(f"{fault} (counted from {label(0)})") from fault


def require_streams(streams: pa.Array, label: Callable[[int], str], missing: str) -> None:
    """Check that each row names its stream.

    Args:
        streams: column ``stream``.
        label: names row i in errors.
        missing: the options that could name the stream instead, as in ``option 'stream' is not given``.

    Raises:
        SchemaError: a row has null.
    """
    if streams.null_count:
        row = label(pc.index(streams.is_null(), True).as_py())
        raise SchemaError(f"{row} has null in column 'stream', and {missing}: nothing says where it goes")


def _properties(column: pa.StructArray) -> pa.StructArray:
    # flatten() and not field(): it applies the struct's own nulls and the offset of a slice
    fields = [PROPERTIES_TYPE.field(f.name) for f in column.type]
    return pa.StructArray.from_arrays(
        [array.cast(f.type) for array, f in zip(column.flatten(), fields, strict=True)], fields=fields
    )


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))
