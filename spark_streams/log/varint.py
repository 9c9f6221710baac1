"""Zigzag varints, many at a time: groups of 7 bits, the lowest first, bit 7 set on all but the last byte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_VARINT_BYTES", "decode_varint", "decode_varints", "encode_varint", "encode_varints", "zigzag"]

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
    """Encode one value; the small ones, lengths and deltas mostly, are looked up."""
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


def zigzag(values: Longs) -> npt.NDArray[np.uint64]:
    """Map signed to unsigned so that small magnitudes stay small: 0, -1, 1, -2 become 0, 1, 2, 3."""
    out: npt.NDArray[np.uint64] = ((values << 1) ^ (values >> 63)).view(np.uint64)
    return out


def encode_varints(values: Longs) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Encode n values.

    Returns:
        A matrix [n, width] whose row i starts with the bytes of value i, and a mask of the same shape that says which
        of its bytes count: ``matrix[mask]`` is their concatenation. The width, at most ten, is that of the longest.

    """
    rest = zigzag(values)
    # Most columns of a batch need one or two groups; always working out ten was two thirds of an append's time.
    longest = int(rest.max()).bit_length() if len(rest) else 0
    shifts = np.arange(0, max(longest, 1), 7, dtype=np.uint64)
    groups = (rest[:, None] >> shifts[None, :]) & np.uint64(0x7F)
    used = np.ones(groups.shape, np.bool_)
    used[:, 1:] = (rest[:, None] >> shifts[None, 1:]) != 0
    matrix = groups.astype(np.uint8)
    matrix[:, :-1][used[:, 1:]] |= 0x80
    return matrix, used


def decode_varints(buffer: Bytes, positions: Longs) -> tuple[Longs, Longs]:
    """Decode one varint at each position.

    Returns:
        The values, and the position after each.

    Raises:
        ValueError: a varint runs past the buffer or past ten bytes.

    """
    values = np.zeros(len(positions), np.uint64)
    at = positions.copy()
    if len(at) and (int(at.min()) < 0 or int(at.max()) >= len(buffer)):
        raise ValueError("a varint starts outside the batch")
    first = buffer[at] if len(at) else np.zeros(0, np.uint8)
    values |= (first & 0x7F).astype(np.uint64)
    at += 1
    open_rows = np.flatnonzero(first & 0x80)
    shift = 7
    while len(open_rows):
        if shift >= 70:
            raise ValueError("a varint is longer than ten bytes")
        where = at[open_rows]
        if int(where.max()) >= len(buffer):
            raise ValueError("a varint runs past the end of the batch")
        byte = buffer[where]
        values[open_rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[open_rows] += 1
        open_rows = open_rows[(byte & 0x80) != 0]
        shift += 7
    signed = (values >> np.uint64(1)).view(np.int64) ^ -(values & np.uint64(1)).view(np.int64)
    return signed, at
