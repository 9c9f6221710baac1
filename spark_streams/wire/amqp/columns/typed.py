"""Decode typed values of many messages: one annotation, property field or application property for each column.

``maps.py`` and ``properties.py`` return everything as canonical text, which rows need. A filter compares texts with
texts and numbers with numbers, so it needs the encoded types:

=========  ========================================================================================
kind       AMQP types
=========  ========================================================================================
NULL       null, no such entry, no such section
TEXT       string, symbol; binary and uuid by their bytes
INTEGER    every integer within int64; timestamp in ms; char, its code point
FLOAT      float, double; decimals that are not finite
NUMBER     the other numbers: ulong of 2^63 and more, finite decimals; few, so decoded one by one
BOOLEAN    boolean
OTHER      list, map, array, described
BROKEN     the message, or the value, cannot be decoded
=========  ========================================================================================

Where FILTEX defines nothing (char, uuid, binary) this file does what RabbitMQ does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.canonical_text import canonical_text
from spark_streams.wire.amqp.columns.block import BlockSections, MessageBlock
from spark_streams.wire.amqp.columns.canonical import (
    BINARY_CODES,
    SIGNED_CODES,
    TEXT_CODES,
    UNSIGNED_CODES,
    code_set,
    column_of,
    integers,
)
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS, lookup
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP
from spark_streams.wire.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    decode_section,
    split_sections,
)
from spark_streams.wire.amqp.sections import NULL_CODE, Extents
from spark_streams.wire.amqp.values import Char, EncodedDecimal
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords

NULL, TEXT, INTEGER, FLOAT, NUMBER, BOOLEAN, OTHER, BROKEN = range(8)
"""The kinds, as in the table above."""

_CHAR: Final = 0x73
_UUID: Final = 0x98
_DECIMALS: Final = (0x74, 0x84, 0x94)
_MIN_INT64: Final = -(2**63)
_MAX_INT64: Final = 2**63 - 1


def _kind_table() -> NDArray[np.uint8]:
    """Return each format code's kind; decimals are OTHER until they are decoded one by one."""
    table = np.full(256, OTHER, np.uint8)
    table[NULL_CODE] = NULL
    table[[*TEXT_CODES, *BINARY_CODES, _UUID]] = TEXT
    table[[*SIGNED_CODES, *UNSIGNED_CODES, _CHAR]] = INTEGER
    table[[0x72, 0x82]] = FLOAT
    table[[0x41, 0x42, 0x56]] = BOOLEAN
    return table


_KINDS: Final = _kind_table()
_ONE_BY_ONE: Final = code_set(*_DECIMALS)
_ANY: Final = np.ones(256, np.bool_)
_PROPERTY_INDEX: Final = {name: index for index, (name, _) in enumerate(PROPERTY_FIELDS)}


class FieldOfMessage(NamedTuple):
    """One place in a message: a section code (part 3 §3.2), and a map key or a field's name with underscores."""

    section: int
    name: str


@dataclass
class TypedColumn:
    """One field of n messages.

    Args:
        kind: the kind of each value, as in the table above.
        integers: the number where the kind is INTEGER, 0 or 1 where it is BOOLEAN.
        floats: the number where the kind is FLOAT.
        text: the place in ``words`` of the bytes, where the kind is TEXT.
        words: the bytes.
        numbers: row to value, where the kind is NUMBER.
    """

    kind: NDArray[np.uint8]
    integers: NDArray[np.int64]
    floats: NDArray[np.float64]
    text: Extents
    words: PaddedWords
    numbers: dict[int, int | Decimal] = field(default_factory=dict)

    @property
    def is_text(self) -> Mask:
        """The rows that are texts."""
        mask: Mask = self.kind == TEXT
        return mask

    def equals(self, text: bytes) -> Mask:
        """Return which rows equal a text."""
        return self.is_text & self.words.equal(self.text.start, self.text.end, text)

    @cached_property
    def raw(self) -> pa.BinaryArray:
        """The texts' bytes; null for a row that is no text."""
        binary = np.where(self.is_text, BINARY_CODES[0], NULL_CODE)
        return column_of(self.words, self.text._replace(code=binary), pa.binary(), "filter")

    @cached_property
    def texts(self) -> pa.StringArray:
        """The texts; null for a row that is no text, or not UTF-8."""
        try:
            return self.raw.cast(pa.string())
        except pa.ArrowInvalid:
            texts = (t if (t or b"").decode("utf-8", "ignore").encode() == t else None for t in self.raw.to_pylist())
            return pa.array(list(texts), pa.string())


def timestamp_column(timestamps: NDArray[np.int64]) -> TypedColumn:
    """Return instants in ms since the epoch as a column; ``NO_TIMESTAMP`` is null."""
    kind = np.where(timestamps == NO_TIMESTAMP, NULL, INTEGER).astype(np.uint8)
    nothing = PaddedWords(np.zeros(0, np.uint8), 0, 0)
    return TypedColumn(kind, timestamps, np.zeros(kind.size), Extents.empty(kind.size), nothing)


def typed_columns(block: MessageBlock, fields: Collection[FieldOfMessage]) -> dict[FieldOfMessage, TypedColumn]:
    """Read some fields of all messages of a block.

    Args:
        block: bare messages, or whole ones.
        fields: of the sections message annotations, properties and application properties; of properties the names
            of ``PROPERTY_FIELDS``.

    Returns:
        Field to column. A message that is broken before or in one of the sections is BROKEN in every column.
    """
    return _TypedBlock(block, fields).columns()


class _TypedBlock(BlockSections):
    """The state of reading one block into typed columns."""

    def __init__(self, block: MessageBlock, fields: Collection[FieldOfMessage]) -> None:
        super().__init__(block, max((each.section for each in fields), default=0))
        self.values = {each: Extents.empty(self.n) for each in fields}
        self._texts: list[tuple[Extents, int, bytes]] = []
        for section in (MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES):
            keys = [(values, name.encode(), _ANY) for (of, name), values in self.values.items() if of == section]
            if keys:
                self.keep_entries(self.entries(section), keys, once=True)
        places = {_PROPERTY_INDEX[name]: values for (of, name), values in self.values.items() if of == PROPERTIES}
        if places:
            for index, step in enumerate(self.entries(PROPERTIES)):
                if index in places:
                    places[index].keep(step.rows, step.value)

    def columns(self) -> dict[FieldOfMessage, TypedColumn]:
        """Return the columns, with the irregular messages decoded one by one."""
        found = {each: self._column(values) for each, values in self.values.items()}
        for row in np.flatnonzero(self.irregular).tolist():
            try:
                values = _values(self.raw(row), found)
            except RemoteProtocolError:
                for column in found.values():
                    column.kind[row] = BROKEN
            else:
                for each, value in values.items():
                    self._place(found[each], row, value)
        # One addition for all: each copies the block.
        at = self.words.append(b"".join([text for _, _, text in self._texts]))
        for texts, row, text in self._texts:
            texts.start[row], texts.end[row] = at, at + len(text)
            at += len(text)
        return found

    def _column(self, values: Extents) -> TypedColumn:
        kind = _KINDS[values.code]
        kind[self.irregular] = NULL
        column = TypedColumn(kind, np.zeros(self.n, np.int64), np.zeros(self.n, np.float64), values, self.words)
        singly = _ONE_BY_ONE[values.code] & ~self.irregular
        rows = np.flatnonzero(kind == INTEGER)
        if rows.size:
            column.integers[rows] = integers(self.words, values.at(rows))
            singly[rows] |= (values.code[rows] == 0x80) & (column.integers[rows] < 0)
        rows = np.flatnonzero(kind == BOOLEAN)
        if rows.size:
            content = self.words.bytes[values.start[rows]]
            column.integers[rows] = np.where(values.code[rows] == 0x56, content, values.code[rows] == 0x41) != 0
        rows = np.flatnonzero(kind == FLOAT)
        if rows.size:
            raw = self.words.big(values.start[rows])
            single = (raw >> 32).astype(np.int32).view(np.float32).astype(np.float64)
            column.floats[rows] = np.where(values.code[rows] == 0x72, single, raw.view(np.float64))
        for row in np.flatnonzero(singly).tolist():
            # The format code lies before the value: these have no size between them.
            value, _ = decode_value(self.words.bytes[values.start[row] - 1 : values.end[row]].tobytes())
            self._place(column, row, value)
        return column

    def _place(self, column: TypedColumn, row: int, value: Any) -> None:
        """Put one decoded value into its row; ``columns`` adds the texts after the block's own bytes."""
        if isinstance(value, Char):
            value = ord(value)
        elif isinstance(value, str):
            value = value.encode()
        elif isinstance(value, UUID):
            value = value.bytes
        elif isinstance(value, EncodedDecimal):
            number = Decimal(canonical_text(value))
            value = number if number.is_finite() else float(number)
        if value is None:
            column.kind[row] = NULL
        elif isinstance(value, bytes):
            column.kind[row] = TEXT
            self._texts.append((column.text, row, value))
        elif isinstance(value, bool):
            column.kind[row], column.integers[row] = BOOLEAN, value
        elif isinstance(value, int) and _MIN_INT64 <= value <= _MAX_INT64:
            column.kind[row], column.integers[row] = INTEGER, value
        elif isinstance(value, int | Decimal):
            column.kind[row] = NUMBER
            column.numbers[row] = int(value) if isinstance(value, int) else value
        elif isinstance(value, float):
            column.kind[row], column.floats[row] = FLOAT, value
        else:
            column.kind[row] = OTHER


def _values(raw: bytes, fields: Collection[FieldOfMessage]) -> dict[FieldOfMessage, Any]:
    """Return one message's fields, decoded."""
    sections = {section.code: section for section in split_sections(raw)}
    decoded = {
        code: decode_section(raw, sections[code]) for code in {each.section for each in fields} if code in sections
    }
    return {each: _entry(decoded.get(each.section), each) for each in fields}


def _entry(content: Any, wanted: FieldOfMessage) -> Any:
    if wanted.section != PROPERTIES:
        return lookup(content, wanted.name)
    index = _PROPERTY_INDEX[wanted.name]
    return content[index] if content is not None and index < len(content) else None
