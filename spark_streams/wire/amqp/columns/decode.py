"""Decode many encoded messages to Arrow columns: a whole block at a time, as ``single_message.py`` defines the columns.

A lockstep walk (``wire/amqp/sections.py``) finds the byte ranges and numbers of the wanted columns, from which
``canonical.py`` makes Arrow arrays. The walk marks some messages as irregular; they are decoded one by one and put into
their rows, so the result does not depend on the path. A part of a message that no named column needs is not decoded,
and damage there is not noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.columns.block import BlockSections, MessageBlock, chosen
from spark_streams.wire.amqp.columns.canonical import (
    ANNOTATION_TYPES,
    BINARY_CODES,
    BODY_CODES,
    KIND_CODES,
    MAP_TYPE,
    TIMESTAMP_TYPE,
    code_set,
    column_of,
    integers,
    number_column,
    offset_texts,
)
from spark_streams.wire.amqp.columns.maps import map_column, read_entries
from spark_streams.wire.amqp.columns.properties import (
    PROPERTIES_MS_TYPE,
    PROPERTIES_TYPE,
    field_values,
    in_microseconds,
    properties_column,
    read_fields,
)
from spark_streams.wire.amqp.columns.shaped_columns import ShapedColumns
from spark_streams.wire.amqp.columns.shaped_rows import by_shape
from spark_streams.wire.amqp.columns.single_message import (
    ANNOTATIONS,
    CREATION_TIME,
    GROUP_ID,
    Overflow,
    last_section,
    row_columns,
)
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.event_streams import ASSIGNED_KEYS
from spark_streams.wire.amqp.message import (
    AMQP_SEQUENCE,
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
)
from spark_streams.wire.amqp.sections import FEW, NULL_CODE, Extents, Pair, extents
from spark_streams.wire.columnar.arrays import binaries, fixed_width
from spark_streams.wire.columnar.byte_view import MAX_BLOCK_BYTES, Positions

COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "value": pa.binary(),
    "key": pa.string(),
    "properties": PROPERTIES_TYPE,
    "properties_ms": PROPERTIES_MS_TYPE,
    "application_properties": MAP_TYPE,
    "message_annotations": MAP_TYPE,
    "message": pa.binary(),
    "offset": pa.string(),
    "timestamp": TIMESTAMP_TYPE,
    "timestamp_ms": pa.int64(),
    "source_partition": pa.string(),
    "partitions_changed": pa.list_(pa.string()),
}
"""All columns that callers can name; those of rows have the types of ``rows.FULL_MESSAGE_SCHEMA``."""
IN_MS: Final = {"properties": "properties_ms", "timestamp": "timestamp_ms"}
"""The columns of rows with times, and what they are made of: the same with times in milliseconds."""

_MAPS: Final = {"message_annotations": MESSAGE_ANNOTATIONS, "application_properties": APPLICATION_PROPERTIES}
_NEVER: Final = code_set()


class Lockstep(BlockSections):
    """One block during decoding: the places of its columns' values.

    Args:
        block: the messages.
        names: names in ``COLUMN_TYPES``, of columns with times in milliseconds only.
        places: as for ``decode_columns``.
        last: the code of the last section to decode; None for the last one that the columns need.
    """

    def __init__(
        self,
        block: MessageBlock,
        names: frozenset[str],
        places: Places = EVENT_STREAMS.places,
        last: int | None = None,
    ) -> None:
        super().__init__(block, last_section(names, places) if last is None else last)
        self._places = places.by_column
        self.values: dict[str, Extents] = {}
        self.properties: dict[int, Pair] = {}
        self.maps = {name: read_entries(self, code) for name, code in _MAPS.items() if name in names}
        wanted = names | {"group_key"} if "key" in names else names
        for name in wanted & ANNOTATION_TYPES.keys():
            self._empty(name)
        for section in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS):
            self._keep_annotations(section, wanted)
        if names & {"key", "properties_ms", "creation_time_ms"}:
            fields = range(PROPERTIES_TYPE.num_fields) if "properties_ms" in names else (CREATION_TIME, GROUP_ID)
            self.properties = read_fields(self, fields)
        if "key" in names:
            first, second = self.values["group_key"], field_values(self, self.properties, GROUP_ID)
            use = first.code != NULL_CODE
            self.values["key"] = Extents(*(np.where(use, a, b) for a, b in zip(first, second, strict=True)))
        if "value" in names:
            self._read_body()
        if "message" in names:
            self.values["message"] = Extents(np.full(self.n, BINARY_CODES[0]), self.sections.bare_start, self.ends)

    def _keep_annotations(self, section: int, names: Collection[str]) -> None:
        wanted = [
            (self.values[name], place.key.encode(), KIND_CODES[place.kind])
            for name, place in self._places.items()
            if name in names and place.section == section
        ]
        if section == DELIVERY_ANNOTATIONS and "partitions_changed" in names:
            wanted += [(self._empty("partitions_changed"), key.encode(), _NEVER) for key in ASSIGNED_KEYS]
        if wanted:
            kept = self.maps.get("message_annotations") if section == MESSAGE_ANNOTATIONS else None
            self.keep_entries(kept or self.entries(section), wanted)

    def _empty(self, name: str) -> Extents:
        """Return the values of a column, of which there are none yet."""
        return self.values.setdefault(name, Extents.empty(self.n))

    def _read_body(self) -> None:
        values = self._empty("value")
        self.irregular |= self.sections.several
        for kind, codes in BODY_CODES.items():
            rows, value, _ = self.with_section(kind)
            if not rows.size:
                continue
            body = extents(self.words.big(value), value)
            plain = codes[body.code]
            self.irregular[rows[~plain]] = True
            values.keep(rows, body)
            texts = plain & ~KIND_CODES["binary"][body.code]
            if texts.any():
                # The column is binary, so nothing else would check that a string is UTF-8.
                column_of(self.words, body._replace(code=np.where(texts, body.code, NULL_CODE)), pa.string(), "value")
        rows, _, _ = self.with_section(AMQP_SEQUENCE)
        self.irregular[rows] = True

    def column(self, name: str, singly: Mapping[int, dict[str, Any]]) -> pa.Array:
        """Return a finished column.

        Args:
            name: one of those to decode.
            singly: the columns of irregular messages, as ``row_columns`` returns them, by row, which rises; an
                irregular message that is not there has a null.

        Raises:
            RemoteProtocolError: a text is not UTF-8.
            LocalProtocolError: the text is too much for one array.
        """
        kind = COLUMN_TYPES.get(name, pa.string())
        if not singly:
            return self._regular(name, kind)
        irregular = _array([columns[name] for columns in singly.values()], kind)
        _check_size(irregular.nbytes)
        if len(singly) == self.n:
            return irregular
        regular, at = self._regular(name, kind), 0
        pieces: list[pa.Array] = []
        _check_size(regular.nbytes + irregular.nbytes)
        for number, row in enumerate(singly):
            pieces += regular.slice(at, row - at), irregular.slice(number, 1)
            at = row + 1
        return pa.concat_arrays([*pieces, regular.slice(at)])

    def _regular(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return a column in which irregular messages are null."""
        if name in self.maps:
            return map_column(self, _MAPS[name], self.maps[name], name)
        if name == "properties_ms":
            return properties_column(self, self.properties)
        if name == "partitions_changed":
            return pa.nulls(self.n, kind)
        values = self.values[name]
        values = values._replace(code=np.where(self.irregular, NULL_CODE, values.code))
        place = self._places.get(name)
        if place is None or place.kind in ("symbol", "string"):
            return column_of(self.words, values, kind, name)
        valid = values.code != NULL_CODE
        if place.kind == "long":
            return offset_texts(integers(self.words, values), valid, place.key)
        return number_column(self.words.big(values.start), valid, kind)


def _array(content: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values of irregular messages as an array; bytes are joined, for which Python needs no lock (ADR 33)."""
    if all(each is None for each in content):
        return pa.nulls(len(content), kind)
    if kind not in (pa.string(), pa.binary()):
        return pa.array(content, kind)
    _check_size(sum([len(each or b"") for each in content]))
    return binaries(content, kind)


def _check_size(size: int) -> None:
    if size > MAX_BLOCK_BYTES:
        raise LocalProtocolError(f"a block's text grew past {MAX_BLOCK_BYTES} bytes: decode smaller blocks")


def decode_columns(
    block: MessageBlock,
    names: Collection[str],
    *,
    overflow: Overflow = "fail",
    places: Places = EVENT_STREAMS.places,
) -> dict[str, pa.Array]:
    """Decode the named columns of all messages of a block.

    Args:
        block: the messages.
        names: names in ``COLUMN_TYPES``; nothing else is decoded.
        overflow: ``fail`` raises for an instant that does not fit int64 microseconds, ``null`` makes its cell null. An
            instant never wraps.
        places: where the messages have offset, timestamp, partitions and key, by their dialect.

    Returns:
        Name to array, in the order of ``names``, each with one row for each message.

    Raises:
        RemoteProtocolError: a message is broken in a part that a named column needs. There is no result for the other
            messages of the block either.
        TimestampOverflow: a timestamp does not fit int64 microseconds, and ``overflow`` is ``fail``.
        LocalProtocolError: a name is unknown, or a range is outside the buffer.
    """
    unknown = set(names) - COLUMN_TYPES.keys()
    if unknown:
        raise LocalProtocolError(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(COLUMN_TYPES)}")
    decoded = _decoded(block, {IN_MS.get(name, name) for name in names}, places)
    what = "timestamp" if places.timestamp is None else places.timestamp.key
    return {
        name: in_microseconds(decoded[IN_MS[name]], what, overflow) if name in IN_MS else decoded[name]
        for name in names
    }


def _decoded(block: MessageBlock, names: Collection[str], places: Places) -> dict[str, pa.Array]:
    """Decode the named columns, of which those with times have milliseconds."""
    sorted_rows = by_shape(block, places.head if ANNOTATIONS.issuperset(names) else FOOTER, places)
    if not sorted_rows.parts:
        return _walked(block, names, places)
    shaped = ShapedColumns(sorted_rows.parts, len(block.starts))
    columns = {name: shaped.column(name) for name in names}
    if not sorted_rows.rest.size:
        return columns
    walked = _walked(chosen(block, sorted_rows.rest), names, places)
    rows = shaped.rows, sorted_rows.rest
    return {name: together(rows, (columns[name], walked[name])) for name in names}


def _walked(block: MessageBlock, names: Collection[str], places: Places) -> dict[str, pa.Array]:
    """Decode the named columns of messages of any shapes."""
    lockstep = Lockstep(block, frozenset(names), places)
    rows = np.flatnonzero(lockstep.irregular).tolist()
    singly = {row: row_columns(lockstep.raw(row), names, places) for row in rows}
    return {name: lockstep.column(name, singly) for name in names}


def together(rows: tuple[Positions, Positions], columns: tuple[pa.Array, pa.Array]) -> pa.Array:
    """Return both parts of a column as one.

    Args:
        rows: the numbers of each part's rows, rising; both parts together have each number once.
        columns: each part.

    Raises:
        LocalProtocolError: the text is too much for one array.
    """
    if all(column.null_count == len(column) for column in columns):
        return pa.nulls(sum(map(len, columns)), columns[0].type)
    _check_size(sum(column.nbytes for column in columns))
    if len(columns[1]) <= FEW:
        pieces, at = list[pa.Array](), 0
        for number, row in enumerate(rows[1].tolist()):
            pieces += columns[0].slice(at, row - number - at), columns[1].slice(number, 1)
            at = row - number
        return pa.concat_arrays([*pieces, columns[0].slice(at)])
    order = np.concatenate(rows)
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    return pa.concat_arrays(columns).take(fixed_width(place, pa.int64()))
