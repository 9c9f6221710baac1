"""Encodes headers of a batch that hold a small number for each of its records, a *code*; a split divides them.

A batch's headers are the record headers of its first record, the notes that an append stores with its records.

::

    name     ends with ``-by-record``
    value    records(u32)  width(u8, bits of a code: 1 to 16)  table bytes(u32)  table  codes
    table    the meaning of the codes; only the writer of the header knows its form
    codes    one of ``width`` bits for each record, the first bit the most significant; zero bits fill the last byte
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.log.format.record_batch import Header

BY_RECORD_SUFFIX: Final = b"-by-record"
"""The end of the names of such headers."""
MAX_WIDTH: Final = 16
_HEAD: Final = struct.Struct(">IBI")

Codes = NDArray[np.int64]


class RecordCodes(NamedTuple):
    """The content of such a header.

    Args:
        codes: int64[n], the code of each record of the batch.
        width: how many bits a code has, 1 to 16.
        table: the meaning of the codes.
    """

    codes: Codes
    width: int
    table: bytes


def encode_codes(content: RecordCodes) -> bytes:
    """Return the value of such a header.

    Raises:
        ValueError: the width is not 1 to 16, or a code has more bits.
    """
    codes, width, table = content
    if not 1 <= width <= MAX_WIDTH or (codes.size and not 0 <= codes.min() <= codes.max() < 1 << width):
        raise ValueError(f"codes of {width} bits: expected 1 to {MAX_WIDTH}, and codes that fit")
    bits = codes.astype(np.uint16)[:, None] >> np.arange(width - 1, -1, -1, dtype=np.uint16) & 1
    return _HEAD.pack(codes.size, width, len(table)) + table + np.packbits(bits.astype(np.uint8)).tobytes()


def decode_codes(value: bytes | None) -> RecordCodes:
    """Decode the value of such a header.

    Raises:
        ValueError: the value is not that of such a header.
    """
    if value is None or len(value) < _HEAD.size:
        raise ValueError("a header by record without its head")
    count, width, size = _HEAD.unpack_from(value)
    start = _HEAD.size + size
    if not 1 <= width <= MAX_WIDTH or len(value) != start + (count * width + 7) // 8:
        raise ValueError(
            f"a header of {len(value)} bytes for {count} records: {width} bits each, a table of {size} bytes"
        )
    bits = np.unpackbits(np.frombuffer(value, np.uint8, offset=start), count=count * width).reshape(count, width)
    codes = np.zeros(count, np.int64)
    for bit in range(width):
        codes <<= 1
        codes |= bits[:, bit]
    return RecordCodes(codes, width, value[_HEAD.size : start])


def headers_of_rows(headers: Sequence[Header], rows: NDArray[np.int64]) -> tuple[Header, ...]:
    """Return the headers of a batch that has only some of another's records, without those that cannot be decoded.

    Args:
        headers: the headers of the other batch.
        rows: int64, the rows of its records that stay, rising.
    """
    return tuple(kept for each in headers if (kept := _of_rows(each, rows)) is not None)


def _of_rows(header: Header, rows: NDArray[np.int64]) -> Header | None:
    name, value = header
    if not name.endswith(BY_RECORD_SUFFIX):
        return header
    try:
        content = decode_codes(value)
        return name, encode_codes(content._replace(codes=content.codes[rows]))
    except (ValueError, IndexError):
        return None
