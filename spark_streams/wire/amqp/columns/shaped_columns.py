"""Make the columns of messages with a shape, as ``single_message.py`` defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.canonical_text import canonical_text
from spark_streams.wire.amqp.columns.canonical import (
    ANNOTATION_TYPES,
    BINARY_CODES,
    MAP_TYPE,
    TEXT_CODES,
    column_of,
    map_array,
    number_column,
    offset_texts,
)
from spark_streams.wire.amqp.columns.properties import PROPERTIES_MS_TYPE
from spark_streams.wire.amqp.columns.shaped_rows import ShapedRows
from spark_streams.wire.amqp.columns.shapes import FALSE, INTEGERS, NULL, TRUE, Entries, Shape, Slot
from spark_streams.wire.amqp.columns.single_message import CREATION_TIME, GROUP_ID, PROPERTY_FIELDS
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.dialects.dialect import Place
from spark_streams.wire.amqp.event_streams import NO_TIMESTAMP
from spark_streams.wire.amqp.message import AMQP_VALUE, DELIVERY_ANNOTATIONS
from spark_streams.wire.amqp.sections import Extents
from spark_streams.wire.columnar.arrays import booleans, fixed_width, repeated, strings
from spark_streams.wire.columnar.byte_view import Mask, Positions
from spark_streams.wire.columnar.gather import gather

_UNSIGNED: Final = 0x80
_CONSTANTS: Final = {TRUE: "true", FALSE: "false", 0x43: "0", 0x44: "0"}
_STRING: Final = 0xA1
_MOST_BYTES: Final = 17
"""The most bytes of a value of fixed width, with its format code."""
_MAPS: Final[dict[str, Callable[[Shape], Entries | None]]] = {
    "message_annotations": lambda shape: shape.annotations,
    "application_properties": lambda shape: shape.application,
}


Part = tuple[ShapedRows, Positions | slice]
"""Messages of one shape, and which rows of the columns they are."""


class ShapedColumns:
    """The columns of messages with a shape, in the order of their block.

    Args:
        parts: the messages by their shapes, at least one.
        count: number of messages of the block, those without a shape included.

    Attributes:
        rows: the numbers of the messages in the block, rising.
    """

    def __init__(self, parts: Sequence[ShapedRows], count: int) -> None:
        self._places = parts[0].shape.places.by_column
        self._words = parts[0].words
        self._n = sum(part.rows.size for part in parts)
        self._texts: dict[tuple[Slot | None, ...], pa.StringArray] = {}
        self.rows: Positions = parts[0].rows
        self._parts: list[Part] = [(parts[0], slice(None))]
        if len(parts) > 1:
            there = np.zeros(count, np.bool_)
            for part in parts:
                there[part.rows] = True
            self.rows, place = np.flatnonzero(there), np.cumsum(there) - 1
            self._parts = [(part, place[part.rows]) for part in parts]

    def column(self, name: str) -> pa.Array:
        """Return one of the columns of ``decode_columns``, of those with times in milliseconds, or the ``group_key``.

        Raises:
            RemoteProtocolError: a text of the column is not UTF-8.
            LocalProtocolError: the text is too much for one array.
        """
        if name == "value":
            return self._body()
        if name == "message":
            starts, ends = self.bare_starts, self._numbers([part.ends for part, _ in self._parts])
            return gather(self._words, starts, ends - starts, pa.binary())
        if name in ("key", "group_key"):
            return self._text([self._key(part.shape, name) for part, _ in self._parts], name)
        if name == "properties_ms":
            return self._properties()
        if name in _MAPS:
            return self._map([_MAPS[name](part.shape) for part, _ in self._parts], name)
        if name == "partitions_changed":
            return pa.nulls(self._n, pa.list_(pa.string()))
        place = self._places.get(name)
        return pa.nulls(self._n, ANNOTATION_TYPES[name]) if place is None else self._annotation(name, place)

    def _annotation(self, name: str, place: Place) -> pa.Array:
        slots = [_annotated(part.shape, place) for part, _ in self._parts]
        if place.kind == "long":
            return offset_texts(*self._integers(slots), place.key)
        if place.kind != "timestamp":
            return self._text(slots, name)
        return number_column(*self._integers(slots), pa.int64())

    @property
    def bare_starts(self) -> Positions:
        """The first byte of each message after its header and delivery annotations."""
        return self._numbers([part.bare_starts for part, _ in self._parts])

    @property
    def creation_time_ms(self) -> NDArray[np.int64]:
        """The property creation-time, or ``NO_TIMESTAMP``."""
        numbers, valid = self._integers(self._fields(CREATION_TIME))
        return np.where(valid, numbers, NO_TIMESTAMP)

    def check(self) -> None:
        """Check all texts that a reader of the stored message may decode.

        Raises:
            RemoteProtocolError: one is not UTF-8.
        """
        for part, _ in self._parts:
            shape = part.shape
            entries = (*(shape.annotations or ()), *(shape.properties or ()), *(shape.application or ()))
            slots = [slot for _, slot in entries]
            if shape.body is not None and shape.body[0] == AMQP_VALUE:
                slots.append(shape.body[1])
            texts = [slot for slot in slots if slot.code in TEXT_CODES and (slot,) not in self._texts]
            if texts:
                _gathered(part, texts, pa.string(), "value")

    def _numbers(self, each: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return a number of each message, given those of each part."""
        if len(each) == 1:
            return each[0]
        numbers = np.empty(self._n, np.int64)
        for (_, at), part in zip(self._parts, each, strict=True):
            numbers[at] = part
        return numbers

    def _fields(self, index: int) -> list[Slot | None]:
        """Return each part's property field."""
        return [_field(part.shape, index) for part, _ in self._parts]

    def _live(self, slots: Sequence[Slot | None]) -> list[tuple[ShapedRows, Positions | slice, Slot]]:
        """Return the parts that have a value which is not null, given each part's value."""
        each = zip(self._parts, slots, strict=True)
        return [(part, at, slot) for (part, at), slot in each if slot is not None and slot.code != NULL]

    def _integers(self, slots: Sequence[Slot | None]) -> tuple[NDArray[np.int64], Mask]:
        """Return a number of each message, and which messages have it."""
        live = self._live(slots)
        if len(live) == len(self._parts):
            return self._numbers([part.integers(slot) for part, _, slot in live]), np.ones(self._n, np.bool_)
        numbers, valid = np.zeros(self._n, np.int64), np.zeros(self._n, np.bool_)
        for part, at, slot in live:
            numbers[at], valid[at] = part.integers(slot), True
        return numbers, valid

    def _extents(self, slots: Sequence[Slot | None]) -> Extents:
        """Return where values of variable length are."""
        live = self._live(slots)
        if len(self._parts) == len(live) == 1:
            return Extents(np.full(self._n, live[0][2].code), *live[0][0].content(live[0][2]))
        values = Extents.empty(self._n)
        for part, at, slot in live:
            values.code[at] = slot.code
            values.start[at], values.end[at] = part.content(slot)
        return values

    def _key(self, shape: Shape, name: str) -> Slot | None:
        place = self._places.get("group_key")
        slot = None if place is None else _annotated(shape, place)
        return _field(shape, GROUP_ID) if name == "key" and (slot is None or slot.code == NULL) else slot

    def _body(self) -> pa.BinaryArray:
        bodies = [None if part.shape.body is None else part.shape.body[1] for part, _ in self._parts]
        texts = [slot if slot is not None and slot.code in TEXT_CODES else None for slot in bodies]
        self._text(texts, "value")  # the column is binary, so nothing else would check that a string is UTF-8
        return column_of(self._words, self._extents(bodies), pa.binary(), "value")

    def _properties(self) -> pa.StructArray:
        present = self._present([part.shape.properties for part, _ in self._parts])
        if not present.any():
            return pa.nulls(self._n, PROPERTIES_MS_TYPE)
        children = []
        for index, (name, kind) in enumerate(PROPERTY_FIELDS):
            slots, what = self._fields(index), f"properties.{name}"
            if not any(slots):
                children.append(pa.nulls(self._n, PROPERTIES_MS_TYPE[index].type))
            elif kind in ("timestamp", "uint"):
                children.append(number_column(*self._integers(slots), pa.int64()))
            elif kind == "binary":
                children.append(column_of(self._words, self._extents(slots), pa.binary(), what))
            else:
                children.append(self._text(slots, what))
        mask = None if present.all() else booleans(~present)
        return pa.StructArray.from_arrays(children, fields=list(PROPERTIES_MS_TYPE), mask=mask)

    def _present(self, sections: Sequence[Entries | None]) -> Mask:
        """Return which messages have a section, given those of each part."""
        present = np.zeros(self._n, np.bool_)
        for (_, at), entries in zip(self._parts, sections, strict=True):
            present[at] = entries is not None
        return present

    def _map(self, maps: Sequence[Entries | None], column: str) -> pa.MapArray:
        present = self._present(maps)
        if not present.any():
            return pa.nulls(self._n, MAP_TYPE)
        bounds = np.zeros(self._n + 1, np.int64)
        if len(maps) == 1:
            entries = maps[0] or ()
            bounds = np.arange(self._n + 1) * len(entries)
            pairs = [_keys([key for key, _ in entries], self._n), self._items([slot for _, slot in entries], column)]
        else:
            for (_, at), each in zip(self._parts, maps, strict=True):
                bounds[1:][at] = len(each or ())
            np.cumsum(bounds, out=bounds)
            pairs = self._entries(maps, bounds, column)
        return map_array(present, bounds, *pairs)

    def _items(self, slots: list[Slot], column: str) -> pa.StringArray:
        """Return the values of the maps of one part, the only one."""
        if len(slots) == 1:
            return self._text(slots, column)
        if slots and all(slot.code in TEXT_CODES for slot in slots):
            return _gathered(self._parts[0][0], slots, pa.string(), column)
        texts = [self._text([slot], column) for slot in slots]
        order = np.arange(len(slots) * self._n).reshape(len(slots), self._n).T.reshape(-1)
        return pa.concat_arrays(texts).take(fixed_width(order, pa.int64())) if slots else pa.nulls(0, pa.string())

    def _entries(self, maps: Sequence[Entries | None], bounds: Positions, column: str) -> list[pa.StringArray]:
        """Return the keys and the values of the maps of several parts; a message's begin at its place in ``bounds``."""
        total = int(bounds[-1])
        keys, values = Extents.empty(total), Extents.empty(total)
        others: list[tuple[Positions, pa.StringArray]] = []
        for (part, at), entries in zip(self._parts, maps, strict=True):
            for number, (key, slot) in enumerate(entries or ()):
                where, end = bounds[:-1][at] + number, part.constructor(slot)
                keys.keep(where, Extents(np.full(where.size, _STRING), end - len(key), end))
                if slot.code in TEXT_CODES:
                    values.keep(where, Extents(np.full(where.size, slot.code), *part.content(slot)))
                elif slot.code != NULL:
                    others.append((where, _text_of(part, slot, column)))
        found = column_of(self._words, values, pa.string(), column)
        if others:
            place, begin = np.arange(total), total
            for where, texts in others:
                place[where] = np.arange(begin, begin + len(texts))
                begin += len(texts)
            found = pa.concat_arrays([found, *(texts for _, texts in others)]).take(fixed_width(place, pa.int64()))
        return [column_of(self._words, keys, pa.string(), column), found]

    def _text(self, slots: Sequence[Slot | None], column: str) -> pa.StringArray:
        """Return the canonical text of a value of each message, given the value of each part."""
        live = self._live(slots)
        if not live:
            return pa.nulls(self._n, pa.string())
        found = self._texts.get(tuple(slots))
        if found is not None:
            return found
        if all(slot.code in TEXT_CODES for _, _, slot in live):
            found = column_of(self._words, self._extents(slots), pa.string(), column)
        else:
            texts = [_text_of(part, slot, column) for part, _, slot in live]
            place, begin = np.full(self._n, -1), 0
            for (_, at, _), each in zip(live, texts, strict=True):
                place[at] = np.arange(begin, begin + len(each))
                begin += len(each)
            found = pa.concat_arrays(texts).take(fixed_width(place, pa.int64(), place >= 0))
        self._texts[tuple(slots)] = found
        return found


def _field(shape: Shape, index: int) -> Slot | None:
    """Return a field of the properties; None where it is absent or null."""
    fields = shape.properties or ()
    return fields[index][1] if index < len(fields) and fields[index][1].code != NULL else None


def _annotated(shape: Shape, place: Place) -> Slot | None:
    """Return an annotation; None where it is absent."""
    entries = shape.delivery if place.section == DELIVERY_ANNOTATIONS else shape.annotations
    return dict(entries or ()).get(place.key.encode())


def _keys(keys: list[bytes], count: int) -> pa.StringArray:
    """Return these keys of a map, for each of ``count`` messages."""
    content = b"".join(keys)
    ends = np.cumsum([len(key) for key in keys], dtype=np.int32)
    bounds = np.zeros(count * len(keys) + 1, np.int32)
    bounds[1:] = np.add.outer(np.arange(count, dtype=np.int32) * np.int32(len(content)), ends).reshape(-1)
    return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(content * count))


def _gathered(part: ShapedRows, slots: Sequence[Slot], kind: pa.DataType, column: str) -> pa.Array:
    """Return values of variable length, those of each message one after the other."""
    starts, ends = zip(*(part.content(slot) for slot in slots), strict=True)
    start, end = (np.stack(each, axis=1).reshape(-1) for each in (starts, ends))
    return column_of(
        part.words, Extents(np.tile([slot.code for slot in slots], part.rows.size), start, end), kind, column
    )


def _text_of(part: ShapedRows, slot: Slot, column: str) -> pa.StringArray:
    """Return the canonical text of a value that is not null, of each message of a part."""
    count = part.rows.size
    if slot.code in TEXT_CODES:
        return _gathered(part, [slot], pa.string(), column)
    if slot.code in _CONSTANTS:
        return repeated(_CONSTANTS[slot.code], count)
    if slot.code in INTEGERS:
        kind = pa.uint64() if slot.code == _UNSIGNED else pa.int64()
        return fixed_width(part.integers(slot), kind).cast(pa.string())
    starts = part.constructor(slot)
    _, ends = part.content(slot) if slot.code in BINARY_CODES else (starts, starts + _MOST_BYTES)
    raw = (part.words.bytes[a:b].tobytes() for a, b in zip(starts.tolist(), ends.tolist(), strict=True))
    try:
        return strings([canonical_text(decode_value(each)[0]) for each in raw])
    except ValueError as fault:
        raise LocalProtocolError(f"column '{column}': {fault}: decode smaller blocks") from fault
