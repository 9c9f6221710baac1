"""Read the entries of Publish 2 in columns: ``id(u64) filter length(i16) filter value length(i32) message``.

Spec: Streams Protocol Reference, "Publish", version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Positions, Readable, numbers_at

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


class FilteredEntries(NamedTuple):
    """The places of the entries that were read.

    Args:
        begins: first byte of every entry, which is that of its publishing id.
        filter_starts: first byte of every filter value, inclusive; -1 for none.
        filter_ends: byte after it; -1 for none.
        starts: first byte of every message, inclusive.
        ends: byte after it.
        stop: byte after the last entry.
    """

    begins: Positions
    filter_starts: Positions
    filter_ends: Positions
    starts: Positions
    ends: Positions
    stop: int


def read_filtered(buffer: Readable, at: int, end: int, count: int) -> FilteredEntries:
    """Read ``count`` entries from ``at`` on, which must end by ``end``, exclusive.

    Raises:
        RemoteProtocolError: an entry ends after ``end``, or a length is negative (that of a filter value may be -1).
    """
    # The start of each entry, and the place of its message's length, both as runs.
    begins: list[Positions] = [np.empty(0, np.int64)]
    middles: list[Positions] = [np.empty(0, np.int64)]
    left, guess = count, _FIRST_GUESS
    while left:
        middle, following = _one(buffer, at, end)
        step = following - at
        alike = min(guess, left, (end - at) // step)
        filters = np.ndarray((alike,), ">i2", buffer, at + 8, (step,))
        messages = np.ndarray((alike,), ">i4", buffer, middle, (step,))
        same = (filters == filters[0]) & (messages == messages[0])
        good = alike if same.all() else int(same.argmin())
        if good < min(left, _FEWEST_ALIKE):
            good, guess = min(left, _STRETCH), _FIRST_GUESS
            run = _one_by_one(buffer, at, end, good)
            begins.append(run[:-1:2])
            middles.append(run[1::2])
            at = int(run[-1])
        else:
            run = np.arange(0, good * step, step, dtype=np.int64)
            begins.append(run + at)
            middles.append(run + middle)
            at, guess = at + good * step, guess * 8
        left -= good
    begin, middle_at = np.concatenate(begins), np.concatenate(middles)
    starts = middle_at + 4
    ends = starts + (numbers_at(buffer, middle_at, ">i4") if count else 0)
    filter_starts = begin + FILTERED_HEAD_BYTES
    none = numbers_at(buffer, begin + 8, ">i2") < 0 if count else np.empty(0, np.bool_)
    filter_ends = np.where(none, -1, middle_at)
    return FilteredEntries(begin, np.where(none, -1, filter_starts), filter_ends, starts, ends, at)


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


def _one_by_one(buffer: Readable, at: int, end: int, count: int) -> Positions:
    """Return the start of each of ``count`` entries and the place of its message's length, in turns; then the end."""
    run = np.fromiter(islice(_followed(buffer, at), 2 * count + 1), np.int64)
    if run.size == 2 * count + 1 and run[-1] <= end:
        return run
    # Something is wrong, and careful reading raises the error that names it.
    careful = [at]
    for _ in range(count):
        careful += _one(buffer, careful[-1], end)
    return np.array(careful, np.int64)


def _followed(buffer: Readable, at: int) -> Iterator[int]:
    """Yield the start of each entry and the place of its message's length, in turns, until something is wrong."""
    filter_length_at, length_at = _HEAD.unpack_from, _LENGTH.unpack_from
    try:
        while True:
            yield at
            (length,) = filter_length_at(buffer, at)
            at += FILTERED_HEAD_BYTES + (length if length > 0 else 0)
            if length < -1:
                return
            yield at
            (length,) = length_at(buffer, at)
            at += 4 + length
            if length < 0:
                return
    except struct.error:
        return
