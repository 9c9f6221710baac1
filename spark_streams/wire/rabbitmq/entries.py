"""Entries of chunks, sub-batches and Publish 1, read in columns: ``length(u32) body``, perhaps with bytes before it.

Where an entry begins is known only when the one before it has been read, so reading follows a chain. It goes by
guesses: that the entries behind this one are as long as it is, all verified in one NumPy comparison; else, that their
lengths fit in one byte, which Python reads faster than four, and is verified afterwards. What was guessed wrong is read
with care.
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
"""The bit of a length that says that it is none: a sub-batch's head begins there."""
_U32: Final = struct.Struct(">I")
_LENGTH: Final = 4
_FEW: Final = 12
"""Up to so many entries are read one by one, which takes less than one NumPy operation for each step."""
_FIRST_GUESS: Final = 256
"""How many entries are guessed to be alike at first; eight times as many after each guess that was right."""
_FEWEST_ALIKE: Final = 64
"""Fewer alike entries than these are not worth what the comparison costs."""
_STRETCH: Final = (16, 4096)
"""How many entries are followed one by one before alike ones are looked for again: at first, twice as many while all
goes well, at most. Little is lost where plain entries and sub-batches take turns."""


class Entries(NamedTuple):
    """A part of a chain.

    Args:
        starts: first byte of each body, inclusive.
        ends: byte after each body.
        stop: byte after the last body; where reading began when there is none.
    """

    starts: Positions
    ends: Positions
    stop: int


def read_entries(buffer: Readable, at: int, end: int, count: int, before: int = 0) -> Entries:
    """Read up to ``count`` entries; stop early at one whose length has bit 31 set.

    Args:
        buffer: the bytes.
        at: where the first entry begins, inclusive.
        end: where they end at the latest, exclusive; inside ``buffer``.
        count: how many, at most.
        before: bytes in front of each length.

    Raises:
        RemoteProtocolError: an entry does not end by ``end``.
    """
    if count <= _FEW:
        return _few(buffer, at, end, count, before)
    head = before + _LENGTH
    starts: list[Positions] = []
    ends: list[Positions] = []
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
            guess *= 8
        else:
            asked = min(left, stretch)
            begins = _followed(buffer, at, end, asked, before, narrow and length < 256)
            good, guess = begins.size - 1, _FIRST_GUESS
            stretch = min(2 * stretch, _STRETCH[1]) if good == asked else _STRETCH[0]
            narrow = narrow and good == asked
        starts.append(begins[:-1] + head)
        ends.append(begins[1:])
        at, left = int(begins[-1]), left - good
    if len(starts) > 1:
        return Entries(np.concatenate(starts), np.concatenate(ends), at)
    if starts:
        return Entries(starts[0], ends[0], at)
    return Entries(np.empty(0, np.int64), np.empty(0, np.int64), at)


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
    """Return the length of the entry at ``at``, checked, or the first word of a sub-batch's head."""
    if end - at < before + _LENGTH:
        raise RemoteProtocolError(f"an entry's head of {before + _LENGTH} bytes at byte {at}: {end - at} are left")
    length: int = _U32.unpack_from(buffer, at + before)[0]
    if length < SPECIAL and length > end - at - before - _LENGTH:
        raise RemoteProtocolError(
            f"an entry of {length} bytes at byte {at}: {end - at - before - _LENGTH} are left for it"
        )
    return length


def _followed(buffer: Readable, at: int, end: int, count: int, before: int, narrow: bool) -> Positions:
    """Return where the next entries begin, at most ``count`` and at least one, and then where the last one ends.

    The first is known to be a plain one that ends in time; those that are not, and all behind them, are left out.

    Args:
        buffer: the bytes.
        at: where the first entry begins.
        end: where the last one ends at the latest.
        count: how many, at most.
        before: bytes in front of each length.
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
    """Return where the lowest byte of each length is, guessing that the others are zero; the first is at ``at``."""
    try:
        while True:
            yield at
            at += buffer[at] + head
    except IndexError:
        return


def _by_length(buffer: Readable, at: int, head: int) -> Iterator[int]:
    """Return where each length is; the first is at ``at``."""
    length_at = _U32.unpack_from
    try:
        while True:
            yield at
            at += length_at(buffer, at)[0] + head
    except struct.error:
        return
