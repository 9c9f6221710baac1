"""Decode the properties sections of many messages into one Arrow struct column."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.columns.block import BlockSections
from spark_streams.wire.amqp.columns.canonical import (
    KIND_CODES,
    TIMESTAMP_TYPE,
    canonical_texts,
    column_of,
    instant_column,
    integers,
    number_column,
)
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS, Overflow
from spark_streams.wire.amqp.message import PROPERTIES
from spark_streams.wire.amqp.sections import NULL_CODE, Extents, Pair
from spark_streams.wire.columnar.arrays import booleans
from spark_streams.wire.columnar.byte_view import Mask

_TYPES: Final = dict.fromkeys(("text", "string"), pa.string()) | {
    "binary": pa.binary(),
    "timestamp": TIMESTAMP_TYPE,
    "uint": pa.int64(),
}
"""Each kind of field to its Arrow type."""
PROPERTIES_TYPE: Final = pa.struct([(name, _TYPES[kind]) for name, kind in PROPERTY_FIELDS])
"""The struct of the column, in the order of AMQP 1.0 part 3 §3.2.4; field i of the list is field i of the struct."""
PROPERTIES_MS_TYPE: Final = pa.struct(
    [(name, pa.int64() if kind == "timestamp" else _TYPES[kind]) for name, kind in PROPERTY_FIELDS]
)
"""The same struct with times in milliseconds, which AMQP has, and by which filters compare."""


def read_fields(block: BlockSections, wanted: Collection[int]) -> dict[int, Pair]:
    """Return some fields of the properties lists, by number.

    Messages whose list is irregular, or has a wanted field of a wrong type, become irregular.
    """
    found: dict[int, Pair] = {}
    for index, step in enumerate(block.entries(PROPERTIES)):
        if index >= len(PROPERTY_FIELDS):
            block.irregular[step.rows] = True
            break
        if index in wanted:
            allowed = KIND_CODES.get(PROPERTY_FIELDS[index][1])
            if allowed is not None:
                block.irregular[step.rows[~allowed[step.value.code]]] = True
            found[index] = step
    return found


def field_values(block: BlockSections, fields: dict[int, Pair], index: int) -> Extents:
    """Return a field of every message, text as canonical text; irregular messages have none."""
    found = Extents.empty(block.n)
    if index in fields:
        step = fields[index].chosen(~block.irregular[fields[index].rows])
        text = PROPERTY_FIELDS[index][1] == "text"
        found.keep(step.rows, canonical_texts(block.words, step.value) if text else step.value)
    return found


def field_numbers(block: BlockSections, fields: dict[int, Pair], index: int) -> tuple[NDArray[np.int64], Mask]:
    """Return a timestamp (ms) or uint field, and which messages have it."""
    if index not in fields:
        return np.zeros(block.n, np.int64), np.zeros(block.n, np.bool_)
    values = field_values(block, fields, index)
    return integers(block.words, values), values.code != NULL_CODE


def properties_column(block: BlockSections, fields: dict[int, Pair]) -> pa.StructArray:
    """Return all fields as a column, one row for each message, null without the section and for irregular messages.

    Args:
        block: the messages.
        fields: the result of ``read_fields``.

    Shape:
        ``PROPERTIES_MS_TYPE``.

    Raises:
        RemoteProtocolError: an id cannot be decoded, or a text is not UTF-8.
    """
    children = []
    for index, (name, kind) in enumerate(PROPERTY_FIELDS):
        if kind in ("timestamp", "uint"):
            children.append(number_column(*field_numbers(block, fields, index), pa.int64()))
        else:
            values = field_values(block, fields, index)
            children.append(column_of(block.words, values, _TYPES[kind], f"properties.{name}"))
    present = block.present(PROPERTIES)
    mask = None if present.all() else booleans(~present)
    return pa.StructArray.from_arrays(children, fields=list(PROPERTIES_MS_TYPE), mask=mask)


def in_microseconds(column: pa.Array, what: str, overflow: Overflow) -> pa.Array:
    """Return a column with its times in microseconds, as rows have them.

    Args:
        column: times in milliseconds, int64, or a struct of ``PROPERTIES_MS_TYPE``.
        what: the name of times in errors.
        overflow: as for ``decode_columns``.

    Raises:
        TimestampOverflow: a time does not fit microseconds, and ``overflow`` is ``fail``.
    """
    if not pa.types.is_struct(column.type):
        return instant_column(column, what, overflow)
    if column.null_count == len(column):
        return pa.nulls(len(column), PROPERTIES_TYPE)
    children = [
        instant_column(child, f"property {name.replace('_', '-')}", overflow) if kind == "timestamp" else child
        for child, (name, kind) in zip(column.flatten(), PROPERTY_FIELDS, strict=True)
    ]
    return pa.StructArray.from_arrays(
        children, fields=list(PROPERTIES_TYPE), mask=column.is_null() if column.null_count else None
    )
