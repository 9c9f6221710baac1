"""Find the entries of Publish 2: ``id(u64) filter length(i16) filter value length(i32) message``.

Spec: Streams Protocol Reference, "Publish", version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Positions, Readable

_ID: Final = 8
FILTERED_HEAD_BYTES: Final = 10
"""The bytes of the publishing id and the filter value's length."""
_HEAD: Final = struct.Struct(">8xh")
_LENGTH: Final = struct.Struct(">i")
_FIRST_GUESS: Final = 256
"""The number of entries in the first guess of equal lengths; each right guess multiplies it by eight."""
_FEWEST_ALIKE: Final = 64
"""The fewest entries of equal length for which the comparison pays."""
_STRETCH: Final = 1024
"""The number of entries to read one by one before the next guess of equal lengths."""


def filtered_begins(buffer: Readable, at: int, end: int, count: int) -> Positions:
    """Return the first byte of each of ``count`` entries from ``at`` on, and then the end of the last one.

    The entries must end by ``end``, exclusive.

    Raises:
        RemoteProtocolError: an entry ends after ``end``, or a length is negative (that of a filter value may be -1).
    """
    begins: list[Positions] = []
    left, guess = count, _FIRST_GUESS
    while left:
        middle, following = _one(buffer, at, end)
        step = following - at
        alike = min(guess, left, (end - at) // step)
        filters = np.ndarray((alike,), ">i2", buffer, at + _ID, (step,))
        messages = np.ndarray((alike,), ">i4", buffer, middle, (step,))
        same = (filters == filters[0]) & (messages == messages[0])
        good = alike if same.all() else int(same.argmin())
        if good < min(left, _FEWEST_ALIKE):
            run = np.fromiter(islice(_followed(buffer, at), min(left, _STRETCH) + 1), np.int64)
            # An entry that is wrong is the first of the next turn, in which ``_one`` raises the error that names it.
            run, guess = run[: np.searchsorted(run, end, "right")], _FIRST_GUESS
        else:
            run = np.arange(at, at + (good + 1) * step, step, dtype=np.int64)
            guess = 8 * guess if good == alike else _FIRST_GUESS
        begins.append(run[:-1])
        at, left = int(run[-1]), left - run.size + 1
    return np.concatenate((*begins, np.array([at], np.int64)))


def _one(buffer: Readable, at: int, end: int) -> tuple[int, int]:
    """Return the place of the message's length in the entry at ``at``, and the end of the entry."""
    if end - at < FILTERED_HEAD_BYTES:
        raise RemoteProtocolError(f"Publish 2: an entry's head at byte {at}: {end - at} bytes are left")
    (length,) = _HEAD.unpack_from(buffer, at)
    if length < -1:
        raise RemoteProtocolError(f"Publish 2: a filter value of {length} bytes at byte {at + 8}: expected -1 or more")
    middle = at + FILTERED_HEAD_BYTES + max(length, 0)
    if end - middle < 4:
        raise RemoteProtocolError(
            f"Publish 2: a filter value of {length} bytes at byte {at + 8} and the message's length behind it: "
            f"{end - at - FILTERED_HEAD_BYTES} bytes are left"
        )
    (length,) = _LENGTH.unpack_from(buffer, middle)
    if length < 0:
        raise RemoteProtocolError(
            f"Publish 2: a message of {length} bytes at byte {middle}: expected 0 or more; sub-batches go in version 1"
        )
    if length > end - middle - 4:
        raise RemoteProtocolError(f"Publish 2: a message of {length} bytes at byte {middle}: {end - middle - 4} left")
    return middle, middle + 4 + length


def _followed(buffer: Readable, at: int) -> Iterator[int]:
    """Yield the start of each entry, the first at ``at``, until something is wrong."""
    filter_length_at, length_at = _HEAD.unpack_from, _LENGTH.unpack_from
    try:
        while True:
            yield at
            (filter_length,) = filter_length_at(buffer, at)
            middle = at + FILTERED_HEAD_BYTES + (filter_length if filter_length > 0 else 0)
            (length,) = length_at(buffer, middle)
            if filter_length < -1 or length < 0:
                return
            at = middle + 4 + length
    except struct.error:
        return
