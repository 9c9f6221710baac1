"""Zigzag varints, one or many at a time: groups of 7 bits, the lowest first, bit 7 set in all but the last byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_VARINT_BYTES = 10
"""A 64-bit value takes at most ten groups of seven bits."""

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


def _varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = tuple(_varint(value) for value in range(-1, 2048))


def encode_varint(value: int) -> bytes:
    """Encode one int64; a table has the small ones, which are mostly lengths and deltas."""
    return _SMALL[value + 1] if -1 <= value < 2047 else _varint(value)


def decode_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at ``at``; return its value and the position after it.

    Raises:
        ValueError: it runs past the buffer or past ten bytes.
    """
    rest = shift = 0
    while True:
        if at >= len(buffer) or shift >= 7 * MAX_VARINT_BYTES:
            raise ValueError("a varint runs past the buffer, or past ten bytes")
        byte = buffer[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (rest >> 1) ^ -(rest & 1), at
        shift += 7


def encode_varints(values: Longs) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Encode n values.

    Returns:
        A uint8 matrix [n, width] whose row i starts with the bytes of value i, and a mask of the same shape, true for
        these bytes: ``matrix[mask]`` is their concatenation. The width, at most ten, is that of the longest. Columns,
        not rows, are contiguous.
    """
    # Zigzag: small magnitudes stay small, 0, -1, 1, -2 become 0, 1, 2, 3.
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    # Most columns of a batch need one or two groups; always computing ten was two thirds of an append's time.
    longest = max(int(rest.max()).bit_length() if len(rest) else 0, 1)
    kinds = ((16, np.uint16), (32, np.uint32), (64, np.uint64))
    rest = rest.astype(next(kind for bits, kind in kinds if longest <= bits))
    # Group by group: one group of all values is one stretch of memory.
    width = -(-longest // 7)
    matrix = np.empty((width, len(values)), np.uint8)
    used = np.ones((width, len(values)), np.bool_)
    for group in range(width):
        matrix[group] = rest & 0x7F
        rest >>= 7
        if group + 1 < width:
            used[group + 1] = rest != 0
            matrix[group] |= used[group + 1].view(np.uint8) << 7
    return matrix.T, used.T


def decode_varints(buffer: Bytes, positions: Longs) -> tuple[Longs, Longs]:
    """Decode one varint at each position.

    Returns:
        The values, and the position after each.

    Raises:
        ValueError: a varint runs past the buffer or past ten bytes.
    """
    if not len(positions):
        return np.zeros(0, np.int64), positions.copy()
    last = int(positions.max())
    if int(positions.min()) < 0 or last >= len(buffer):
        raise ValueError("a varint starts outside the batch")
    # Nearly all varints of a batch have one byte or two: these are computed for all rows at once.
    low = buffer[positions]
    longer = low >= 0x80
    if not longer.any():
        return _ONE_BYTE[low], positions + 1
    following = positions + 1
    if last + 1 >= len(buffer):
        if longer[following >= len(buffer)].any():
            raise ValueError("a varint runs past the end of the batch")
        np.minimum(following, len(buffer) - 1, out=following)
    high = buffer[following]
    rest = np.where(longer, (low & 0x7F) | (high & 0x7F).astype(np.uint16) << 7, low)
    at = positions + 1 + longer
    signed = _TWO_BYTES[rest]
    rows = np.flatnonzero(longer & (high >= 0x80))
    if len(rows):
        values, at[rows] = _long_varints(buffer, at[rows], rest[rows].astype(np.uint64))
        signed[rows] = _unzigzag(values)
    return signed, at


def _long_varints(buffer: Bytes, at: Longs, values: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], Longs]:
    """Go on with varints that are longer than the two bytes in ``values``; ``at`` is where their third byte lies."""
    shift = 14
    rows = np.arange(len(at))
    while len(rows):
        if shift >= 7 * MAX_VARINT_BYTES:
            raise ValueError("a varint is longer than ten bytes")
        where = at[rows]
        if int(where.max()) >= len(buffer):
            raise ValueError("a varint runs past the end of the batch")
        byte = buffer[where]
        values[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[rows] += 1
        rows = rows[(byte & 0x80) != 0]
        shift += 7
    return values, at


def _unzigzag(values: npt.NDArray[np.uint64]) -> Longs:
    signed: Longs = (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)
    return signed


_TWO_BYTES = _unzigzag(np.arange(1 << 14, dtype=np.uint64))
"""The value of the 14 bits of a varint of two bytes; a look-up is one pass over the rows, the arithmetic five."""
_ONE_BYTE = _TWO_BYTES[: 1 << 7]
