"""JSON without the content of its long strings: as valid as it was, and shorter.

Reading a string byte by byte is most of what checking a long event costs, and the bytes that matter in it are few:
quotes, backslashes, control characters. Between two quotes with none of these in between, everything can go::

    {"text":"lorem ipsum … dolor","more":"x"}   ->   {"text":"","more":"x"}

It does not matter whether the two quotes are those of one string. If they are not, they end one string and begin the
next, and become neighbours, ``""`` where no string may follow: the shortened text is then not valid, whatever the long
one was. So a shortened text that is valid is that of a valid text.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.columnar.gather import Positions, gather

__all__ = ["without_long_strings"]

LONG_BYTES: Final = 48
"""A string with more bytes than this is left out."""
SAMPLE_BYTES: Final = 16 << 10
CHUNK_BYTES: Final = 128 << 10
"""How much is compared at once: what a cache holds."""
_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20


def without_long_strings(raw: NDArray[np.uint8]) -> pa.Buffer | None:
    """Return JSON without the content of its long strings, or None when that is not much shorter.

    Args:
        raw: the JSON, in UTF-8, which is not checked.
    """
    if _saved(_long_strings(raw[:SAMPLE_BYTES])) * 2 < min(raw.size, SAMPLE_BYTES):
        return None
    after, before = _long_strings(raw)
    start = np.concatenate((np.zeros(1, np.int64), before))
    end = np.append(after, raw.size)
    return gather([raw], None, start, end - start, pa.binary()).buffers()[2]


def _saved(strings: tuple[Positions, Positions]) -> int:
    return int((strings[1] - strings[0]).sum())


def _long_strings(raw: NDArray[np.uint8]) -> tuple[Positions, Positions]:
    """Return where the content of each long string begins, and where its closing quote is."""
    found = []
    for first in range(0, raw.size, CHUNK_BYTES):
        chunk = raw[first : first + CHUNK_BYTES]
        special = chunk == _QUOTE
        special |= chunk == _BACKSLASH
        if chunk.min() < _SPACE:  # half the time of a comparison of every byte, and hardly ever true
            special |= chunk < _SPACE
        positions = np.flatnonzero(special)
        positions += first
        found.append(positions)
    special_at: Positions = np.concatenate(found) if len(found) > 1 else found[0]
    special_bytes = raw[special_at]
    quote = special_bytes == _QUOTE
    # Of two quotes, every first one begins a string. A quote after a backslash is not counted; the rare one after an
    # escaped backslash is wrongly not counted, and only makes the shortened text one that is not valid.
    counted = quote.copy()
    counted[1:] &= (special_bytes[:-1] != _BACKSLASH) | (np.diff(special_at) != 1)
    inside = (np.cumsum(counted) & 1).astype(np.bool_)
    long = np.flatnonzero(inside[:-1] & quote[:-1] & quote[1:] & (np.diff(special_at) > LONG_BYTES))
    return special_at[long] + 1, special_at[long + 1]
