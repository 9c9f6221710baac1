"""Make the columns of messages of one shape, as ``single_message.py`` defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.canonical_text import canonical_text
from spark_streams.wire.amqp.columns.canonical import (
    BINARY_CODES,
    TEXT_CODES,
    column_of,
    instant_column,
    number_column,
)
from spark_streams.wire.amqp.columns.properties import PROPERTIES_TYPE
from spark_streams.wire.amqp.columns.shaped_rows import ShapedRows
from spark_streams.wire.amqp.columns.shapes import FALSE, INTEGERS, NULL, TRUE, Entries, Slot
from spark_streams.wire.amqp.columns.single_message import CREATION_TIME, GROUP_ID, PROPERTY_FIELDS, Overflow
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.event_streams import DELIVERY_TEXTS, GROUP_KEY, NO_TIMESTAMP, TIMESTAMP_KEY
from spark_streams.wire.amqp.message import AMQP_VALUE
from spark_streams.wire.amqp.sections import Extents
from spark_streams.wire.columnar.arrays import fixed_width, repeated, strings
from spark_streams.wire.columnar.gather import gather

_MAP_TYPE: Final = pa.map_(pa.string(), pa.string())
_UNSIGNED: Final = 0x80
_CONSTANTS: Final = {TRUE: "true", FALSE: "false", 0x43: "0", 0x44: "0"}
_GROUP_KEY: Final = GROUP_KEY.encode()


class ShapedColumns:
    """The columns of messages of one shape.

    Args:
        rows: the messages.
        overflow: as for ``decode_columns``.
    """

    def __init__(self, rows: ShapedRows, overflow: Overflow = "fail") -> None:
        self._rows = rows
        self._shape = rows.shape
        self._n = rows.rows.size
        self._overflow = overflow
        self._delivery = dict(rows.shape.delivery)
        self._texts: dict[Slot, pa.StringArray] = {}

    def column(self, name: str) -> pa.Array:
        """Return one of the columns of ``decode_columns``, or the ``group_key``.

        Raises:
            RemoteProtocolError: a text of the column is not UTF-8, or a symbol not ASCII.
            TimestampOverflow: as ``decode_columns``.
        """
        if name == "value":
            return self._body()
        if name == "message":
            starts = self._rows.bare_starts
            return gather([self._rows.words], starts, self._rows.ends - starts, pa.binary())
        if name in ("key", "group_key"):
            return self._key(name)
        if name == "properties":
            return self._properties()
        if name == "message_annotations":
            return self._map(self._shape.annotations, name)
        if name == "application_properties":
            return self._map(self._shape.application, name)
        if name in DELIVERY_TEXTS:
            return self._text(self._delivery.get(DELIVERY_TEXTS[name].encode()), name)
        if name == "partitions_changed":
            return pa.nulls(self._n, pa.list_(pa.string()))
        return self._time(self._delivery.get(TIMESTAMP_KEY.encode()), TIMESTAMP_KEY, in_ms=name == "timestamp_ms")

    @property
    def creation_time_ms(self) -> NDArray[np.int64]:
        """The property creation-time, or ``NO_TIMESTAMP``."""
        slot = self._field(CREATION_TIME)
        return np.full(self._n, NO_TIMESTAMP) if slot is None else self._rows.integers(slot)

    def check(self) -> None:
        """Check all texts that a reader of the stored message may decode.

        Raises:
            RemoteProtocolError: one is not UTF-8, or a symbol not ASCII.
        """
        sections = (self._shape.annotations, self._shape.properties, self._shape.application)
        slots = [slot for entries in sections for _, slot in entries or ()]
        if self._shape.body is not None and self._shape.body[0] == AMQP_VALUE:
            slots.append(self._shape.body[1])
        texts = [slot for slot in slots if slot.code in TEXT_CODES and slot not in self._texts]
        if texts:
            self._gathered(texts, pa.string(), "value")

    def _field(self, index: int) -> Slot | None:
        """Return a field of the properties; None where it is absent or null."""
        fields = self._shape.properties or ()
        return fields[index][1] if index < len(fields) and fields[index][1].code != NULL else None

    def _key(self, name: str) -> pa.StringArray:
        slot = dict(self._shape.annotations or ()).get(_GROUP_KEY)
        if (slot is None or slot.code == NULL) and name == "key":
            slot = self._field(GROUP_ID)
        return self._text(slot, name)

    def _body(self) -> pa.BinaryArray:
        if self._shape.body is None:
            return pa.nulls(self._n, pa.binary())
        _, slot = self._shape.body
        if slot.code == NULL:
            return repeated("null", self._n).cast(pa.binary())
        if slot.code in TEXT_CODES:
            return self._text(slot, "value").cast(pa.binary())
        return self._gathered([slot], pa.binary(), "value")

    def _properties(self) -> pa.StructArray:
        if self._shape.properties is None:
            return pa.nulls(self._n, PROPERTIES_TYPE)
        children = []
        for index, (name, kind) in enumerate(PROPERTY_FIELDS):
            slot, what = self._field(index), f"properties.{name}"
            if slot is None:
                children.append(pa.nulls(self._n, PROPERTIES_TYPE[index].type))
            elif kind == "timestamp":
                children.append(self._time(slot, f"property {name.replace('_', '-')}", in_ms=False))
            elif kind == "uint":
                children.append(fixed_width(self._rows.integers(slot), pa.int64()))
            elif kind == "binary":
                children.append(self._gathered([slot], pa.binary(), what))
            else:
                children.append(self._text(slot, what))
        return pa.StructArray.from_arrays(children, fields=list(PROPERTIES_TYPE))

    def _time(self, slot: Slot | None, what: str, *, in_ms: bool) -> pa.Array:
        present = slot is not None and slot.code != NULL
        valid = np.full(self._n, present)
        numbers = self._rows.integers(slot) if slot is not None and present else np.zeros(self._n, np.int64)
        return (
            number_column(numbers, valid, pa.int64()) if in_ms else instant_column(numbers, valid, what, self._overflow)
        )

    def _map(self, entries: Entries | None, column: str) -> pa.MapArray:
        if entries is None:
            return pa.nulls(self._n, _MAP_TYPE)
        n, count = self._n, len(entries)
        bounds = np.arange(n + 1, dtype=np.int32) * np.int32(count)
        pairs = [self._keys([key for key, _ in entries]), self._items([slot for _, slot in entries], column)]
        struct = pa.StructArray.from_arrays(pairs, fields=[_MAP_TYPE.key_field, _MAP_TYPE.item_field])
        return pa.Array.from_buffers(_MAP_TYPE, n, [None, pa.py_buffer(bounds)], children=[struct])

    def _keys(self, keys: list[bytes]) -> pa.StringArray:
        """Return the keys of a map, once for each message."""
        content = b"".join(keys)
        ends = np.cumsum([len(key) for key in keys], dtype=np.int32)
        bounds = np.zeros(self._n * len(keys) + 1, np.int32)
        starts = np.arange(self._n, dtype=np.int32) * np.int32(len(content))
        bounds[1:] = np.add.outer(starts, ends).reshape(-1)
        return pa.StringArray.from_buffers(len(bounds) - 1, pa.py_buffer(bounds), pa.py_buffer(content * self._n))

    def _items(self, slots: list[Slot], column: str) -> pa.StringArray:
        if len(slots) > 1 and all(slot.code in TEXT_CODES for slot in slots):
            return self._gathered(slots, pa.string(), column)
        if len(slots) == 1:
            return self._text(slots[0], column)
        texts = [self._text(slot, column) for slot in slots]
        order = np.arange(len(slots) * self._n).reshape(len(slots), self._n).T.reshape(-1)
        return pa.concat_arrays(texts).take(fixed_width(order, pa.int64())) if slots else pa.nulls(0, pa.string())

    def _text(self, slot: Slot | None, column: str) -> pa.StringArray:
        """Return the canonical text of a value of each message; null for None."""
        if slot is None or slot.code == NULL:
            return pa.nulls(self._n, pa.string())
        if slot not in self._texts:
            self._texts[slot] = self._made_text(slot, column)
        return self._texts[slot]

    def _made_text(self, slot: Slot, column: str) -> pa.StringArray:
        if slot.code in TEXT_CODES:
            return self._gathered([slot], pa.string(), column)
        if slot.code in _CONSTANTS:
            return repeated(_CONSTANTS[slot.code], self._n)
        if slot.code in INTEGERS:
            kind = pa.uint64() if slot.code == _UNSIGNED else pa.int64()
            return fixed_width(self._rows.integers(slot), kind).cast(pa.string())
        starts = self._rows.constructor(slot).tolist()
        raw = (self._rows.words.bytes[start : start + 17].tobytes() for start in starts)
        if slot.code in BINARY_CODES:
            _, ends = self._rows.content(slot)
            raw = (self._rows.words.bytes[a:b].tobytes() for a, b in zip(starts, ends.tolist(), strict=True))
        try:
            return strings([canonical_text(decode_value(each)[0]) for each in raw])
        except ValueError as fault:
            raise LocalProtocolError(f"column '{column}': {fault}: decode smaller blocks") from fault

    def _gathered(self, slots: Sequence[Slot], kind: pa.DataType, column: str) -> pa.Array:
        """Return values of variable length, those of each message one after the other."""
        places = [self._rows.content(slot) for slot in slots]
        if len(slots) == 1:
            (start, end), codes = places[0], np.full(self._n, slots[0].code)
        else:
            start, end = (np.stack(each, axis=1).reshape(-1) for each in zip(*places, strict=True))
            codes = np.tile([slot.code for slot in slots], self._n)
        return column_of(self._rows.words, Extents(codes, start, end), kind, column)
