"""Entries behind one another: ``length(u32) body``, perhaps with more bytes before the length; read in columns.

Where an entry begins is known only when the one before it has been read, so reading follows a chain. It goes by
guesses: that the entries behind this one are as long as it is, all verified in one NumPy comparison; else, that their
lengths fit in one byte, which Python reads faster than four, and is verified afterwards. What was guessed wrong is read
with care.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.rabbit.compression import Readable

__all__ = ["SPECIAL", "Entries", "Positions", "read_entries", "words_at"]

SPECIAL: Final = 1 << 31
"""The bit of a length that says that it is none: a sub-batch's head begins there."""
_U32: Final = struct.Struct(">I")
_LENGTH: Final = 4
_FIRST_GUESS: Final = 64
"""How many entries are guessed to be alike at first; eight times as many after each guess that was right."""
_STRETCH: Final = 1024
"""How many entries are read one by one before alike ones are looked for again."""

Positions = NDArray[np.int64]


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


def words_at(buffer: Readable, positions: Positions, kind: str) -> NDArray[np.int64]:
    """Return the big-endian numbers of type ``kind``, such as ``>u4``, at these positions, all inside ``buffer``."""
    width = np.dtype(kind).itemsize
    # An unaligned view of every position: nothing is copied but what is taken.
    every: NDArray[np.int64] = np.ndarray((len(buffer) - width + 1,), kind, buffer, strides=(1,))
    return every[positions]


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
    head, first = before + _LENGTH, at
    runs: list[tuple[Positions, Positions]] = []
    left, guess = count, _FIRST_GUESS
    while left:
        length = _length_at(buffer, at, end, before)
        if length >= SPECIAL:
            break
        step = head + length
        alike = min(guess, left, (end - at) // step)
        lengths = np.ndarray((alike,), ">u4", buffer, at + before, (step,))
        same = lengths == length
        good = alike if same.all() else int(same.argmin())
        if good < min(left, _FIRST_GUESS):
            starts, stop = _one_by_one(buffer, at, end, min(left, _STRETCH), before)
            ends = np.append(starts[1:] - head, stop)
            good, guess = starts.size, _FIRST_GUESS
        else:
            starts = np.arange(at + head, at + head + good * step, step, dtype=np.int64)
            ends = starts + length
            stop, guess = at + good * step, guess * 8
        runs.append((starts, ends))
        at, left = stop, left - good
    if len(runs) == 1:
        return Entries(*runs[0], at)
    if not runs:
        return Entries(np.empty(0, np.int64), np.empty(0, np.int64), first)
    return Entries(np.concatenate([run[0] for run in runs]), np.concatenate([run[1] for run in runs]), at)


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


def _one_by_one(buffer: Readable, at: int, end: int, count: int, before: int) -> tuple[Positions, int]:
    """Return where the bodies of at most ``count`` entries, and at least one, start, and where the last one ends."""
    head = before + _LENGTH
    length = _length_at(buffer, at, end, before)
    try:
        if length < 256:
            low = at + before + _LENGTH - 1
            found = [low := low + buffer[low] + head for _ in repeat(None, count)]
            last = at + before + _LENGTH - 1
        else:
            low = at + before
            found = [low := low + _U32.unpack_from(buffer, low)[0] + head for _ in repeat(None, count)]
            last = at + before
    except (IndexError, struct.error):
        return _with_care(buffer, at, end, count, before)
    shift = last - at
    begins = np.empty(count + 1, np.int64)
    begins[0] = at
    begins[1:] = found
    begins[1:] -= shift
    inside = int(np.searchsorted(begins, end, "right")) - 1
    begins = begins[: inside + 1]
    wrong = words_at(buffer, begins[:-1] + before, ">u4") != np.diff(begins) - head
    good = int(wrong.argmax()) if wrong.any() else inside
    if good == 0:
        return _with_care(buffer, at, end, count, before)
    return begins[:good] + head, int(begins[good])


def _with_care(buffer: Readable, at: int, end: int, count: int, before: int) -> tuple[Positions, int]:
    starts: list[int] = []
    for _ in range(count):
        length = _length_at(buffer, at, end, before)
        if length >= SPECIAL:
            break
        at += before + _LENGTH
        starts.append(at)
        at += length
    return np.array(starts, np.int64), at
