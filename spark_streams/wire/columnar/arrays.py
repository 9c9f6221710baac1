"""Arrow arrays and their buffers: where the bytes of texts lie; arrays of NumPy's and of texts, and scalars.

``pa.array``, ``pa.scalar`` and ``pa.repeat`` import pandas the first time that a process calls them, where it is
installed; that takes a third of a second of each worker's first batch. The functions here do not, and copy no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.columnar.byte_view import Mask, Positions

_BITS_PER_BYTE: Final = 8
_BINARY: Final = pa.binary()


def validity(valid: Mask) -> pa.Buffer | None:
    """Return Arrow's bitmap of the rows that are not null; None if no row is null."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def present(array: pa.Array) -> Mask:
    """Return the rows that are not null; Arrow's own functions for it import pandas."""
    nulls = array.buffers()[0]
    if nulls is None:
        return np.ones(len(array), np.bool_)
    bits = np.unpackbits(np.frombuffer(nulls, np.uint8), bitorder="little", count=array.offset + len(array))
    return bits[array.offset :].view(np.bool_)


def layout(array: pa.Array) -> tuple[Positions, NDArray[np.uint8]]:
    """Return where the bytes of each value of a string or binary array begin and the last one's end, and all the bytes.

    The bytes are a view of exactly this array's values, while Arrow's buffer may hold more; the first bound is 0.
    """
    _, offsets, content = array.buffers()
    if content is None or not len(array):
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    number = np.dtype(np.int64 if wide else np.int32)
    bounds = np.frombuffer(offsets, number, len(array) + 1, array.offset * number.itemsize).astype(np.int64, copy=False)
    first, end = int(bounds[0]), int(bounds[-1])
    return bounds - first if first else bounds, np.frombuffer(content, np.uint8)[first:end]


def lengths_of(array: pa.Array, null: int = 0) -> NDArray[np.int64]:
    """Return the number of bytes of each value of a string or binary array, ``null`` for one that is null."""
    lengths: NDArray[np.int64] = np.diff(layout(array)[0])
    if array.null_count:
        lengths[~present(array)] = null
    return lengths


def distinct(array: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return each row's index into the distinct values, -1 for null, and these."""
    encoded = array.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def fixed_width(values: NDArray[Any], kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """Return an array that uses the memory of ``values``.

    Args:
        values: in the form in which Arrow stores the type: as wide, in this machine's order of bytes. Not booleans.
        kind: the array's type.
        valid: the rows that are not null; None for all.

    Raises:
        ValueError: the type has another width than the values.
    """
    if kind.bit_width != values.itemsize * _BITS_PER_BYTE:
        raise ValueError(f"{values.dtype} has not the width of {kind}")
    nulls = None if valid is None else validity(valid)
    return pa.Array.from_buffers(kind, len(values), [nulls, pa.py_buffer(np.ascontiguousarray(values))])


def booleans(values: Mask) -> pa.BooleanArray:
    """Return an array of booleans."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def strings(values: Sequence[str | None]) -> pa.StringArray:
    """Return an array of these texts, null for None; see ``binaries``."""
    return binaries([None if text is None else text.encode() for text in values], pa.string())


def binaries(values: Sequence[bytes | None], kind: pa.DataType = _BINARY) -> pa.Array:
    """Return an array of these values, null for None: binary, or string if that is the ``kind``.

    Raises:
        ValueError: they have more bytes than such an array holds.
    """
    bounds = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value or b"") for value in values], out=bounds[1:])
    if bounds[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{bounds[-1]} bytes do not fit an array of {kind}")
    nulls = validity(np.array([value is not None for value in values], np.bool_))
    content = b"".join(value or b"" for value in values)
    buffers = [nulls, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(kind, len(values), buffers)


def repeated(text: str, count: int) -> pa.StringArray:
    """Return a text ``count`` times.

    Raises:
        ValueError: the copies have more bytes than a string array holds.
    """
    content = text.encode()
    if len(content) * count > np.iinfo(np.int32).max:
        raise ValueError(f"{count} copies of {len(content)} bytes do not fit a string array")
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(content))
    return pa.StringArray.from_buffers(count, pa.py_buffer(bounds), pa.py_buffer(content * count))


def text_scalar(text: str) -> pa.StringScalar:
    """Return a text as a scalar, for Arrow's functions; a Python value among their arguments imports pandas."""
    return repeated(text, 1)[0]


TRUE: Final = booleans(np.ones(1, np.bool_))[0]
FALSE: Final = booleans(np.zeros(1, np.bool_))[0]
"""The booleans as scalars."""
