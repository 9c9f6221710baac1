"""Applies the filters of fetches to stored events, in columns.

Version 2a: ``key`` and ``subject`` are equal to the event's key and to the message property; a name that is a JSON
pointer, ``/type``, is equal to the value it names in the event, read as a feed's client reads it (``extract_text``): a
string as it is, any other value as its JSON text; null and a missing value equal nothing. Version 2b: ``event-types``.

Before events are read as JSON for a pointer, ``may_hold`` searches their bytes for the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.log import Records
from spark_streams.log.format.records import message_columns_of
from spark_streams.log.format.varint import Longs
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.feed.json_pointer import extract_text, parse_pointer

_ANY_POINTER: Final = "/*"
FILTERS: Final = ("key", "subject", _ANY_POINTER)
"""The filters that discovery lists; the last one means every JSON pointer, and is one itself."""
FILTER_FIELDS: Final = {"key": "key", _ANY_POINTER: _ANY_POINTER}
"""Filter to the field of an event that it compares; ``subject`` compares a message property, which no event has."""
SKIP_EVENT_TYPES: Final = "skip-event-types"

_FEW: Final = 8
"""The search is worth it when at most one of so many messages holds the text; else all of them are read."""


def may_hold(values: pa.Array, text: str) -> Longs | None:
    """Return the rows whose JSON may have a text as a value; None when they are many.

    JSON with a backslash may hold the text as an escape. JSON in UTF-16 or UTF-32 begins with a zero byte, has one as
    its second byte, or begins with a byte order mark.

    Args:
        values: binary or large_binary, none null.
        text: the text, not empty.

    Returns:
        int64, rising.
    """
    starts, raw = layout(values)
    longer = np.flatnonzero(np.diff(starts) > 1)
    first, second = raw[starts[longer]], raw[starts[longer] + 1]
    found = longer[(first == 0) | (second == 0) | (first >= 0xFE)].tolist()
    if len(found) > len(values) // _FEW:
        return None
    bounds, content = starts.tolist(), raw.tobytes()
    for sign in (text.encode(), b"\\"):
        at = content.find(sign)
        while at >= 0:
            found.append(bisect_right(bounds, at) - 1)
            if len(found) > len(values) // _FEW:
                return None
            at = content.find(sign, bounds[found[-1] + 1])  # from the next value on
    return np.unique(np.array(found, np.int64))


def served(names: Iterable[str]) -> tuple[str, ...]:
    """Return the filters of version 2a that are served; for pointers, those among ``names``."""
    return (*FILTERS, *(name for name in names if name.startswith("/") and _is_pointer(name)))


def wanted(records: Records, filters: Mapping[str, str]) -> NDArray[np.int64]:
    """Return the rows that all filters let through.

    Args:
        records: records of one partition, at least one.
        filters: name to value, at least one: of ``FILTERS``, pointers, or version 2b's.

    Returns:
        int64, rising.
    """
    pointers = {name: value for name, value in filters.items() if name.startswith("/")}
    rows = np.arange(len(records))
    others = {name: value for name, value in filters.items() if name not in pointers}
    if others:
        rows = rows[_others(records, others)]
    for name, value in pointers.items():
        rows = _named(records, rows, name, value)
    return rows


def _others(records: Records, filters: Mapping[str, str]) -> NDArray[np.bool_]:
    """Return bool[n]: which rows pass the filters that compare other parts of the message than its body."""
    names = [*(["key"] if "key" in filters else []), *(["properties"] if filters.keys() - {"key"} else [])]
    columns = message_columns_of(records, tuple(names))
    passed = np.ones(len(records), np.bool_)
    for name, value in filters.items():
        column = columns["key"] if name == "key" else pc.struct_field(columns["properties"], "subject")
        if name in FILTERS:
            found = pc.equal(column, value)
        else:
            types = [each.strip().lower() for each in value.split(";") if each.strip()]
            found = pc.is_in(pc.utf8_lower(column), pa.array(types, pa.string()), skip_nulls=True)
            found = pc.invert(found) if name == SKIP_EVENT_TYPES else found
        passed &= np.asarray(pc.fill_null(found, False))
    return passed


def _named(records: Records, rows: NDArray[np.int64], pointer: str, value: str) -> NDArray[np.int64]:
    """Return those of ``rows`` in which a pointer names ``value``.

    When few events hold the text, only these are read as JSON.
    """
    if not len(rows):
        return rows
    columns = message_columns_of(records if len(rows) == len(records) else records.take(rows), ("value",))
    values = pc.fill_null(columns["value"], b"")
    if value and not value.startswith(("{", "[")):  # the event may hold an object in another form than its JSON text
        near = may_hold(values, value)
        if near is not None:
            rows, values = rows[near], values.take(near)
    found = pc.equal(extract_text(values, pointer), value)
    return rows[np.flatnonzero(np.asarray(pc.fill_null(found, False)))]


def _is_pointer(name: str) -> bool:
    try:
        parse_pointer(name)
    except ValueError:
        return False
    return True
