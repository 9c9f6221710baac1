"""Decode the properties sections of many messages into one Arrow struct column."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.columns.canonical import (
    BINARY_CODES,
    NULL_CODE,
    TEXT_CODES,
    ByteRange,
    code_set,
    column_of,
    fitting,
    text_spans,
)
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS, Overflow
from spark_streams.wire.amqp.sections import Extents, Pair, walk_list
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions
from spark_streams.wire.columnar.gather import validity

_ARROW: Final = {
    "text": pa.string(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "uint": pa.int64(),
}
PROPERTIES_TYPE: Final = pa.struct([(name, _ARROW[kind]) for name, kind in PROPERTY_FIELDS])
"""The struct of the column, in the order of AMQP 1.0 part 3 §3.2.4; field i of the list is field i of the struct."""

_CODES: Final = {
    "string": code_set(NULL_CODE, *TEXT_CODES),
    "binary": code_set(NULL_CODE, *BINARY_CODES),
    "timestamp": code_set(NULL_CODE, 0x83),
    "uint": code_set(NULL_CODE, 0x43, 0x52, 0x70),
}


class Properties:
    """The fields of the properties lists, until they become an array.

    Args:
        fields: field number to the values found in the lists.
        present: messages that have the section.
        irregular: messages whose fields do not count; ``place`` sets them one by one.
    """

    def __init__(self, fields: dict[int, Pair], present: Mask, irregular: Mask) -> None:
        self._fields = fields
        self._present = present
        self._irregular = irregular
        self._placed: dict[int, dict[str, Any] | None] = {}

    def place(self, row: int, fields: dict[str, Any] | None) -> None:
        """Set the fields of one irregular message; None if it has no properties section."""
        self._present[row] = fields is not None
        self._placed[row] = fields

    def _sure(self, index: int) -> Pair | None:
        step = self._fields.get(index)
        return None if step is None else step.without(self._irregular)

    def numbers(self, words: PaddedWords, index: int) -> tuple[NDArray[np.int64], Mask]:
        """Return a timestamp (ms) or uint field, and which messages have it; irregular messages are left out."""
        numbers, valid = np.zeros(self._irregular.size, np.int64), np.zeros(self._irregular.size, np.bool_)
        step = self._sure(index)
        if step is not None:
            width = step.end - step.start
            raw = words.big(step.start)
            signed = raw >> np.minimum(64 - 8 * width, 63)
            number = signed if PROPERTY_FIELDS[index][1] == "timestamp" else signed & ((1 << 8 * width) - 1)
            numbers[step.rows] = np.where(width == 0, 0, number)
            valid[step.rows] = step.code != NULL_CODE
        return numbers, valid

    def span(self, words: PaddedWords, index: int) -> ByteRange:
        """Return a field's canonical text, or a binary field's bytes; irregular messages are left out."""
        span = ByteRange.empty(self._irregular.size)
        step = self._sure(index)
        if step is not None:
            if PROPERTY_FIELDS[index][1] == "text":
                found = text_spans(words, step.code, step.value, step.start, step.end)
                for part, of_field in zip(span, found, strict=True):
                    part[step.rows] = of_field
            else:
                span.keep(step.rows, Extents(step.code, step.start, step.end))
        return span

    def array(self, words: PaddedWords, overflow: Overflow = "fail") -> pa.StructArray:
        """Return the column, one row for each message, null where there is no section.

        Raises:
            RemoteProtocolError: an id cannot be decoded, or a text is not UTF-8.
            TimestampOverflow: a timestamp does not fit microseconds, and ``overflow`` is ``fail``.
        """
        children = []
        for index, (name, kind) in enumerate(PROPERTY_FIELDS):
            placed = {row: fields[name] for row, fields in self._placed.items() if fields is not None}
            if kind in ("timestamp", "uint"):
                numbers, valid = self.numbers(words, index)
                if kind == "timestamp":
                    valid = fitting(numbers, valid, f"property {name.replace('_', '-')}", overflow)
                    numbers = np.where(valid, numbers, 0) * 1000
                for row, number in placed.items():
                    valid[row] = number is not None
                    numbers[row] = number or 0
                buffers = [validity(valid), pa.py_buffer(numbers)]
                children.append(pa.Array.from_buffers(_ARROW[kind], numbers.size, buffers))
            else:
                span = self.span(words, index)
                for row, text in placed.items():
                    span.place(row, text, words)
                children.append(column_of(words, span, _ARROW[kind], f"properties.{name}"))
        mask = None if self._present.all() else pa.array(~self._present)
        return pa.StructArray.from_arrays(children, fields=list(PROPERTIES_TYPE), mask=mask)


def read_properties(
    words: PaddedWords, rows: Positions, position: Positions, end: Positions, irregular: Mask, fields: Collection[int]
) -> Properties:
    """Walk the properties lists.

    Args:
        words: the bytes.
        rows: the messages that have the section.
        position: each list's format code.
        end: position after each list.
        irregular: set to True where a list is irregular, or a field of ``fields`` has a wrong type.
        fields: numbers of the fields to read.
    """
    present = np.zeros(irregular.size, np.bool_)
    present[rows] = True
    found: dict[int, Pair] = {}
    for index, step in enumerate(walk_list(words, rows, position, end, irregular)):
        if index >= len(PROPERTY_FIELDS):
            irregular[step.rows] = True
            break
        if index in fields:
            allowed = _CODES.get(PROPERTY_FIELDS[index][1])
            if allowed is not None:
                irregular[step.rows[~allowed[step.code]]] = True
            found[index] = step
    return Properties(found, present, irregular)
