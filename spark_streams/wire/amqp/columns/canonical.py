"""Byte ranges to Arrow arrays, and the canonical text of many values at once.

A ``binary_view`` array is 16 bytes a row that point into any buffer; Arrow's cast of it copies the ranges together and
checks UTF-8, which is the fastest gather there is here (14 to 24 ns a row).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.canonical_text import canonical_bytes
from spark_streams.wire.amqp.columns.single_message import MAX_TIMESTAMP_MS, Overflow, microseconds
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.columnar.byte_view import ByteRange, Codes, Mask, Positions, Words

__all__ = ["code_set", "fitting", "gather", "text_spans", "validity"]

_INLINE: Final = 12
"""A view holds up to this many bytes itself; a longer one holds 4 bytes of prefix, a buffer number and an offset."""
_HEAD_MASK: Final = np.array([(1 << (8 * min(n, 4))) - 1 for n in range(_INLINE + 1)], np.uint64)
_TAIL_MASK: Final = np.array([(1 << (8 * max(n - 4, 0))) - 1 for n in range(_INLINE + 1)], np.uint64)

TEXT_CODES: Final = (0xA1, 0xB1, 0xA3, 0xB3)
BINARY_CODES: Final = (0xA0, 0xB0)
NULL_CODE: Final = 0x40
_SIGNED: Final = {0x51: 1, 0x54: 1, 0x55: 1, 0x61: 2, 0x71: 4, 0x81: 8, 0x83: 8}
_UNSIGNED: Final = {0x50: 1, 0x52: 1, 0x53: 1, 0x60: 2, 0x70: 4, 0x80: 8}
_CONSTANT: Final = {0x41: b"true", 0x42: b"false", 0x43: b"0", 0x44: b"0"}


def code_set(*codes: int) -> Mask:
    """Return a table that says of every format code whether it is one of these."""
    table = np.zeros(256, np.bool_)
    table[list(codes)] = True
    return table


def validity(valid: Mask) -> pa.Buffer | None:
    """Return Arrow's bitmap of the rows that are not null; None when all are."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def fitting(milliseconds: NDArray[np.int64], valid: Mask, what: str, overflow: Overflow) -> Mask:
    """Return which of the valid instants can be written in microseconds.

    Raises:
        TimestampOverflow: one does not fit int64, and ``overflow`` is ``fail``; the message names ``what``.
    """
    outside = valid & ((milliseconds < -MAX_TIMESTAMP_MS) | (milliseconds > MAX_TIMESTAMP_MS))
    if not outside.any():
        return valid
    if overflow == "fail":
        microseconds(int(milliseconds[outside][0]), what)
    return valid & ~outside


def gather(words: Words, span: ByteRange, kind: pa.DataType, column: str) -> pa.Array:
    """Return the bytes of each range as an array of ``kind``: binary, large_binary or string.

    Raises:
        RemoteProtocolError: text that is not UTF-8; the message names ``column``.
    """
    words.append()
    n = span.start.size
    if not span.valid.any():
        return pa.nulls(n, kind)
    start, length = span.start, span.end - span.start
    if not span.valid.all():
        start, length = np.where(span.valid, start, 0), np.where(span.valid, length, 0)
    views = np.empty((n, 2), np.uint64)
    head = words.little(start)
    short = length <= _INLINE
    views[:, 0] = length.view(np.uint64) | (head << np.uint64(32))
    if short.all():
        views[:, 0] = length.view(np.uint64) | ((head & _HEAD_MASK[length]) << np.uint64(32))
        views[:, 1] = words.little(start + 4) & _TAIL_MASK[length]
    else:
        views[:, 1] = start.view(np.uint64) << np.uint64(32)
    if short.any() and not short.all():
        at, size = start[short], length[short]
        views[short, 0] = size.astype(np.uint64) | ((head[short] & _HEAD_MASK[size]) << np.uint64(32))
        views[short, 1] = words.little(at + 4) & _TAIL_MASK[size]
    buffers = [validity(span.valid), pa.py_buffer(views), pa.py_buffer(words.bytes)]
    try:
        array = pa.Array.from_buffers(pa.binary_view(), n, buffers).cast(kind)
    except pa.ArrowInvalid as fault:
        raise RemoteProtocolError(f"column '{column}': a message holds text that is not UTF-8") from fault
    if span.symbol.any() and not _is_ascii(array.buffers()[2]):
        broken = span.symbol & ~np.asarray(pc.fill_null(pc.string_is_ascii(array), True))
        if broken.any():
            raise RemoteProtocolError(f"column '{column}': a message holds a symbol that is not ASCII")
    return array


def _is_ascii(buffer: pa.Buffer | None) -> bool:
    return buffer is None or buffer.size == 0 or int(np.frombuffer(buffer, np.int8).min()) >= 0


def text_spans(words: Words, code: Codes, value: Positions, start: Positions, end: Positions) -> ByteRange:
    """Return the canonical text of many values, as ranges; nulls are not valid.

    Texts stay where they are; integers become text a whole column at a time; what is left (floats, uuids, binary,
    compound values) goes through ``canonical_text`` one by one. New text is added at the end of ``words``.

    Args:
        words: the bytes.
        code: each value's format code, one of AMQP's; the value is not described.
        value: position of the format code.
        start: first byte of the content, inclusive.
        end: byte after the content, exclusive; inside the buffer.

    Raises:
        RemoteProtocolError: a value that goes one by one cannot be decoded.
    """
    span = ByteRange(start.copy(), end.copy(), code != NULL_CODE, (code == 0xA3) | (code == 0xB3))
    kinds = set(np.flatnonzero(np.bincount(code, minlength=256)).tolist()) - {NULL_CODE, *TEXT_CODES}
    for kind in kinds & _CONSTANT.keys():
        where = np.flatnonzero(code == kind)
        _place(words, span, where, [_CONSTANT[kind]], np.zeros(where.size, np.int64))
    numbers: dict[Any, list[NDArray[np.int64]]] = {}
    for kinds_of, number in ((_SIGNED, np.int64), (_UNSIGNED, np.uint64)):
        for kind in kinds & kinds_of.keys():
            numbers.setdefault(number, []).append(np.flatnonzero(code == kind))
    for number, groups in numbers.items():
        where = np.sort(np.concatenate(groups))
        shift = 64 - 8 * (end[where] - start[where])
        raw = words.big(start[where])
        integers = raw >> shift if number is np.int64 else raw.view(np.uint64) >> shift.astype(np.uint64)
        _place_array(words, span, where, pa.array(integers).cast(pa.string()))
    rest = kinds - _CONSTANT.keys() - _SIGNED.keys() - _UNSIGNED.keys()
    if rest:
        where = np.flatnonzero(code_set(*rest)[code])
        texts = [_one_text(words, a, b) for a, b in zip(value[where].tolist(), end[where].tolist(), strict=True)]
        _place(words, span, where, texts, np.arange(where.size))
    return span


def _one_text(words: Words, value: int, end: int) -> bytes:
    decoded, stop = decode_value(words.bytes[value:end].tobytes())
    if stop != end - value:
        raise RemoteProtocolError(f"AMQP value of {end - value} bytes: ends after {stop}")
    return canonical_bytes(decoded)


def _place(words: Words, span: ByteRange, where: Positions, texts: list[bytes], choice: Positions) -> None:
    """Let the rows ``where`` show ``texts[choice]``."""
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=bounds[1:])
    bounds += words.append(b"".join(texts))
    span.start[where], span.end[where] = bounds[choice], bounds[choice + 1]


def _place_array(words: Words, span: ByteRange, where: Positions, texts: pa.StringArray) -> None:
    """Let the rows ``where`` show the array's texts, row by row; it has no offset and no nulls."""
    _, offsets, content = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(texts) + 1).astype(np.int64)
    bounds += words.append(bytes(content)[: bounds[-1]])
    span.start[where], span.end[where] = bounds[:-1], bounds[1:]
