"""Encode Arrow columns to whole messages, as a sink's transfers carry them.

===========================  =======================================================================================
column                       becomes
===========================  =======================================================================================
``value``                    one data section; a null is an amqp-value null
``key``                      the dialect's annotation for it, such as event-streams-group-key, before one in the map;
                             where it has none, property group-id, if ``properties.group_id`` is null
``partition``                the dialect's annotation for it, such as event-streams-target-partition; nothing where it
                             has none
``filter_value``             the dialect's annotation for it, such as x-stream-filter-value, before one in the map;
                             nothing where it has none
``to``                       property to where ``properties.to`` is null
``timestamp``                property creation-time where ``properties.creation_time`` is null; µs to ms by floor (N-07)
``message_id``               property message-id (string) where ``properties.message_id`` is null
``properties``               the properties section; any subset of the struct's fields
``application_properties``   the section of that name: string keys and values, null values as null
``message_annotations``      the section of that name: symbol keys, string values, null values as null; without what the
                             dialect leaves out, because it restates the row's origin or its key
``message``                  the whole encoded message. Where it is not null, it is sent as it is, and of the other
                             columns only ``partition`` counts; its delivery annotations are removed, because they are
                             for one hop
===========================  =======================================================================================

``stream`` and ``offset`` are the origin of a row and are not encoded. An empty section is left out, unless the row's
map is there and empty.

For a dialect that takes no null values in maps, their entries are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import LocalProtocolError, RemoteProtocolError, SchemaError
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.columns.encode_maps import annotations_section, properties_section, section, symbols
from spark_streams.wire.amqp.columns.encoded_runs import (
    EncodedRun,
    as_bytes,
    constant,
    counted,
    fixed,
    join,
    nothing,
    sized,
)
from spark_streams.wire.amqp.columns.single_message import PROPERTY_FIELDS
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.sections import walk_sections
from spark_streams.wire.amqp.values import Symbol
from spark_streams.wire.columnar.arrays import booleans, layout, lengths_of
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords
from spark_streams.wire.columnar.gather import gather
from spark_streams.wire.columnar.interleave import heads


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_either(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_bytes(kind)


def _is_text_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


_COLUMN_TYPES: Final[Mapping[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "application_properties": (_is_text_map, "map of strings"),
    "filter_value": (_is_text, "string"),
    "key": (_is_text, "string"),
    "message": (_is_either, "binary"),
    "message_annotations": (_is_text_map, "map of strings"),
    "message_id": (_is_text, "string"),
    "partition": (_is_text, "string"),
    "properties": (pa.types.is_struct, "struct"),
    "timestamp": (pa.types.is_timestamp, "timestamp"),
    "to": (_is_text, "string"),
    "value": (_is_either, "string or binary"),
}
"""The columns that ``encode_columns`` encodes: the check of their type, and its name in errors."""
_FIELD_TYPES: Final = {
    "timestamp": (pa.types.is_timestamp, "timestamp"),
    "uint": (pa.types.is_integer, "bigint"),
    "binary": (_is_bytes, "binary"),
    "string": (_is_text, "string"),
    "text": (_is_text, "string"),
}
"""The same for the fields of ``properties``, by the types of ``PROPERTY_FIELDS``."""
ENCODED_COLUMNS: Final = frozenset(_COLUMN_TYPES)
"""The columns that ``encode_columns`` encodes; ``stream`` and ``offset`` may be there too."""
_IGNORED: Final = frozenset({"stream", "offset"})
_NULL: Final = b"\x40"


def encode_columns(columns: Mapping[str, pa.Array], places: Places = EVENT_STREAMS.places) -> pa.LargeBinaryArray:
    """Encode one message for each row.

    Args:
        columns: name to array, all of one length; ``value`` or ``message`` is required.
        places: where the messages have key and target partition, by the peer's dialect.

    Raises:
        SchemaError: AMQP cannot express a row: a text is no symbol, a group_sequence is outside uint, or ``message`` is
            no message. The error names column and row.
        LocalProtocolError: a column is unknown, a required one is missing, or lengths differ.
    """
    unknown = columns.keys() - ENCODED_COLUMNS - _IGNORED
    if unknown or not columns.keys() & {"value", "message"}:
        raise LocalProtocolError(
            f"columns {sorted(columns)}: expected 'value' or 'message', and any of {sorted(ENCODED_COLUMNS)}"
        )
    flat = {name: _checked(name, column) for name, column in columns.items()}
    n, *lengths_beside = {len(column) for column in flat.values()}
    if lengths_beside:
        raise LocalProtocolError("columns of different lengths: " + ", ".join(f"{k} {len(v)}" for k, v in flat.items()))
    raw = flat.get("message")
    if raw is None:
        return join(_target_partition(flat, n, places) + _built(flat, n, places))
    raw = as_bytes(raw)
    whole = np.asarray(raw.is_valid())
    headers, rest = _split_raw(raw)
    message = headers + _target_partition(flat, n, places) + rest
    if not whole.all():
        if "value" not in flat:
            raise SchemaError(f"column 'message', row {int(np.argmin(whole))}: null, and there is no column 'value'")
        # The other columns of a row that is sent whole do not count, and cause no error.
        others = {k: pc.if_else(booleans(whole), pa.scalar(None, v.type), v) for k, v in flat.items()}
        built = join(_built(others, n, places))
        built = pc.if_else(booleans(whole), pa.scalar(None, built.type), built)
        message = message + EncodedRun((built,), lengths_of(built))
    return join(message)


def _checked(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, if its type is right; a column that is not encoded is a string."""
    check, expected = _COLUMN_TYPES.get(name, (_is_text, "string"))
    if not check(column.type):
        raise SchemaError(f"column '{name}': {column.type}, expected {expected}")
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _built(columns: Mapping[str, pa.Array], n: int, places: Places) -> EncodedRun:
    """Return the messages that are made of columns."""
    return (
        annotations_section(columns, n, places)
        + _properties(columns, n, keyed=places.key is None)
        + properties_section(columns.get("application_properties"), n, places)
        + _body(columns["value"])
    )


def _target_partition(columns: Mapping[str, pa.Array], n: int, places: Places) -> EncodedRun:
    column, place = columns.get("partition"), places.target_partition
    if column is None or place is None:
        return nothing(n)
    partition = symbols(column, "partition")
    present = np.asarray(partition.is_valid())
    entry = constant(encode_value(Symbol(place.key)), present) + sized(0xA3, partition)
    return counted(0xC1, entry, np.full(n, 2), present, section(place.section))


def _properties(columns: Mapping[str, pa.Array], n: int, *, keyed: bool) -> EncodedRun:
    """Return the properties sections; ``keyed`` says whether column ``key`` is a property."""
    fields: dict[str, pa.Array] = {}
    struct = columns.get("properties")
    if struct is not None:
        known = {name for name, _ in PROPERTY_FIELDS}
        names = [field.name for field in struct.type]
        unknown = set(names) - known
        if unknown:
            raise SchemaError(f"column 'properties': no field {', '.join(sorted(unknown))}; there are {sorted(known)}")
        fields = {name: pc.struct_field(struct, name) for name in names}
    defaults = {"message_id": "message_id", "timestamp": "creation_time", "to": "to"} | (
        {"key": "group_id"} if keyed else {}
    )
    for column, field in defaults.items():
        if column in columns:
            default = columns[column]
            fields[field] = pc.coalesce(fields[field], default.cast(fields[field].type)) if field in fields else default
    used = [i for i, (name, _) in enumerate(PROPERTY_FIELDS) if name in fields and fields[name].null_count < n]
    if not used:
        return nothing(n)
    present = np.zeros(n, np.bool_)
    for name, kind in (PROPERTY_FIELDS[index] for index in used):
        check, expected = _FIELD_TYPES[kind]
        if not check(fields[name].type):
            raise SchemaError(f"column 'properties.{name}': {fields[name].type}, expected {expected}")
        present |= np.asarray(fields[name].is_valid())
    content = nothing(n)
    for before, index in pairwise((-1, *used)):
        if index > before + 1:
            content = content + constant(_NULL * (index - before - 1), present)
        name, kind = PROPERTY_FIELDS[index]
        content = content + _field(fields[name], name, kind, present)
    return counted(0xC0, content, np.full(n, used[-1] + 1), present, section(m.PROPERTIES))


def _field(column: pa.Array, name: str, kind: str, present: Mask) -> EncodedRun:
    valid = np.asarray(column.is_valid())
    nulls = constant(_NULL, present & ~valid)
    if kind == "timestamp":
        micros = column.cast(pa.timestamp("us", tz="UTC")) if column.type.tz else column.cast(pa.timestamp("us"))
        numbers = np.asarray(pc.fill_null(micros.cast(pa.int64()), 0)) // 1000
        return fixed(heads(numbers.size, b"\x83", (numbers, ">i8")), valid) + nulls
    if kind == "uint":
        numbers = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
        outside = (numbers < 0) | (numbers > 0xFFFFFFFF)
        if outside.any():
            row = int(np.argmax(outside))
            raise SchemaError(f"column 'properties.{name}', row {row}: {numbers[row]}, expected 0 to 4294967295")
        return fixed(heads(numbers.size, b"\x70", (numbers, ">u4")), valid) + nulls
    if kind == "binary":
        return sized(0xA0, as_bytes(column)) + nulls
    if name in ("content_type", "content_encoding"):
        return sized(0xA3, symbols(column, f"properties.{name}")) + nulls
    return sized(0xA1, as_bytes(column)) + nulls


def _body(column: pa.Array) -> EncodedRun:
    content = as_bytes(column)
    present = np.asarray(content.is_valid())
    body = constant(section(m.DATA), present) + sized(0xA0, content)
    return body if present.all() else body + constant(section(m.AMQP_VALUE) + _NULL, ~present)


def _split_raw(column: pa.LargeBinaryArray) -> tuple[EncodedRun, EncodedRun]:
    """Return the header sections of raw messages, and their bytes after the delivery annotations."""
    bounds, raw = layout(column)
    words, starts, ends = PaddedWords(raw, 0, raw.size), bounds[:-1], bounds[1:]
    whole = np.asarray(column.is_valid())
    sections = walk_sections(words, starts, ends)
    header_ends = starts.copy()
    if m.HEADER in sections.value:
        header_ends = np.where(sections.value[m.HEADER] >= 0, sections.end[m.HEADER], header_ends)
    for row in np.flatnonzero((sections.irregular | (starts == ends)) & whole).tolist():
        try:
            spans = m.split_sections(words.bytes[starts[row] : ends[row]].tobytes())
        except RemoteProtocolError as fault:
            raise SchemaError(f"column 'message', row {row}: not an encoded AMQP message: {fault}") from fault
        if not spans:
            raise SchemaError(f"column 'message', row {row}: empty, expected an encoded AMQP message")
        header_ends[row] = starts[row] + (spans[0].end if spans[0].code == m.HEADER else 0)
        after = (s.start for s in spans if s.code > m.DELIVERY_ANNOTATIONS)
        sections.bare_start[row] = starts[row] + next(after, int(ends[row] - starts[row]))
    pieces = []
    for start, end in ((starts, header_ends), (sections.bare_start, ends)):
        part = gather(words, start, end - start, pa.large_binary(), valid=whole)
        pieces.append(EncodedRun((part,), np.where(whole, end - start, 0)))
    return pieces[0], pieces[1]
