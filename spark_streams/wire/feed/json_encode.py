"""Encode columns as JSON objects, one for each row: the form in which rows without a column ``value`` are published.

=====================  ===============================================================================================
column                 member
=====================  ===============================================================================================
boolean, integers      ``true``, ``17``
floats                 ``1.5``, ``1.0``, ``1e+20``; what JSON has no number for is a string: ``"NaN"``, ``"-Infinity"``
decimal                a number with all its digits, ``12.50``
string                 escaped where JSON asks for it and nowhere else; bytes that are no UTF-8 become U+FFFD
binary                 base64 (RFC 4648 section 4)
date                   ``"2024-02-29"``
timestamp with a zone  ISO 8601 in UTC, ``"2024-02-29T12:00:00Z"``, with 3 or 6 digits of a second where they are needed
timestamp without one  the same without ``Z``
their years            of more than four digits and before 0 have a sign, ``"+55840-11-08"`` (ISO 8601 section 4.3.2)
list                   an array; a null in it stays there
struct                 an object; a field that is null is left out
map                    an object; its keys as text, a value that is null stays there
=====================  ===============================================================================================

A column that is null is left out of the row's object, as Spark's ``to_json`` does it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import SchemaError
from spark_streams.instants import iso_dates, iso_instants
from spark_streams.wire.columnar.arrays import layout

_TEXT: Final = pa.large_string()
_SHORT: Final = {0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_DAYS: Final = (-719_528, 2_932_897)
"""The days of the years 0 to 9999, end exclusive, whose text is the same to Arrow and to ISO 8601."""
_DAY: Final = 86_400_000_000
_NULL: Final = pa.nulls(1, _TEXT)[0]  # pa.scalar imports pandas, and this module is imported where nothing is encoded


def encode_objects(columns: Mapping[str, pa.Array], rows: int) -> pa.LargeStringArray:
    """Return one JSON object for each row.

    Args:
        columns: each member to its values, all of one length.
        rows: that length.

    Raises:
        SchemaError: the type of a column has no JSON form here.
    """
    members = [
        pc.fill_null(_join(_constant("," + json.dumps(name, ensure_ascii=False) + ":"), _texts(column, name)), "")
        for name, column in columns.items()
        if not pa.types.is_null(column.type)
    ]
    if not members:
        return pa.array(["{}"] * rows, _TEXT)
    # Do not use null_handling="skip": Arrow then drops rows in which every text is null.
    begun = pc.binary_replace_slice(_join(*members), start=0, stop=1, replacement="{")
    return _join(begun, _constant("}"))


def _texts(column: pa.Array, name: str) -> pa.LargeStringArray:
    """Return the JSON text of each value, null for a null."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return column.cast(_TEXT)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return quoted(column)
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_timestamp(kind):
        return _instants(column)
    if pa.types.is_date(kind):
        days = column.cast(pa.date32())
        numbers = np.asarray(pc.fill_null(days.cast(pa.int32()), 0)).astype(np.int64)
        if _common(numbers, 1):
            return _enclosed(days.cast(_TEXT))
        return _enclosed(pa.array(iso_dates(numbers), _TEXT, mask=np.asarray(days.is_null())))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _enclosed(_base64(column))
    if pa.types.is_map(kind):
        return _map(column, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        bounds = _bounds(column)
        items = column.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        return _listed(column, _items(items, name), "[", "]")
    if pa.types.is_struct(kind):
        fields = {field.name: each for field, each in zip(kind, column.flatten(), strict=True)}
        return pc.if_else(column.is_valid(), encode_objects(fields, len(column)), _NULL)
    raise SchemaError(f"column '{name}' has values of type {kind}, which have no JSON form here: cast them to STRING")


# --- texts


def quoted(texts: pa.StringArray | pa.LargeStringArray) -> pa.LargeStringArray:
    """Return texts as JSON strings; null stays null."""
    texts = texts.cast(_TEXT)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        content = pa.Array.from_buffers(pa.large_binary(), len(texts), texts.buffers(), offset=texts.offset)
        shown = [None if each is None else each.decode("utf-8", "replace") for each in content.to_pylist()]
        texts = pa.array(shown, _TEXT)
    _, raw = layout(texts)
    if (raw == 0x5C).any():
        texts = pc.replace_substring(texts, "\\", "\\\\")  # first, because the later ones add backslashes
    if (raw == 0x22).any():
        texts = pc.replace_substring(texts, '"', '\\"')
    for code in np.unique(raw[raw < 0x20]).tolist():
        texts = pc.replace_substring(texts, chr(code), _SHORT.get(code, f"\\u{code:04x}"))
    return _enclosed(texts)


def _enclosed(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    return _join(_constant('"'), texts, _constant('"'))


def _floats(column: pa.Array) -> pa.LargeStringArray:
    texts = column.cast(_TEXT)
    # As Spark, Python and Java write them: a float stays a float for readers that tell numbers apart by their form.
    if pc.any(pc.equal(pc.floor(column), column)).as_py():
        texts = pc.if_else(pc.match_substring_regex(texts, r"^-?[0-9]+$"), _join(texts, _constant(".0")), texts)
    if not pc.all(pc.is_finite(column), min_count=0).as_py():
        named = pc.if_else(pc.is_nan(column), _constant('"NaN"'), _constant('"Infinity"'))
        named = pc.if_else(pc.equal(column, -float("inf")), _constant('"-Infinity"'), named)
        texts = pc.if_else(pc.is_finite(column), texts, named)
    return texts


def _instants(column: pa.TimestampArray) -> pa.LargeStringArray:
    # Through int64: the instant in UTC, without any database of time zones.
    zone = "Z" if column.type.tz is not None else ""
    micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    numbers = np.asarray(pc.fill_null(micros, 0))
    if _common(numbers, _DAY):
        texts = pc.replace_substring(micros.cast(pa.timestamp("us")).cast(_TEXT), " ", "T", max_replacements=1)
    else:
        texts = pa.array(iso_instants(numbers), _TEXT, mask=np.asarray(micros.is_null()))
    fractions = numbers % 1_000_000
    for unused, digits in ((fractions % 1_000 == 0, 3), (fractions == 0, 4)):  # the dot goes with the last three
        if unused.any():
            texts = pc.if_else(pa.array(unused), pc.utf8_slice_codeunits(texts, 0, -digits), texts)
    return _join(_constant('"'), texts, _constant(zone + '"'))


def _common(numbers: NDArray[np.int64], day: int) -> bool:
    """Return whether all are in the years 0 to 9999; ``day`` is how much a day counts."""
    first, end = _DAYS
    return not numbers.size or (int(numbers.min()) >= first * day and int(numbers.max()) < end * day)


def _base64(values: pa.BinaryArray | pa.LargeBinaryArray) -> pa.LargeStringArray:
    # One Python object for each value: faster than NumPy from some 40 bytes on, up to five times as fast.
    return pa.array([None if value is None else b64encode(value) for value in values.to_pylist()], _TEXT)


# --- nested


def _items(values: pa.Array, name: str) -> pa.LargeStringArray:
    if pa.types.is_null(values.type):
        return pa.array(["null"] * len(values), _TEXT)
    return pc.fill_null(_texts(values, name), "null")


def _map(column: pa.MapArray, name: str) -> pa.LargeStringArray:
    bounds = _bounds(column)
    first, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    keys, values = column.keys.slice(first, count), column.items.slice(first, count)
    names = _texts(keys, name)
    if pa.types.is_floating(keys.type):
        names = _enclosed(pc.replace_substring(names, '"', ""))
    elif not pc.all(pc.starts_with(names, '"'), min_count=0).as_py():
        names = quoted(names)
    return _listed(column, _join(names, _constant(":"), _items(values, name)), "{", "}")


def _bounds(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return where the items of each value begin, and the last one's end, among all items of the column's buffers."""
    return np.asarray(column.offsets).astype(np.int64)


def _listed(column: pa.Array, items: pa.LargeStringArray, begin: str, end: str) -> pa.LargeStringArray:
    """Join the items of each value by commas; null where the column is."""
    bounds = _bounds(column)
    lists = pa.ListArray.from_arrays(pa.array((bounds - bounds[0]).astype(np.int32)), items)
    joined = _join(_constant(begin), pc.binary_join(lists, _constant(",")), _constant(end))
    return pc.if_else(column.is_valid(), joined, _NULL)


def _constant(text: str) -> pa.LargeStringScalar:
    return pa.scalar(text, _TEXT)


def _join(*texts: pa.Array | pa.Scalar) -> pa.LargeStringArray:
    """Join texts row by row; null where one of them is null."""
    return pc.binary_join_element_wise(*texts, _constant(""))
