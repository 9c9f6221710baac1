"""Decode the properties sections of many messages into one Arrow struct column."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.columns.block import BlockSections
from spark_streams.wire.amqp.columns.canonical import (
    BINARY_CODES,
    TEXT_CODES,
    TIMESTAMP_TYPE,
    canonical_texts,
    code_set,
    column_of,
    instant_column,
    integers,
    number_column,
)
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS, Overflow
from spark_streams.wire.amqp.message import PROPERTIES
from spark_streams.wire.amqp.sections import NULL_CODE, Extents, Pair
from spark_streams.wire.columnar.byte_view import Mask

_KINDS: Final = {
    "text": (pa.string(), None),
    "string": (pa.string(), code_set(NULL_CODE, *TEXT_CODES)),
    "binary": (pa.binary(), code_set(NULL_CODE, *BINARY_CODES)),
    "timestamp": (TIMESTAMP_TYPE, code_set(NULL_CODE, 0x83)),
    "uint": (pa.int64(), code_set(NULL_CODE, 0x43, 0x52, 0x70)),
}
"""Each kind of field to its Arrow type, and to the format codes that its values may have; None for any."""
PROPERTIES_TYPE: Final = pa.struct([(name, _KINDS[kind][0]) for name, kind in PROPERTY_FIELDS])
"""The struct of the column, in the order of AMQP 1.0 part 3 §3.2.4; field i of the list is field i of the struct."""


class Properties:
    """The fields of the properties lists, until they become an array; those of irregular messages are null.

    Args:
        block: the messages; those whose list is irregular, or has a field of ``fields`` of a wrong type, become
            irregular.
        fields: numbers of the fields to read.
    """

    def __init__(self, block: BlockSections, fields: Collection[int]) -> None:
        self._block = block
        self._fields: dict[int, Pair] = {}
        for index, step in enumerate(block.fields(PROPERTIES)):
            if index >= len(PROPERTY_FIELDS):
                block.irregular[step.rows] = True
                break
            if index in fields:
                _, allowed = _KINDS[PROPERTY_FIELDS[index][1]]
                if allowed is not None:
                    block.irregular[step.rows[~allowed[step.code]]] = True
                self._fields[index] = step

    def field(self, index: int) -> Extents:
        """Return a field of every message; text as canonical text."""
        found = Extents.empty(self._block.n)
        if index in self._fields:
            step = self._fields[index]
            step = step.chosen(~self._block.irregular[step.rows])
            text = PROPERTY_FIELDS[index][1] == "text"
            found.keep(step.rows, canonical_texts(self._block.words, step.value) if text else step.value)
        return found

    def numbers(self, index: int) -> tuple[NDArray[np.int64], Mask]:
        """Return a timestamp (ms) or uint field, and which messages have it."""
        values = self.field(index)
        return integers(self._block.words, values), values.code != NULL_CODE

    def array(self, overflow: Overflow = "fail") -> pa.StructArray:
        """Return the column, one row for each message, null where there is no section, and for irregular messages.

        Raises:
            RemoteProtocolError: an id cannot be decoded, or a text is not UTF-8.
            TimestampOverflow: a timestamp does not fit microseconds, and ``overflow`` is ``fail``.
        """
        children = []
        for index, (name, kind) in enumerate(PROPERTY_FIELDS):
            if kind == "timestamp":
                children.append(instant_column(*self.numbers(index), f"property {name.replace('_', '-')}", overflow))
            elif kind == "uint":
                children.append(number_column(*self.numbers(index), _KINDS[kind][0]))
            else:
                children.append(column_of(self._block.words, self.field(index), _KINDS[kind][0], f"properties.{name}"))
        present = self._block.present(PROPERTIES)
        mask = None if present.all() else pa.array(~present)
        return pa.StructArray.from_arrays(children, fields=list(PROPERTIES_TYPE), mask=mask)
