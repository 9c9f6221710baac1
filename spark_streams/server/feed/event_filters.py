"""Which stored events a fetch's filters let through, found in columns.

Version 2a: ``key`` and ``subject`` are equal to the event's key and to the message property; a name that is a JSON
pointer, ``/type``, is equal to what it names in the event, read as a feed's client reads it (``extract_text``): a
string as it is, anything else as its JSON text; null and what is not there equal nothing. Version 2b: ``event-types``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.log import Records
from spark_streams.log.message_columns import message_columns_of
from spark_streams.server.feed.needle import may_hold
from spark_streams.wire.feed.json_pointer import extract_text, parse_pointer

__all__ = ["FILTERS", "FILTER_FIELDS", "served", "wanted"]

_ANY_POINTER: Final = "/*"
FILTERS: Final = ("key", "subject", _ANY_POINTER)
"""The filters that discovery names; the last one stands for every JSON pointer, and is one of them itself."""
FILTER_FIELDS: Final = {"key": "key", _ANY_POINTER: _ANY_POINTER}
"""What those compare that clients see, which ``subject`` does not: a message property is not in the event."""
SKIP_EVENT_TYPES: Final = "skip-event-types"


def served(names: Iterable[str]) -> tuple[str, ...]:
    """Return the filters of version 2a that are served, pointers as far as they are among ``names``."""
    return (*FILTERS, *(name for name in names if name.startswith("/") and _is_pointer(name)))


def wanted(records: Records, filters: Mapping[str, str]) -> NDArray[np.int64]:
    """Return the rows that all filters let through.

    Args:
        records: of the log.
        filters: of ``FILTERS`` or pointers, or version 2b's, to their values; one or more.
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
    """Say which rows the filters let through that compare what the message has beside its body."""
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

    Only events that hold the text somewhere are decoded and read as JSON, where they are few.
    """
    if value and not value.startswith(("{", "[")):  # an object's JSON text is not how it stands in the event
        near = may_hold(records, value)
        if near is not None:
            rows = np.intersect1d(rows, near, assume_unique=True)
    if not len(rows):
        return rows
    columns = message_columns_of(records if len(rows) == len(records) else records.take(rows), ("value",))
    found = pc.equal(extract_text(pc.fill_null(columns["value"], b""), pointer), value)
    return rows[np.flatnonzero(np.asarray(pc.fill_null(found, False)))]


def _is_pointer(name: str) -> bool:
    try:
        parse_pointer(name)
    except ValueError:
        return False
    return True
