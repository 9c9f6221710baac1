"""Finds where the records of stored batches begin and end.

A record is found only through the length of the one before it, which by itself takes a Python step for each record.
Two guesses, each verified for many records at once in NumPy, replace these steps where they hold:

- records of one size, guessed from the first one: all of their lengths are then the same bytes at the same distance;
- records of any size up to 8 KiB that end in the byte 0 (no headers) and begin, after their length, with the byte 0
  (attributes): a record may begin wherever the bytes look like that. If, from a known beginning on, the length at each
  such place leads to the next such place, the chain is proven.

Only records that a guess has proven count. The other records, and every error, are handled step by step; after a guess
that did not hold, the steps continue twice as long before the next guess, so that records which fit neither guess cost
hardly more than without guesses.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import numpy as np

from spark_streams.log.format.record_batch import HEADER_BYTES, BatchFault, BatchHeader
from spark_streams.log.format.varint import Bytes, Longs, decode_varint

FEW_RECORDS: Final = 200
"""Fewer records take no longer step by step than by guesses (measured: break-even is between 100 and 250)."""
GUESSED_RECORD_BYTES: Final = 1024
"""Above this average size, a step costs little beside the other work for a record."""
FIRST_GUESS_BYTES: Final = 64 << 10
"""Bytes that the second guess examines first; they double each time that it holds."""
LAST_GUESS_BYTES: Final = 128 << 10
"""The most bytes that the second guess examines; they fit the processor's cache."""

WORTHWHILE_RUN: Final = 64
"""A guess that proves fewer records counts as one that does not hold."""
MAX_LENGTH_BYTES: Final = 5
"""The most bytes of a record's length, a varint of 32 bits."""
LEAST_LENGTH: Final = 12
"""The length of the shortest record, six bytes, in zigzag: attributes, two deltas, two sizes, the number of headers."""

Add = Callable[[int], None]
_NONE: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def record_bounds(buffer: bytes, batches: list[tuple[int, BatchHeader]]) -> tuple[Longs, Longs]:
    """Return where each record's body, which follows its length, starts and ends.

    Args:
        buffer: holds the batches.
        batches: position and header of each.

    Raises:
        BatchFault: the records do not fit their batch.
    """
    starts, ends = array("q"), array("q")
    add_start, add_end = starts.append, ends.append
    for position, header in batches:
        at = position + HEADER_BYTES
        stop = position + header.size
        count = header.records_count
        if count < FEW_RECORDS:
            at = _step_by_step(buffer, at, stop, count, header, add_start, add_end)
        else:
            at = _by_guesses(buffer, at, stop, header, starts, ends)
        if at != stop:
            raise BatchFault(f"the batch's records end at byte {at - position} of {header.size}")
    return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def _step_by_step(
    buffer: bytes, at: int, stop: int, count: int, header: BatchHeader, add_start: Add, add_end: Add
) -> int:
    """Find ``count`` records of a batch from ``at`` on; return where the last one ends."""
    for _ in range(count):
        if at >= stop:
            raise BatchFault(f"the batch ends before its {header.records_count} records do")
        byte = buffer[at]
        at += 1
        length = byte & 0x7F
        shift = 7
        while byte & 0x80:
            if at >= stop or shift > 28:
                raise BatchFault("a record's length runs past the batch")
            byte = buffer[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
        if length & 1:
            raise BatchFault("a record has a negative length")
        add_start(at)
        at += length >> 1
        add_end(at)
    return at


def _by_guesses(buffer: bytes, at: int, stop: int, header: BatchHeader, starts: array[int], ends: array[int]) -> int:
    """Find all records of one batch; return where the last one ends."""
    raw = np.frombuffer(buffer, np.uint8)
    left = header.records_count
    most_steps, guessed_bytes = FEW_RECORDS, FIRST_GUESS_BYTES
    while left >= FEW_RECORDS and stop - at <= left * GUESSED_RECORD_BYTES:
        run_starts, run_ends = _of_one_size(buffer, raw, at, stop, left)
        if len(run_starts) < WORTHWHILE_RUN:
            run_starts, run_ends = _chained(raw, at, min(at + guessed_bytes, stop), stop)
            run_starts, run_ends = run_starts[:left], run_ends[:left]
            guessed_bytes = min(2 * guessed_bytes, LAST_GUESS_BYTES)
        if len(run_starts) >= WORTHWHILE_RUN:
            starts.frombytes(run_starts.tobytes())
            ends.frombytes(run_ends.tobytes())
            at = int(run_ends[-1])
            left -= len(run_starts)
            most_steps = FEW_RECORDS
        else:
            steps = min(most_steps, left)
            at = _step_by_step(buffer, at, stop, steps, header, starts.append, ends.append)
            left -= steps
            most_steps, guessed_bytes = 2 * most_steps, FIRST_GUESS_BYTES
    return _step_by_step(buffer, at, stop, left, header, starts.append, ends.append)


def _of_one_size(buffer: bytes, raw: Bytes, at: int, stop: int, left: int) -> tuple[Longs, Longs]:
    """Return the records from ``at`` on whose lengths are the same bytes as the first one's."""
    try:
        length, start = decode_varint(buffer, at)
    except ValueError:
        return _NONE
    size = start - at + length
    if length < 0 or start - at > MAX_LENGTH_BYTES or start > stop:
        return _NONE
    most = min(left, (stop - at) // size)
    # In growing steps, so that only a part of a batch of varied sizes is compared in vain.
    count, step = 0, WORTHWHILE_RUN
    while count < most:
        step = min(step, most - count)
        block = raw[at + count * size : at + (count + step) * size].reshape(step, size)
        same = block[:, 0] == raw[at]
        for column in range(1, start - at):
            same &= block[:, column] == raw[at + column]
        if not same.all():
            count += int(same.argmin())
            break
        count, step = count + step, 4 * step
    starts = start + np.arange(count, dtype=np.int64) * size
    return starts, starts + length


def _chained(raw: Bytes, at: int, end: int, stop: int) -> tuple[Longs, Longs]:
    """Return records from ``at`` on that begin before ``end`` and look as the module's docstring says.

    Each is proven: it begins where the one before ends, the first one at ``at``, and it ends by ``stop``.
    """
    zero = raw[at - 1 : end] == 0
    if len(zero) < 4:
        return _NONE
    # A zero ends the record before; a length of one or two bytes follows, whose first is not zero, and then a zero.
    like = (zero[:-3] > zero[1:-2]) & (zero[2:-1] | zero[3:])
    if np.count_nonzero(like) * 8 > len(like):
        return _NONE  # mostly zeros: records would seem to begin anywhere
    like[0] = True
    places = np.flatnonzero(like) + at
    low, high = raw[places], raw[places + 1]
    two = low >= 0x80
    lengths = np.where(two, (low & 0x7F) | (high.astype(np.int64) << 7), low)
    starts = places + 1 + two
    ends = starts + (lengths >> 1)
    wrong = (ends > stop) | (lengths < LEAST_LENGTH) | ((lengths & 1) != 0) | (two & (high >= 0x80))
    ends[wrong] = -1
    for _ in range(3):
        linked = ends[:-1] == places[1:]
        if linked.all():
            break
        # Drop the places that no other place leads to, which are mostly bytes of values, and look again.
        reached = np.zeros(end - at, np.bool_)
        reached[ends[(ends >= 0) & (ends < end)] - at] = True
        reached[0] = True
        kept = reached[places - at]
        places, starts, ends = places[kept], starts[kept], ends[kept]
    linked = ends[:-1] == places[1:]
    count = len(linked) if linked.all() else int(linked.argmin())
    count += int(ends[count] >= 0)
    return starts[:count], ends[:count]
