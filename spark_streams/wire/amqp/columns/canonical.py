"""Build columns of many messages' values: byte ranges to Arrow arrays, and the canonical text of values of any type."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.offsets import offset_column
from spark_streams.wire.amqp.canonical_text import canonical_bytes
from spark_streams.wire.amqp.columns.single_message import MAX_TIMESTAMP_MS, Overflow, TimestampOverflow
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.message import AMQP_VALUE, DATA
from spark_streams.wire.amqp.sections import HEAD_BYTES, NULL_CODE, Extents
from spark_streams.wire.columnar.arrays import fixed_width, layout, present, validity
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions, Words
from spark_streams.wire.columnar.gather import gather

TEXT_CODES: Final = (0xA1, 0xB1, 0xA3, 0xB3)
BINARY_CODES: Final = (0xA0, 0xB0)
SIGNED_CODES: Final = (0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83)
UNSIGNED_CODES: Final = (0x43, 0x44, 0x50, 0x52, 0x53, 0x60, 0x70, 0x80)
LONG_CODES: Final = (0x55, 0x81)
_STRING_CODE: Final = 0xA1
TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
MAP_TYPE: Final = pa.map_(pa.string(), pa.string())
ANNOTATION_TYPES: Final = {
    "offset": pa.string(),
    "source_partition": pa.string(),
    "target_partition": pa.string(),
    "group_key": pa.string(),
    "timestamp_ms": pa.int64(),
}
"""The columns that a dialect has a place for, and their types."""
_BOOLEANS: Final = {0x41: b"true", 0x42: b"false"}


def code_set(*codes: int) -> Mask:
    """Return a table that is True for these format codes."""
    table = np.zeros(256, np.bool_)
    table[list(codes)] = True
    return table


_IS_SIGNED: Final = code_set(*SIGNED_CODES)
KIND_CODES: Final = {
    **dict.fromkeys(("symbol", "string"), code_set(NULL_CODE, *TEXT_CODES)),
    "binary": code_set(NULL_CODE, *BINARY_CODES),
    "long": code_set(NULL_CODE, *LONG_CODES),
    "timestamp": code_set(NULL_CODE, 0x83),
    "uint": code_set(NULL_CODE, 0x43, 0x52, 0x70),
}
"""The format codes that columns can read, by the kind of a property field or an annotation; any of another kind."""
BODY_CODES: Final = {DATA: KIND_CODES["binary"], AMQP_VALUE: code_set(NULL_CODE, *BINARY_CODES, 0xA1, 0xB1)}
"""The same for bodies, by section."""


def integers(words: PaddedWords, values: Extents) -> NDArray[np.int64]:
    """Return integers of any width, or chars; a ulong of 2**63 and more has its bits in an int64."""
    bits = 8 * (values.end - values.start)
    raw = words.big(values.start)
    shift = np.minimum(64 - bits, 63)
    unsigned = (raw.view(np.uint64) >> shift.astype(np.uint64)).view(np.int64)
    # A shift by 64 bits is undefined, so a value without content is 0 by its width.
    found: NDArray[np.int64] = np.where(bits == 0, 0, np.where(_IS_SIGNED[values.code], raw >> shift, unsigned))
    return found


def number_column(numbers: NDArray[np.int64], valid: Mask, kind: pa.DataType) -> pa.Array:
    """Return numbers as an array of a type of 64 bits, null where they are not valid."""
    return pa.Array.from_buffers(kind, numbers.size, [validity(valid), pa.py_buffer(numbers)])


def map_array(present: Mask, bounds: Positions, keys: pa.StringArray, items: pa.StringArray) -> pa.MapArray:
    """Return maps of texts, null where they are not present; ``bounds``: where each map's entries begin and end."""
    entries = pa.StructArray.from_arrays([keys, items], fields=[MAP_TYPE.key_field, MAP_TYPE.item_field])
    buffers = [validity(present), pa.py_buffer(bounds.astype(np.int32))]
    return pa.Array.from_buffers(MAP_TYPE, present.size, buffers, children=[entries])


def offset_texts(numbers: NDArray[np.int64], valid: Mask, what: str) -> pa.StringArray:
    """Return offsets that are numbers as texts of 20 digits, null where they are not valid.

    Raises:
        RemoteProtocolError: one is negative; the message names ``what``.
    """
    negative = valid & (numbers < 0)
    if negative.any():
        found = int(numbers[negative][0])
        raise RemoteProtocolError(f"{what}: {found}, expected a number that is not negative")
    if valid.all():
        return offset_column(numbers)
    _, bounds, content = offset_column(np.where(valid, numbers, 0)).buffers()
    return pa.StringArray.from_buffers(numbers.size, bounds, content, validity(valid))


def instant_column(column: pa.Int64Array, what: str, overflow: Overflow) -> pa.TimestampArray:
    """Return instants in milliseconds as instants in microseconds.

    Raises:
        TimestampOverflow: an instant does not fit, and ``overflow`` is ``fail``; the message names ``what``.
    """
    if column.null_count == len(column):
        return pa.nulls(len(column), TIMESTAMP_TYPE)
    valid = present(column)
    milliseconds = np.where(valid, np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset), 0)
    outside = (milliseconds < -MAX_TIMESTAMP_MS) | (milliseconds > MAX_TIMESTAMP_MS)
    if outside.any():
        if overflow == "fail":
            raise TimestampOverflow(
                f"{what}: {int(milliseconds[outside][0])} ms does not fit a timestamp in microseconds "
                f"(expected {-MAX_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS})"
            )
        milliseconds, valid = np.where(outside, 0, milliseconds), valid & ~outside
    return number_column(milliseconds * 1000, valid, TIMESTAMP_TYPE)


def column_of(words: Words, texts: Extents, kind: pa.DataType, column: str) -> pa.Array:
    """Return the content of texts and binary values as an array of ``kind``: binary or string.

    Raises:
        RemoteProtocolError: a text is not UTF-8; the message names ``column``.
    """
    valid = texts.code != NULL_CODE
    if not valid.any():
        return pa.nulls(valid.size, kind)
    try:
        return gather(words, texts.start, texts.end - texts.start, kind, valid=valid)
    except pa.ArrowInvalid as fault:
        raise RemoteProtocolError(f"column '{column}': a message holds text that is not UTF-8") from fault


def canonical_texts(words: PaddedWords, values: Extents) -> Extents:
    """Return the canonical text of many values; a null stays null.

    Texts stay where they are; a whole column of integers becomes text at once; other values (floats, uuids, binary,
    compound values) go through ``canonical_text`` one by one. New text is added at the end of ``words``.

    Args:
        words: the bytes.
        values: values inside the buffer, none of them described.

    Raises:
        RemoteProtocolError: a value that goes one by one cannot be decoded.
    """
    texts = Extents(*(column.copy() for column in values))
    codes = set(np.flatnonzero(np.bincount(values.code, minlength=256)).tolist()) - {NULL_CODE, *TEXT_CODES}
    for code in codes & _BOOLEANS.keys():
        where = np.flatnonzero(values.code == code)
        _place(words, texts, where, [_BOOLEANS[code]], np.zeros(where.size, np.int64))
    for integral, kind in ((SIGNED_CODES, pa.int64()), (UNSIGNED_CODES, pa.uint64())):
        if codes.isdisjoint(integral):
            continue
        where = np.flatnonzero(code_set(*integral)[values.code])
        numbers = fixed_width(integers(words, values.at(where)), kind)
        bounds, content = layout(numbers.cast(pa.string()))
        bounds = bounds + words.append(content.tobytes())
        texts.keep(where, Extents(np.full(where.size, _STRING_CODE), bounds[:-1], bounds[1:]))
    rest = codes - _BOOLEANS.keys() - {*SIGNED_CODES, *UNSIGNED_CODES}
    if rest:
        where = np.flatnonzero(code_set(*rest)[values.code])
        others = values.at(where)
        first = others.start - HEAD_BYTES[others.code]
        singly = [_one_text(words, a, b) for a, b in zip(first.tolist(), others.end.tolist(), strict=True)]
        _place(words, texts, where, singly, np.arange(where.size))
    return texts


def _one_text(words: PaddedWords, value: int, end: int) -> bytes:
    decoded, stop = decode_value(words.bytes[value:end].tobytes())
    if stop != end - value:
        raise RemoteProtocolError(f"AMQP value of {end - value} bytes: ends after {stop}")
    return canonical_bytes(decoded)


def _place(words: PaddedWords, texts: Extents, where: Positions, content: list[bytes], choice: Positions) -> None:
    """Set the texts of the rows ``where`` to ``content[choice]``."""
    bounds = np.zeros(len(content) + 1, np.int64)
    np.cumsum([len(text) for text in content], out=bounds[1:])
    bounds += words.append(b"".join(content))
    texts.keep(where, Extents(np.full(where.size, _STRING_CODE), bounds[choice], bounds[choice + 1]))
