"""The parts of an event in batches of our rows, as columns for ``evaluate_columns``.

Both kinds of rows:

- ``key``, ``partition`` and ``offset`` are the columns.
- ``publish_time`` is column ``timestamp`` in ms, rounded down.
- ``body_size`` is the number of bytes of column ``value``; NULL without a body.

Rows of messages:

- ``event_time`` is ``properties.creation_time`` in ms, of any int64; 0 means unset, so it is NULL (E-5).
- ``properties.<field>`` is a field of the struct: texts as they are, ``group_sequence`` in decimal digits, times in
  digits of ms. ``user_id``, which is binary, is refused.
- ``application_properties.<name>`` and ``message_annotations.<name>`` are values of the maps, and any other property is
  ``application_properties.<name>``.

Rows of feeds:

- ``event_time`` is column ``timestamp`` in ms, rounded down.
- A property is a member of the event's JSON object, or, with a leading ``/``, the value at that JSON pointer. A string
  stays as it is, any other value is its JSON text. Null, a missing member, and an event that is no object are NULL.

``rows_that_match`` applies the residual to rows: the part of a filter that the peer did not check.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import FilterError
from spark_streams.filters.evaluate_many import ColumnLookup, mask
from spark_streams.filters.limits import reference_reason
from spark_streams.filters.tree import Expression, Reference, ReferenceKind, place_of, references
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.feed.json_pointer import extract_text, parse_pointer, pointer_of

_COLUMNS: Final = {
    ReferenceKind.EVENT_TIME: "timestamp",
    ReferenceKind.PUBLISH_TIME: "timestamp",
    ReferenceKind.KEY: "key",
    ReferenceKind.PARTITION: "partition",
    ReferenceKind.OFFSET: "offset",
    ReferenceKind.BODY_SIZE: "value",
    ReferenceKind.PROPERTY: "value",
}
"""The columns of a feed's rows; those of messages differ in the first and last."""
_OBJECT: Final = r"\A[ \t\r\n]*\{"


def columns_needed(expression: Expression, feed: bool = False) -> tuple[str, ...]:
    """Return the columns that an expression needs, in the order of the row schema.

    Args:
        expression: any.
        feed: whether the rows are those of a feed.

    Raises:
        FilterError: such rows cannot have a reference: a field of ``properties`` does not exist or is binary, or a JSON
            pointer is invalid.
    """
    column = _column_of_feed if feed else _column_of_message
    needed = {column(reference) for reference in references(expression)}
    return tuple(name for name in (COMMON_SCHEMA if feed else MESSAGE_SCHEMA).names if name in needed)


def message_columns(columns: Mapping[str, pa.Array]) -> ColumnLookup:
    """Return the lookup over rows of ``amqp-events`` and ``rabbitmq-stream``.

    Args:
        columns: those that ``columns_needed`` returns, as in ``rows.MESSAGE_SCHEMA``, and any others; times may also be
            milliseconds, int64, which every instant of a message fits.
    """
    maps = cache(lambda column: _Maps(columns[column]))

    def lookup(reference: Reference) -> pa.Array:
        kind = reference.kind
        if kind is ReferenceKind.EVENT_TIME:
            times = _milliseconds(pc.struct_field(columns["properties"], "creation_time"))
            return pc.if_else(pc.equal(times, 0), pa.scalar(None, pa.int64()), times)  # 0 means unset (E-5)
        place = place_of(reference)
        if place is None:
            return _common(columns, kind)
        column, name = place
        if column != "properties":
            return maps(column).entry(name)
        field = pc.struct_field(columns["properties"], name)
        return _milliseconds(field) if pa.types.is_timestamp(field.type) else field

    return lookup


def feed_columns(batch: pa.RecordBatch) -> ColumnLookup:
    """Return the lookup over rows of ``feedapi``.

    Args:
        batch: has the columns that ``columns_needed`` returns, as in ``rows.COMMON_SCHEMA``, and any others.
    """

    def lookup(reference: Reference) -> pa.Array:
        if reference.kind is ReferenceKind.EVENT_TIME:
            return _milliseconds(batch.column("timestamp"))
        if reference.kind is not ReferenceKind.PROPERTY:
            return _common(batch, reference.kind)
        return _member(batch.column("value"), reference.name or "")

    return lookup


def _column_of_message(reference: Reference) -> str:
    place = place_of(reference)
    if place is None:
        return "properties" if reference.kind is ReferenceKind.EVENT_TIME else _COLUMNS[reference.kind]
    reason = reference_reason(reference) if place[0] == "properties" else None
    if reason is not None:
        raise FilterError(reference.name or "", None, reason)
    return place[0]


def _column_of_feed(reference: Reference) -> str:
    name = reference.name or ""
    if reference.kind is ReferenceKind.PROPERTY and name.startswith("/"):
        try:
            parse_pointer(name)
        except ValueError as fault:
            raise FilterError(name, None, str(fault)) from None
    return _COLUMNS[reference.kind]


def _common(columns: Mapping[str, pa.Array], kind: ReferenceKind) -> pa.Array:
    column = columns[_COLUMNS[kind]]
    if kind is ReferenceKind.PUBLISH_TIME:
        return _milliseconds(column)
    return pc.binary_length(column).cast(pa.int64()) if kind is ReferenceKind.BODY_SIZE else column


def _milliseconds(instants: pa.TimestampArray | pa.Int64Array) -> pa.Int64Array:
    """Return microseconds as milliseconds, rounded down, also before 1970; milliseconds as they are."""
    if pa.types.is_int64(instants.type):
        return instants
    numbers = instants.cast(pa.int64())
    whole = np.floor_divide(np.asarray(numbers.fill_null(0)), 1000)
    return pa.array(whole, mask=np.asarray(numbers.is_null()) if numbers.null_count else None)


class _Maps:
    """One map column.

    Args:
        maps: the column.
    """

    def __init__(self, maps: pa.MapArray) -> None:
        offsets = np.asarray(maps.offsets)
        first, end = int(offsets[0]), int(offsets[-1])
        self._keys, self._items = maps.keys.slice(first, end - first), maps.items.slice(first, end - first)
        self._sizes = np.diff(offsets)
        self._missing = np.asarray(maps.is_null()) if maps.null_count else None
        self._alike = self._missing is None and _alike(self._keys, self._sizes)

    def entry(self, name: str) -> pa.StringArray:
        """Return the maps' values of a key; null where a map lacks the key, or has null."""
        count = len(self._sizes)
        if self._alike:
            size = int(self._sizes[0])
            at = pc.index(self._keys.slice(0, size), name).as_py()
            if at < 0:
                return pa.nulls(count, pa.string())
            return self._items.take(pa.array(np.arange(at, size * count, size)))
        places = np.flatnonzero(np.asarray(pc.equal(self._keys, name)))
        taken = np.full(count, -1, np.int64)
        taken[np.repeat(np.arange(count), self._sizes)[places]] = places
        missing = taken < 0
        if self._missing is not None:
            missing |= self._missing
        return self._items.take(pa.array(taken, mask=missing))


def _alike(keys: pa.StringArray, sizes: NDArray[np.int32]) -> bool:
    """Return whether all maps have the same keys in the same order."""
    size = int(sizes[0]) if len(sizes) else 0
    if not size or (sizes != size).any():
        return False
    ends, raw = layout(keys)
    width = int(ends[size])
    return bool((ends[size:] - ends[:-size] == width).all() and np.array_equal(raw[width:], raw[: len(raw) - width]))


def _member(values: pa.BinaryArray, name: str) -> pa.StringArray:
    """Return a member of every event's JSON object, or the value at a JSON pointer."""
    if name.startswith("/"):
        return extract_text(values, name)
    found = extract_text(values, pointer_of(name))
    if not name.isdecimal():
        return found
    # A pointer's name may be an index into an array; a member's may not.
    return pc.if_else(pc.match_substring_regex(values, _OBJECT), found, pa.scalar(None, pa.string()))


def wanted_columns(columns: tuple[str, ...], residual: Expression | None, feed: bool = False) -> tuple[str, ...]:
    """Return the columns to decode: those of the rows, in their order, and then those that only the residual needs.

    Args:
        columns: the columns of the rows.
        residual: the expression left to check; None for nothing.
        feed: whether the rows are those of a feed.

    Raises:
        FilterError: the residual needs a part that such rows cannot have.
    """
    needed = () if residual is None else columns_needed(residual, feed)
    return (*columns, *(name for name in needed if name not in columns))


def rows_that_match(
    batch: pa.RecordBatch, residual: Expression | None, columns: tuple[str, ...], feed: bool = False
) -> pa.RecordBatch:
    """Return the rows for which the residual is true, with the columns of the rows only.

    Args:
        batch: has the columns that ``wanted_columns`` returns.
        residual: the expression left to check; None for nothing.
        columns: the columns of the rows, in the order of the result.
        feed: whether the rows are those of a feed.

    Shape:
        ``columns`` of ``batch``, in their order; the batch may have no row.
    """
    rows = batch.select(list(columns))
    if residual is None:
        return rows
    matching = mask(residual, (feed_columns if feed else message_columns)(batch), batch.num_rows)
    return rows if matching.true_count == batch.num_rows else rows.filter(matching)
