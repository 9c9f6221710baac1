"""Encodes n records without headers in columns: the varints of all records at once, then one copy of the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.log.format.varint import Longs, encode_varints
from spark_streams.wire.columnar.arrays import layout, lengths_of

NO_HEADERS: Final = b"\x00"
"""The end of a record without headers: the number of headers, 0."""

Column = tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]] | bytes
"""One varint for each row, as ``encode_varints`` gives them, or the same bytes in every row."""

_NULL_KEY: Final = b"\x01"
_ATTRIBUTES: Final = b"\x00"
_NOTHING: Final = pa.scalar(b"", pa.large_binary())


def encode_columns(
    values: pa.LargeBinaryArray, keys: pa.LargeBinaryArray | None, deltas: Longs | None
) -> tuple[memoryview, int]:
    """Encode records whose offset deltas count up from 0.

    Args:
        values: the values, none null, at least one.
        keys: the keys, or None when all are null.
        deltas: the timestamp deltas; None: all 0.

    Returns:
        The records without the last one's ``NO_HEADERS``, and where in them the second record begins.
    """
    count = len(values)
    offsets = encode_varints(np.arange(count))
    value_lengths = lengths_of(values)
    value_sizes = encode_varints(value_lengths)
    delta_column: Column = b"\x00" if deltas is None else encode_varints(deltas)
    # Attributes and the number of headers take a byte each.
    sizes = value_lengths + (2 + _widths(delta_column)) + _widths(offsets) + _widths(value_sizes)
    if keys is None:
        key_sizes: Column = _NULL_KEY
        sizes += len(_NULL_KEY)
    else:
        key_lengths = lengths_of(keys, null=-1)
        key_sizes = encode_varints(key_lengths)
        sizes += _widths(key_sizes) + np.maximum(key_lengths, 0, dtype=np.int64)
    # The end of each record is written with the beginning of the next one: a column less to join.
    head: list[Column] = [NO_HEADERS, encode_varints(sizes), _ATTRIBUTES, delta_column, offsets, key_sizes]
    if keys is None:
        pieces = [_rows([*head, value_sizes], count)]
    else:
        content = pc.fill_null(keys, _NOTHING) if keys.null_count else keys
        pieces = [_rows(head, count), content, _rows([value_sizes], count)]
    joined = pc.binary_join_element_wise(*pieces, values, _NOTHING)
    bounds, content = layout(joined)
    # The first row's NO_HEADERS ends no record.
    return content.data[len(NO_HEADERS) :], int(bounds[1])


def _widths(column: Column) -> Longs | int:
    if isinstance(column, bytes):
        return len(column)
    widths: Longs = column[1].sum(axis=1, dtype=np.int64)
    return widths


def _rows(columns: Sequence[Column], count: int) -> pa.LargeBinaryArray:
    """Return one binary value per row: its bytes of every column, in the order given."""
    total = sum(len(column) if isinstance(column, bytes) else column[0].shape[1] for column in columns)
    matrix = np.empty((count, total), np.uint8)
    partly: list[tuple[int, npt.NDArray[np.bool_]]] = []
    at = 0
    for column in columns:
        if isinstance(column, bytes):
            for byte in column:
                matrix[:, at] = byte
                at += 1
            continue
        groups, used = column
        for group in range(groups.shape[1]):
            matrix[:, at] = groups[:, group]
            if group and not used[:, group].all():
                partly.append((at, used[:, group]))
            at += 1
    ends = np.arange(0, count * total + 1, total, dtype=np.int64)
    if not partly:
        content = pa.py_buffer(matrix)
    else:
        left_out = np.zeros(count, np.int64)
        for _, used in partly:
            left_out += ~used
        ends[1:] -= np.cumsum(left_out)
        # Small numbers come first in most batches; the rows after the last one that leaves a byte out need no mask.
        stop = int(np.flatnonzero(left_out)[-1]) + 1
        mask = np.ones((stop, total), np.bool_)
        for at, used in partly:
            mask[:, at] = used[:stop]
        content = pa.py_buffer(np.concatenate([matrix[:stop][mask], matrix[stop:].reshape(-1)]))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends), content])
