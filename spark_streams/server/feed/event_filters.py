"""Applies the filters of fetches to stored events, in columns.

Version 2a: ``key`` and ``subject`` are equal to the event's key and to the message property; a name that is a JSON
pointer, ``/type``, is equal to the value it names in the event, read as a feed's client reads it (``extract_text``): a
string as it is, any other value as its JSON text; null and a missing value equal nothing. Version 2b: ``event-types``.

Before anything is decoded for a pointer, ``may_hold`` searches the stored bytes for the text. That works for messages
whose body is one data section, or one string, which stands in the bytes as it is; all others may hold the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.log import Records
from spark_streams.log.format.records import message_columns_of
from spark_streams.wire.feed.json_pointer import extract_text, parse_pointer

_ANY_POINTER: Final = "/*"
FILTERS: Final = ("key", "subject", _ANY_POINTER)
"""The filters that discovery lists; the last one stands for every JSON pointer, and is one itself."""
FILTER_FIELDS: Final = {"key": "key", _ANY_POINTER: _ANY_POINTER}
"""Filter to the field of an event that it compares; ``subject`` compares a message property, which no event has."""
SKIP_EVENT_TYPES: Final = "skip-event-types"

_BEFORE_BODY: Final = (0x72, 0x73, 0x74)
"""Message annotations, properties, application properties (AMQP 1.0 §3.2), in their order."""
_SIZED: Final = 0xA0
"""Encodings from here on begin with their length, of four bytes if ``_LONG`` is in them, else of one (§1.1.2)."""
_LONG: Final = 0x10
_EMPTY: Final = 0x45
_BODIES: Final = ((0x75, (0xA0, 0xB0)), (0x77, (0xA1, 0xB1)))
"""A data section with its binary, an amqp-value with its string."""
_FEW: Final = 8
"""The search is worth it when at most one of so many messages holds the text; else all of them are decoded."""
_MARK: Final = 0xFE
_HEAD: Final = np.arange(8)
"""A section's first bytes: its descriptor, its encoding, and its length by one byte or four."""

Longs = NDArray[np.int64]


def may_hold(records: Records, text: str) -> Longs | None:
    """Return the rows whose body may hold a text; None when they are many.

    A body with a backslash may hold it too, as a JSON escape.

    Args:
        records: records of one partition, at least one.
        text: the text, not empty.

    Returns:
        int64, rising.
    """
    buffer = records.buffer
    first, end = int(records.value_starts[0]), int(records.value_ends[-1])
    few = len(records) // _FEW
    found_at: list[int] = []
    for sign in (text.encode(), b"\\"):
        at = buffer.find(sign, first, end)
        while at >= 0:
            found_at.append(at)
            if len(found_at) > few:
                return None
            at = buffer.find(sign, at + 1, end)
    held = ~_plain(np.frombuffer(buffer, np.uint8), records.value_starts, records.value_ends)
    held[np.searchsorted(records.value_starts, np.array(found_at, np.int64), side="right") - 1] = True
    found = np.flatnonzero(held)
    return found if len(found) <= 2 * few else None


def _plain(raw: NDArray[np.uint8], starts: Longs, ends: Longs) -> NDArray[np.bool_]:
    """Return bool[n]: which messages end with a body that stands in their bytes as it is, not in UTF-16 or UTF-32."""
    last = raw.size - 1
    at = starts
    head = raw[np.minimum(at[:, None] + _HEAD, last)]
    for code in _BEFORE_BODY:
        here = _is(head, code)
        if here.any():
            at = np.where(here, at + _section_size(head), at)
            head = raw[np.minimum(at[:, None] + _HEAD, last)]
    plain = np.zeros(len(starts), np.bool_)
    for code, encodings in _BODIES:
        plain |= _is(head, code) & np.isin(head[:, 3], encodings)
    plain &= at + _section_size(head) == ends
    # JSON in these begins with a zero byte, has one next, or begins with their byte order mark.
    body = at + np.where(head[:, 3] & _LONG, 8, 5)
    begin, second = raw[np.minimum(body, last)], raw[np.minimum(body + 1, last)]
    plain &= (begin != 0) & (begin < _MARK) & ((second != 0) | (body + 1 >= ends))
    return plain


def _section_size(head: NDArray[np.uint8]) -> Longs:
    """Return how many bytes the section of each head has; 0 for an encoding without a length, but the empty list."""
    kind = head[:, 3]
    long = np.ascontiguousarray(head[:, 4:8]).view(">u4")[:, 0].astype(np.int64)
    size = np.where(kind & _LONG, 8 + long, 5 + head[:, 4].astype(np.int64))
    return np.where(kind == _EMPTY, 4, np.where(kind >= _SIZED, size, 0))


def _is(head: NDArray[np.uint8], code: int) -> NDArray[np.bool_]:
    described: NDArray[np.bool_] = (head[:, 0] == 0x00) & (head[:, 1] == 0x53) & (head[:, 2] == code)
    return described


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

    When few events hold the text, only these are decoded and read as JSON.
    """
    if value and not value.startswith(("{", "[")):  # the event may hold an object in another form than its JSON text
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
