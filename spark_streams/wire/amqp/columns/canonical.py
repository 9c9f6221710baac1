"""Build columns of many messages' values: byte ranges to Arrow arrays, and the canonical text of values of any type."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.canonical_text import canonical_bytes
from spark_streams.wire.amqp.columns.single_message import MAX_TIMESTAMP_MS, Overflow, microseconds
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.sections import Codes, Extents
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions
from spark_streams.wire.columnar.gather import gather, layout

TEXT_CODES: Final = (0xA1, 0xB1, 0xA3, 0xB3)
BINARY_CODES: Final = (0xA0, 0xB0)
NULL_CODE: Final = 0x40
_SIGNED: Final = frozenset({0x51, 0x54, 0x55, 0x61, 0x71, 0x81, 0x83})
_UNSIGNED: Final = frozenset({0x50, 0x52, 0x53, 0x60, 0x70, 0x80})
_CONSTANT: Final = {0x41: b"true", 0x42: b"false", 0x43: b"0", 0x44: b"0"}


class ByteRange(NamedTuple):
    """Byte ranges, one for each row: start inclusive, end exclusive; rows that are not ``valid`` have no range.

    ``symbol`` marks the ranges that are symbols, which must be ASCII.
    """

    start: Positions
    end: Positions
    valid: Mask
    symbol: Mask

    @staticmethod
    def empty(n: int) -> ByteRange:
        """Return ``n`` rows without a range."""
        return ByteRange(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.bool_))

    def keep(self, rows: Positions, extents: Extents) -> None:
        """Set the ranges of these rows to values of type string, symbol, binary or null."""
        self.start[rows], self.end[rows] = extents.start, extents.end
        self.valid[rows] = extents.code != NULL_CODE
        self.symbol[rows] = (extents.code == 0xA3) | (extents.code == 0xB3)

    def place(self, row: int, text: bytes | None, words: PaddedWords) -> None:
        """Set the range of one row to bytes that are not in the block."""
        self.valid[row], self.symbol[row] = text is not None, False
        self.start[row], self.end[row] = words.defer(text or b"")


def code_set(*codes: int) -> Mask:
    """Return a table that is True for these format codes."""
    table = np.zeros(256, np.bool_)
    table[list(codes)] = True
    return table


def fitting(milliseconds: NDArray[np.int64], valid: Mask, what: str, overflow: Overflow) -> Mask:
    """Return which of the valid instants fit int64 microseconds.

    Raises:
        TimestampOverflow: an instant does not fit, and ``overflow`` is ``fail``; the message names ``what``.
    """
    outside = valid & ((milliseconds < -MAX_TIMESTAMP_MS) | (milliseconds > MAX_TIMESTAMP_MS))
    if not outside.any():
        return valid
    if overflow == "fail":
        microseconds(int(milliseconds[outside][0]), what)
    return valid & ~outside


def column_of(words: PaddedWords, span: ByteRange, kind: pa.DataType, column: str) -> pa.Array:
    """Return the bytes of each range as an array of ``kind``: binary or string.

    Raises:
        RemoteProtocolError: a text is not UTF-8; the message names ``column``.
    """
    words.append()
    if not span.valid.any():
        return pa.nulls(span.start.size, kind)
    try:
        array = gather([words], span.start, span.end - span.start, kind, valid=span.valid)
    except pa.ArrowInvalid as fault:
        raise RemoteProtocolError(f"column '{column}': a message holds text that is not UTF-8") from fault
    if span.symbol.any() and not _is_ascii(array.buffers()[2]):
        broken = span.symbol & ~np.asarray(pc.fill_null(pc.string_is_ascii(array), True))
        if broken.any():
            raise RemoteProtocolError(f"column '{column}': a message holds a symbol that is not ASCII")
    return array


def _is_ascii(buffer: pa.Buffer | None) -> bool:
    return buffer is None or buffer.size == 0 or int(np.frombuffer(buffer, np.int8).min()) >= 0


def text_spans(words: PaddedWords, code: Codes, value: Positions, start: Positions, end: Positions) -> ByteRange:
    """Return the canonical text of many values, as ranges; nulls are not valid.

    Texts stay where they are; a whole column of integers becomes text at once; other values (floats, uuids, binary,
    compound values) go through ``canonical_text`` one by one. New text is added at the end of ``words``.

    Args:
        words: the bytes.
        code: each value's format code, one of AMQP's; the value is not described.
        value: position of its format code.
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
    for integral in (_SIGNED, _UNSIGNED):
        if not kinds & integral:
            continue
        where = np.flatnonzero(code_set(*integral)[code])
        shift = 64 - 8 * (end[where] - start[where])
        raw = words.big(start[where])
        integers = raw >> shift if integral is _SIGNED else raw.view(np.uint64) >> shift.astype(np.uint64)
        _place_array(words, span, where, pa.array(integers).cast(pa.string()))
    rest = kinds - _CONSTANT.keys() - _SIGNED - _UNSIGNED
    if rest:
        where = np.flatnonzero(code_set(*rest)[code])
        texts = [_one_text(words, a, b) for a, b in zip(value[where].tolist(), end[where].tolist(), strict=True)]
        _place(words, span, where, texts, np.arange(where.size))
    return span


def _one_text(words: PaddedWords, value: int, end: int) -> bytes:
    decoded, stop = decode_value(words.bytes[value:end].tobytes())
    if stop != end - value:
        raise RemoteProtocolError(f"AMQP value of {end - value} bytes: ends after {stop}")
    return canonical_bytes(decoded)


def _place(words: PaddedWords, span: ByteRange, where: Positions, texts: list[bytes], choice: Positions) -> None:
    """Set the ranges of the rows ``where`` to ``texts[choice]``."""
    bounds = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=bounds[1:])
    bounds += words.append(b"".join(texts))
    span.start[where], span.end[where] = bounds[choice], bounds[choice + 1]


def _place_array(words: PaddedWords, span: ByteRange, where: Positions, texts: pa.StringArray) -> None:
    """Set the ranges of the rows ``where`` to the array's texts, row by row; it has no nulls."""
    bounds, content = layout(texts)
    bounds = bounds + words.append(content.tobytes())
    span.start[where], span.end[where] = bounds[:-1], bounds[1:]
