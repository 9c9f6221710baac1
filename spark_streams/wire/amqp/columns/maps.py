"""Decode the annotation and application-property maps of many messages into one Arrow map column."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.amqp.columns.block import BlockSections
from spark_streams.wire.amqp.columns.canonical import canonical_texts, column_of, map_array
from spark_streams.wire.amqp.sections import Extents, Pair
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions

_MIX: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))


def read_entries(block: BlockSections, section: int) -> list[Pair]:
    """Return the entries of a section's maps: step k has entry k of every map that has more than k entries.

    Messages whose map is irregular, or may hold a key twice, become irregular.
    """
    steps = list(block.entries(section))
    _mark_repeated_keys(block.words, steps, block.irregular)
    return steps


def map_column(block: BlockSections, section: int, steps: list[Pair], column: str) -> pa.MapArray:
    """Return the entries as a column, one row for each message, null without the section and for irregular messages.

    Args:
        block: the messages.
        section: the code of the maps' section.
        steps: the result of ``read_entries``.
        column: the name in errors.

    Raises:
        RemoteProtocolError: a value cannot be decoded, or a text is not UTF-8.
    """
    n, words = block.n, block.words
    counts = np.zeros(n, np.int64)
    steps = [step.chosen(~block.irregular[step.rows]) for step in steps]
    for step in steps:
        counts[step.rows] += 1
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    total = int(offsets[-1])
    keys, values = Extents.empty(total), Extents.empty(total)
    for k, step in enumerate(steps):
        keys.keep(offsets[step.rows] + k, step.key)
        values.keep(offsets[step.rows] + k, step.value)
    texts = canonical_texts(words, values)
    pairs = column_of(words, keys, pa.string(), column), column_of(words, texts, pa.string(), column)
    return map_array(block.present(section), offsets, *pairs)


def _mark_repeated_keys(words: PaddedWords, steps: list[Pair], irregular: Mask) -> None:
    """Mark messages where two keys look equal: same length, same first, middle and last eight bytes.

    Such keys need not be equal; then the message only takes the slower path.
    """
    if len(steps) < 2:
        return
    first = steps[0].rows
    place = np.zeros(irregular.size, np.int64)
    place[first] = np.arange(first.size)
    # A row without entry k keeps the number k there: marks of real keys have the top bit set, so none equals it.
    marks = np.empty((first.size, len(steps)), np.uint64)
    marks[:] = np.arange(len(steps), dtype=np.uint64)
    for k, step in enumerate(steps):
        marks[place[step.rows], k] = _mark(words, step.key.start, step.key.end) | np.uint64(1 << 63)
    marks.sort(axis=1)
    irregular[first[(marks[:, 1:] == marks[:, :-1]).any(axis=1)]] = True


def _mark(words: PaddedWords, start: Positions, end: Positions) -> NDArray[np.uint64]:
    length = end - start
    bits = (8 * np.clip(8 - length, 0, 8)).astype(np.uint64)
    short = length < 8
    # Two shifts: one by 64 bits would be undefined for empty keys.
    head = (words.little(start) << (bits >> np.uint64(1))) << (bits - (bits >> np.uint64(1)))
    middle = words.little(np.where(short, start, start + (length - 8) // 2))
    tail = words.little(np.where(short, start, end - 8))
    mark: NDArray[np.uint64] = head * _MIX[0] + np.where(short, np.uint64(0), middle * _MIX[1] + tail * _MIX[2])
    mark = mark * _MIX[1] + length.astype(np.uint64)
    return mark
