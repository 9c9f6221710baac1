"""Base64 of many values at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.columnar.byte_view import Mask, Positions

__all__ = ["decode_base64"]

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_INVALID: Final = 64
_SIXTHS: Final = np.full(256, _INVALID, np.uint8)
_SIXTHS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
_PAD: Final = 0x3D


def decode_base64(content: NDArray[np.uint8], offsets: Positions) -> tuple[NDArray[np.uint8], Positions, Mask]:
    """Decode values that lie one after the other.

    Args:
        content: their base64.
        offsets: where each begins, and at the end where the last one ends.

    Returns:
        the decoded bytes, three for every four of the content with what is padding undefined; each value's length; and
        which values are no base64 (a value begins at three quarters of where its base64 does; if one is invalid, no
        other one's place is to be relied on: leave them out and call again).
    """
    start, end = offsets[:-1], offsets[1:]
    size = end - start
    padding = np.zeros(size.size, np.int64)
    some = np.flatnonzero(size > 0)
    last = content[end[some] - 1] == _PAD
    padding[some] += last
    padding[some[last]] += content[np.maximum(end[some[last]] - 2, 0)] == _PAD
    sixths = _SIXTHS[content]
    wrong = sixths == _INVALID
    for back in (1, 2):
        padded = padding >= back
        wrong[end[padded] - back] = False
        sixths[end[padded] - back] = 0
    invalid = (size % 4 != 0) | (padding > size)
    if wrong.any():
        invalid[np.searchsorted(end, np.flatnonzero(wrong), side="right")] = True
    whole = sixths[: sixths.size // 4 * 4].reshape(-1, 4)
    decoded = np.empty((len(whole), 3), np.uint8)
    decoded[:, 0] = (whole[:, 0] << 2) | (whole[:, 1] >> 4)
    decoded[:, 1] = (whole[:, 1] << 4) | (whole[:, 2] >> 2)
    decoded[:, 2] = (whole[:, 2] << 6) | whole[:, 3]
    return decoded.reshape(-1), size // 4 * 3 - padding, invalid
