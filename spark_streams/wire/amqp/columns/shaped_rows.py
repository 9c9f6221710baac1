"""Sort the messages of a block by their shapes (``shapes.py``), and find the values of those that have the same one.

A block begins with the shape of its first message. Messages that do not have it are compared with the next shape, and
so on; a few messages in a shape of their own, and all messages beyond a few shapes, are left to the lockstep walk.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.shapes import INTEGERS, FixedPart, Shape, Slot, shape_of
from spark_streams.wire.amqp.dialects.dialect import Places
from spark_streams.wire.amqp.dialects.event_streams import EVENT_STREAMS
from spark_streams.wire.amqp.message import FOOTER
from spark_streams.wire.amqp.sections import FEW
from spark_streams.wire.columnar.byte_view import MAX_BLOCK_BYTES, WORD, Mask, Octets, Positions, Words, loads

_MOST_SHAPES: Final = 8
_FEWEST_ALIKE: Final = 8
"""The fewest messages for which a shape pays, unless it is the last one."""
_MOST_MISSES: Final = 2
"""After so many messages without a shape that pays, the rest is left to the walk."""

_MOST_KNOWN: Final = 16
_known: tuple[Shape, ...] = ()
"""The latest shapes, the last one first: to read one again would take longer than to compare small blocks with it."""


class ShapedRows:
    """Messages of one shape.

    Args:
        shape: the shape.
        words: the bytes.
        rows: the numbers of the messages that may have it.
        starts: first byte of each of these, inclusive.
        ends: byte after each, exclusive.

    Attributes:
        rows: the numbers of those that have it, and ``starts`` and ``ends`` theirs.
    """

    def __init__(self, shape: Shape, words: Words, rows: Positions, starts: Positions, ends: Positions) -> None:
        self.shape, self.words = shape, words
        self.rows, self.starts, self.ends = rows, starts, ends
        self._places: list[Positions] = []
        self._heads: list[Octets] = []
        at = starts
        for part in shape.fixed_parts:
            self._places.append(at)
            self._compare(part)
            if part.length:
                length = self._number(len(self._heads) - 1, part.length_at, part.length)
                at = self._places[-1] + part.width + length
        if shape.whole:
            self._keep(self._places[-1] + shape.fixed_parts[-1].width == self.ends)

    def _compare(self, part: FixedPart) -> None:
        """Keep the messages that have the next part at their last place."""
        self._keep(self._places[-1] + part.width <= self.ends)
        head = _heads(self.words.bytes, self._places[-1], part.text.size)
        if part.width:
            head ^= part.text
            other = head & part.fixed
            if other.any():
                same: Mask = np.logical_not(other.any(axis=1))
                head = head[same]
                self._keep(same)
        self._heads.append(head)
        for size in part.sizes:
            number = self._number(size.part, size.at, size.kind)
            begin = self._places[size.part] + (size.at + np.dtype(size.kind).itemsize)
            self._keep(number == self._places[-1] + size.end - begin)

    def _keep(self, mask: Mask) -> None:
        if not mask.all():
            self.rows, self.starts, self.ends = self.rows[mask], self.starts[mask], self.ends[mask]
            self._places = [place[mask] for place in self._places]
            self._heads = [head[mask] for head in self._heads]

    def _number(self, part: int, at: int, kind: str) -> NDArray[np.int64]:
        head = self._heads[part]
        if not len(head):
            return np.zeros(0, np.int64)
        numbers: NDArray[np.int64] = np.ndarray((len(head),), kind, head, at, head.strides[:1]).astype(np.int64)
        return numbers

    @property
    def bare_starts(self) -> Positions:
        """The first byte of each message after its header and delivery annotations."""
        part, at = self.shape.bare
        return self._places[part] + at

    def content(self, slot: Slot) -> tuple[Positions, Positions]:
        """Return where a value of variable length begins and ends, the end exclusive."""
        return self._places[slot.part] + self.shape.fixed_parts[slot.part].width, self._places[slot.part + 1]

    def constructor(self, slot: Slot) -> Positions:
        """Return where the format code of any value is."""
        return self._places[slot.part] + (slot.at - 1)

    def integers(self, slot: Slot) -> NDArray[np.int64]:
        """Return integers or timestamps; an ulong of 2**63 and more has its bits in an int64."""
        kind = INTEGERS[slot.code]
        return self._number(slot.part, slot.at, kind) if kind else np.zeros(self.rows.size, np.int64)


def _heads(memory: NDArray[np.uint8], at: Positions, words: int) -> Octets:
    """Return some words from each place on, shape (n, words), with any bytes for those after the end of the memory."""
    size = words * WORD
    if not size or not at.size:
        return np.zeros((at.size, words), np.uint64)
    last = memory.size - size
    if int(at.max()) <= last:
        found: Octets = loads(memory, f"V{size}")[at].view(np.uint64).reshape(-1, words)
        return found
    heads = np.empty((at.size, words), np.uint64)
    near, first = at > last, max(0, last)
    heads[near] = _heads(np.concatenate((memory[first:], np.zeros(size, np.uint8))), at[near] - first, words)
    heads[~near] = _heads(memory, at[~near], words)
    return heads


class Sorted(NamedTuple):
    """The messages of a block by their shapes.

    Args:
        parts: those of one shape each.
        rest: the numbers of all others, rising.
    """

    parts: list[ShapedRows]
    rest: Positions


def by_shape(block: MessageBlock, last: int = FOOTER, places: Places = EVENT_STREAMS.places) -> Sorted:
    """Sort the messages of a block by their shapes.

    Args:
        block: the messages; where a range is outside the buffer, no message has a shape.
        last: the code of the last section to look at, which all messages with a shape have; that of the footer for all.
        places: the annotations that become columns.
    """
    starts, ends = np.asarray(block.starts, np.int64), np.asarray(block.ends, np.int64)
    left, parts = np.arange(starts.size), list[ShapedRows]()
    if left.size <= FEW or not _inside(block, starts, ends):
        return Sorted(parts, left)
    words = Words(np.frombuffer(block.buffer, np.uint8))
    memory = words.bytes.data
    alone: list[Positions] = []
    for _ in range(_MOST_SHAPES):
        if left.size <= FEW or len(alone) == _MOST_MISSES:
            break
        shape = _shape_like(memory[int(starts[left[0]]) : int(ends[left[0]])], last, places)
        if shape is not None:
            every = left.size == starts.size
            found = ShapedRows(shape, words, left, *((starts, ends) if every else (starts[left], ends[left])))
            if found.rows.size == left.size:
                return Sorted([*parts, found], _union(alone))
            if found.rows.size >= _FEWEST_ALIKE:
                parts.append(found)
                other = np.ones(starts.size, np.bool_)
                other[found.rows] = False
                left = left[other[left]]
                continue
        alone.append(left[:1])
        left = left[1:]
    return Sorted(parts, _union([*alone, left]))


def _union(rows: list[Positions]) -> Positions:
    return np.sort(np.concatenate([np.zeros(0, np.int64), *rows]))


def _inside(block: MessageBlock, starts: Positions, ends: Positions) -> bool:
    size = min(len(block.buffer), MAX_BLOCK_BYTES)
    return ends.size == starts.size and int(starts.min()) >= 0 and bool(((starts <= ends) & (ends <= size)).all())


def _shape_like(raw: memoryview, last: int, places: Places) -> Shape | None:
    """Return the shape of a message: one of the latest ones, or a new one, which is now the latest."""
    global _known
    for shape in _known:
        if shape.last == last and shape.places is places and shape.fits(raw):
            break
    else:
        new = shape_of(raw, last, places)
        if new is None:
            return None
        shape = new
    if not _known or _known[0] is not shape:
        _known = (shape, *(other for other in _known if other is not shape))[:_MOST_KNOWN]
    return shape
