"""Build encoded AMQP values of many rows: each row is a run of bytes, in Arrow columns that are joined once at the end.

An ``EncodedRun`` knows each row's length before any copy, so a section's size can be written in front of it. A null
in any of its columns means no bytes in that row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import lengths_of, validity
from spark_streams.wire.columnar.byte_view import Mask
from spark_streams.wire.columnar.interleave import heads

_LARGE: Final = pa.large_binary()


@dataclass(frozen=True)
class EncodedRun:
    """A run of bytes for each row.

    Args:
        columns: the columns to join, in order; large_binary arrays of one length.
        length: number of bytes of each row; a null counts as none.
    """

    columns: tuple[pa.Array, ...]
    length: NDArray[np.int64]

    def __add__(self, other: EncodedRun) -> EncodedRun:
        return EncodedRun(self.columns + other.columns, self.length + other.length)


def as_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """Return a string or binary column as large_binary, nulls kept."""
    return column.cast(_LARGE)


def nothing(n: int) -> EncodedRun:
    """Return no bytes in each of ``n`` rows."""
    return EncodedRun((), np.zeros(n, np.int64))


def fixed(rows: NDArray[np.uint8], present: Mask) -> EncodedRun:
    """Return rows of one width, shape (n, width); no bytes where not ``present``."""
    n, width = rows.shape
    offsets = np.arange(n + 1, dtype=np.int64) * width
    buffers = [validity(present), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return EncodedRun((pa.Array.from_buffers(_LARGE, n, buffers),), np.where(present, width, 0))


def constant(content: bytes, present: Mask) -> EncodedRun:
    """Return the same bytes in every row that is ``present``."""
    return fixed(np.broadcast_to(np.frombuffer(content, np.uint8), (present.size, len(content))), present)


def sized(code: int, column: pa.LargeBinaryArray, null: bytes = b"") -> EncodedRun:
    r"""Return binary, string or symbol values with their constructors.

    Args:
        code: the 1-byte-size format code; the 4-byte one is 0x10 above.
        column: the contents.
        null: the bytes of a null row, such as ``b"\x40"``.
    """
    length = lengths_of(column)
    present = np.asarray(column.is_valid())
    small = not length.size or length.max() < 256
    piece = _head(code, small, present, length) + EncodedRun((column,), length)
    return piece if not null or present.all() else piece + constant(null, ~present)


def counted(code: int, content: EncodedRun, count: NDArray[np.int64], present: Mask, before: bytes = b"") -> EncodedRun:
    """Return lists or maps: a head, then ``content``.

    Args:
        code: the 1-byte-size format code, 0xC0 or 0xC1; the 4-byte one is 0x10 above.
        content: the encoded items; no bytes in the rows that are not ``present``.
        count: number of items of each row.
        present: rows that have the list or map.
        before: bytes before the head, such as a section's descriptor.
    """
    small = bool(((content.length < 255) & (count < 256)).all())
    return _head(code, small, present, content.length + (1 if small else 4), count, before=before) + content


def _head(code: int, small: bool, present: Mask, *numbers: NDArray[np.int64], before: bytes = b"") -> EncodedRun:
    """Return format codes, each with its numbers in one byte if they are ``small``, else in four."""
    constructor = before + bytes((code if small else code + 0x10,))
    kind = "u1" if small else ">u4"
    return fixed(heads(present.size, constructor, *((number, kind) for number in numbers)), present)


def join(piece: EncodedRun) -> pa.LargeBinaryArray:
    """Return each row's bytes."""
    empty = pa.scalar(b"", _LARGE)
    return pc.binary_join_element_wise(*piece.columns, empty, null_handling="replace", null_replacement="")
