"""Encode the sections that are maps of texts, for many messages: message annotations and application properties.

The entries come from a map column, and those of the message annotations also from columns of their own, such as the
key. The dialect says what a peer does not accept in such maps (``Places``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import SchemaError
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.columns.encoded_runs import (
    EncodedRun,
    as_bytes,
    constant,
    counted,
    join,
    nothing,
    sized,
)
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.values import Symbol
from spark_streams.wire.columnar.arrays import layout, lengths_of
from spark_streams.wire.columnar.byte_view import Mask

_SYMBOL: Final = 0xA3
_STRING: Final = 0xA1
_NULL: Final = b"\x40"
_ANNOTATIONS: Final = "message_annotations"
_PROPERTIES: Final = "application_properties"


def section(code: int) -> bytes:
    """Return the descriptor of a section."""
    return bytes((0x00, 0x53, code))


def symbols(column: pa.Array, name: str, rows: NDArray[np.int64] | None = None) -> pa.LargeBinaryArray:
    """Return the contents of symbols; ``rows`` has the row of each, None for one symbol per row.

    Raises:
        SchemaError: a text is not ASCII; it names the column and the row.
    """
    ascii_only = pc.fill_null(pc.string_is_ascii(column), True)
    if not pc.all(ascii_only, min_count=0).as_py():
        at = int(np.argmin(np.asarray(ascii_only)))
        row = at if rows is None else int(rows[at])
        raise SchemaError(f"column '{name}', row {row}: {column[at].as_py()!r:.80} is no AMQP symbol: expected ASCII")
    return as_bytes(column)


def annotations_section(columns: Mapping[str, pa.Array], n: int, places: Places) -> EncodedRun:
    """Return the message annotations: those that columns of their own have, and the entries of the map.

    Args:
        columns: ``key``, ``filter_value`` and ``message_annotations``; any may be missing.
        n: number of rows.
        places: which annotations these columns are, and what the peer does not take from the map.

    Raises:
        SchemaError: a key of the map is no symbol, or the peer takes none of this kind.
    """
    content, count, present = nothing(n), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    omitted: list[tuple[Iterable[str], Mask]] = [(places.broker_keys, np.ones(n, np.bool_))]
    for name, place in (("key", places.key), ("filter_value", places.filter_value)):
        if name not in columns:
            continue
        text = as_bytes(columns[name])
        has = np.asarray(text.is_valid())
        if place is not None:
            content = content + constant(encode_value(Symbol(place.key)), has) + sized(_STRING, text)
            count, present = count + np.where(has, 2, 0), present | has
            omitted.append(((place.key,), has))
        if name == "key":
            omitted.append((places.other_keys, has))
    column = columns.get(_ANNOTATIONS)
    if column is not None:
        entries, entry_count = _entries(column, _ANNOTATIONS, places, omitted)
        content, count = content + entries, count + entry_count
        present = present | np.asarray(column.is_valid())
    elif not content.columns:
        return content
    return counted(0xC1, content, count, present, section(m.MESSAGE_ANNOTATIONS))


def properties_section(column: pa.MapArray | None, n: int, places: Places) -> EncodedRun:
    """Return the application properties.

    Args:
        column: map of string to string; None if there is none.
        n: number of rows.
        places: what the peer does not take.
    """
    if column is None:
        return nothing(n)
    entries, count = _entries(column, _PROPERTIES, places)
    return counted(0xC1, entries, count, np.asarray(column.is_valid()), section(m.APPLICATION_PROPERTIES))


def _entries(
    column: pa.MapArray,
    name: str,
    places: Places,
    omitted: Iterable[tuple[Iterable[str], Mask]] = (),
) -> tuple[EncodedRun, NDArray[np.int64]]:
    """Return a map column's encoded entries, and the number of keys and values in each row.

    Args:
        column: map of string to string.
        name: the column's name.
        places: whether null values go out, and how keys of annotations begin.
        omitted: keys, and the rows in which entries of these keys do not count.
    """
    n = len(column)
    if not n:
        return nothing(0), np.zeros(0, np.int64)
    offsets = np.asarray(column.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets = offsets - first
    keys, items = column.keys.slice(first, last - first), column.items.slice(first, last - first)
    code = _SYMBOL if name == _ANNOTATIONS else _STRING
    counts, valid = np.diff(offsets), np.asarray(column.is_valid())
    rows = np.repeat(np.arange(n), counts)
    key_bytes = symbols(keys, f"{name} (key)", rows) if code == _SYMBOL else as_bytes(keys)
    encoded = join(sized(code, key_bytes) + sized(_STRING, as_bytes(items), _NULL))
    dropped = np.zeros(rows.size, np.bool_)
    for names, mask in omitted:
        if mask.any():
            for each in names:
                dropped |= mask[rows] & np.asarray(pc.equal(key_bytes, pa.scalar(each.encode(), key_bytes.type)))
    if not places.null_values:
        dropped |= ~np.asarray(items.is_valid())
    if code == _SYMBOL and places.prefix:
        refused = valid[rows] & ~dropped & ~np.asarray(pc.starts_with(keys, places.prefix))
        if refused.any():
            entry = int(np.argmax(refused))
            raise SchemaError(
                f"column '{name}', row {int(rows[entry])}: key {keys[entry].as_py()!r:.80} does not begin with "
                f"'{places.prefix}', and the peer takes no other annotations: rename it, put it into column "
                f"'{_PROPERTIES}', or leave it out"
            )
    if dropped.any():
        encoded = pc.if_else(pa.array(dropped), pa.scalar(b"", encoded.type), encoded)
        counts = counts - np.bincount(rows[dropped], minlength=n)
    # The entries of a row are adjacent, so a row's bytes are a range of the same buffer, without a copy.
    entry_bounds, content = layout(encoded)
    joined = pa.Array.from_buffers(
        pa.large_binary(), n, [None, pa.py_buffer(entry_bounds[offsets]), pa.py_buffer(content)]
    )
    if not valid.all():
        joined = pc.if_else(pa.array(valid), joined, pa.scalar(None, joined.type))
    return EncodedRun((joined,), lengths_of(joined)), np.where(valid, 2 * counts, 0)
