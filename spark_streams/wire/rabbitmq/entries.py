"""Read the entries of chunks, sub-batches and Publish 1 in columns: ``length(u32) body``, perhaps with bytes before it.

An entry's start is known only after the previous entry is read, so reading follows a chain. The reader guesses: first,
that the next entries have the same length, and verifies all of them in one NumPy comparison; otherwise, that their
lengths fit in one byte, which Python reads faster than four, and verifies that afterwards. It reads entries again, one
by one, where a guess was wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Positions, Readable, numbers_at

SPECIAL: Final = 1 << 31
"""The bit of a length that marks the head of a sub-batch instead of a length."""
_U32: Final = struct.Struct(">I")
_LENGTH: Final = 4
_FEW: Final = 12
"""Up to this many entries are read one by one, which takes less time than the NumPy operations."""
_FIRST_GUESS: Final = 256
"""The number of entries in the first guess of equal lengths; each right guess multiplies it by eight."""
_FEWEST_ALIKE: Final = 64
"""The fewest entries of equal length for which the comparison pays."""
_STRETCH: Final = (16, 4096)
"""The number of entries to follow one by one before the next guess of equal lengths: at first, and at most; it doubles
each time that all of them could be followed. Little is lost where plain entries and sub-batches alternate."""


class Entries(NamedTuple):
    """A part of a chain.

    Args:
        starts: first byte of each body, inclusive.
        ends: byte after each body.
        stop: byte after the last body; the start of reading if there is none.
    """

    starts: Positions
    ends: Positions
    stop: int


def read_entries(buffer: Readable, at: int, end: int, count: int, before: int = 0) -> Entries:
    """Read up to ``count`` entries; stop early at one whose length has bit 31 set.

    Args:
        buffer: the bytes.
        at: start of the first entry, inclusive.
        end: the limit of all entries, exclusive; inside ``buffer``.
        count: the most entries to read.
        before: number of bytes before each length.

    Raises:
        RemoteProtocolError: an entry ends after ``end``.
    """
    if count <= _FEW:
        return _few(buffer, at, end, count, before)
    head = before + _LENGTH
    runs: list[Positions] = []
    left, guess, stretch, narrow = count, _FIRST_GUESS, _STRETCH[0], True
    while left:
        length = _length_at(buffer, at, end, before)
        if length >= SPECIAL:
            break
        step = head + length
        alike = min(guess, left, (end - at) // step)
        same = np.ndarray((alike,), ">u4", buffer, at + before, (step,)) == length
        good = alike if same.all() else int(same.argmin())
        if good >= min(left, _FEWEST_ALIKE):
            begins = np.arange(at, at + (good + 1) * step, step, dtype=np.int64)
            guess = 8 * guess if good == alike else _FIRST_GUESS
        else:
            most = min(left, stretch)
            begins = _followed(buffer, at, end, most, before, narrow and length < 256)
            good, guess = begins.size - 1, _FIRST_GUESS
            stretch = min(2 * stretch, _STRETCH[1]) if good == most else _STRETCH[0]
            narrow = narrow and good == most
        runs.append(begins)
        at, left = int(begins[-1]), left - good
    every = runs[0] if len(runs) == 1 else np.concatenate((*(run[:-1] for run in runs), np.array([at], np.int64)))
    return Entries(every[:-1] + head, every[1:], at)


def _few(buffer: Readable, at: int, end: int, count: int, before: int) -> Entries:
    starts: list[int] = []
    ends: list[int] = []
    for _ in range(count):
        length = _length_at(buffer, at, end, before)
        if length >= SPECIAL:
            break
        at += before + _LENGTH
        starts.append(at)
        at += length
        ends.append(at)
    return Entries(np.array(starts, np.int64), np.array(ends, np.int64), at)


def _length_at(buffer: Readable, at: int, end: int, before: int) -> int:
    """Return the length of the entry at ``at``, checked; or the first word of a sub-batch's head."""
    if end - at < before + _LENGTH:
        raise RemoteProtocolError(f"an entry's head of {before + _LENGTH} bytes at byte {at}: {end - at} are left")
    length: int = _U32.unpack_from(buffer, at + before)[0]
    if length < SPECIAL and length > end - at - before - _LENGTH:
        raise RemoteProtocolError(
            f"an entry of {length} bytes at byte {at}: {end - at - before - _LENGTH} are left for it"
        )
    return length


def _followed(buffer: Readable, at: int, end: int, count: int, before: int, narrow: bool) -> Positions:
    """Return the starts of the next entries, at most ``count`` and at least one, and then the end of the last one.

    The first entry is a plain one that ends in time; the result stops before the first other one.

    Args:
        buffer: the bytes.
        at: start of the first entry.
        end: the limit of the last entry.
        count: the most entries to follow.
        before: number of bytes before each length.
        narrow: whether to guess that all lengths fit in one byte.
    """
    head = before + _LENGTH
    shift = head - 1 if narrow else before
    chain = _by_lowest_byte(buffer, at + shift, head) if narrow else _by_length(buffer, at + shift, head)
    begins = np.fromiter(islice(chain, count + 1), np.int64) - shift
    begins = begins[: np.searchsorted(begins, end, "right")]
    right = numbers_at(buffer, begins[:-1] + before, ">u4") == np.diff(begins) - head
    return begins if right.all() else begins[: int(right.argmin()) + 1]


def _by_lowest_byte(buffer: Readable, at: int, head: int) -> Iterator[int]:
    """Yield the place of the lowest byte of each length, guessing that the others are zero; the first is at ``at``."""
    try:
        while True:
            yield at
            at += buffer[at] + head
    except IndexError:
        return


def _by_length(buffer: Readable, at: int, head: int) -> Iterator[int]:
    """Yield the place of each length; the first is at ``at``."""
    length_at = _U32.unpack_from
    try:
        while True:
            yield at
            at += length_at(buffer, at)[0] + head
    except struct.error:
        return
