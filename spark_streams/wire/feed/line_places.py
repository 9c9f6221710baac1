"""Where the events and cursors of a block of lines are, so that who reads the block again need not search for them.

Whoever forwards lines has to find their checkpoints, and sees every event on the way. What it found is a few bytes a
line. The events' contents are still to be checked: an object may be no JSON, base64 may be none.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import fixed_width, layout
from spark_streams.wire.columnar.byte_view import Positions, Words
from spark_streams.wire.columnar.gather import decode_base64, gather
from spark_streams.wire.feed.json_check import invalid_objects, unescape

OBJECT, TEXT, BASE64, ESCAPED, CURSOR = 1, 2, 3, 4, 5
"""What is at a place: a JSON object; a text, without its quotes; a text that is base64; a string with its quotes, of
which something is escaped; a cursor."""
_HEADER: Final = struct.Struct("<II?")


class LinePlaces(NamedTuple):
    """The places of a block's events and cursors, one of either in a line, in order; positions are in the block.

    Args:
        kind: what is there.
        start: its first byte.
        length: its number of bytes.
        ends: for each cursor, the position directly after its line.
        key_start: first byte of the line's key, -1 where it has none; None when no line has one.
        key_length: its number of bytes.
    """

    kind: NDArray[np.uint8]
    start: Positions
    length: Positions
    ends: Positions
    key_start: Positions | None
    key_length: Positions | None

    def between(self, first: int, stop: int) -> LinePlaces:
        """Return the places of the lines from one byte of the block to another, of a block that begins there."""
        rows = slice(*np.searchsorted(self.start, (first, stop)).tolist())
        before = int(np.count_nonzero(self.kind[: rows.start] == CURSOR))
        kind = self.kind[rows]
        ends = self.ends[before : before + int(np.count_nonzero(kind == CURSOR))] - first
        if self.key_start is None or self.key_length is None:
            return LinePlaces(kind, self.start[rows] - first, self.length[rows], ends, None, None)
        keys = self.key_start[rows]
        keys = np.where(keys < 0, keys, keys - first)
        return LinePlaces(kind, self.start[rows] - first, self.length[rows], ends, keys, self.key_length[rows])

    def to_bytes(self) -> bytes:
        """Return the places as bytes: nine of each line, and eight more where lines have keys."""
        named = self.key_start is not None
        numbers = [self.start, self.length, self.ends, *([self.key_start, self.key_length] if named else [])]
        packed = (np.asarray(column).astype("<i4").tobytes() for column in numbers)
        return b"".join((_HEADER.pack(self.kind.size, self.ends.size, named), self.kind.tobytes(), *packed))

    @classmethod
    def from_bytes(cls, stored: bytes | memoryview) -> LinePlaces:
        """Return the places that ``to_bytes`` has written; the caller makes sure that these are the bytes."""
        lines, cursors, named = _HEADER.unpack_from(stored)
        at = _HEADER.size + lines
        columns: list[Positions] = []
        for count in (lines, lines, cursors, *([lines, lines] if named else [])):
            columns.append(np.frombuffer(stored, "<i4", count, at).astype(np.int64))
            at += 4 * count
        kind = np.frombuffer(stored, np.uint8, lines, _HEADER.size)
        return cls(kind, columns[0], columns[1], columns[2], *(columns[3:] if named else (None, None)))

    # --- what is there

    def values(self, raw: NDArray[np.uint8]) -> pa.BinaryArray | None:
        """Return the events; None where one is not what it looked like."""
        rows = np.flatnonzero(self.kind != CURSOR)
        kind, start, length = self.kind[rows], self.start[rows], self.length[rows]
        sources = [Words(raw)]
        counts = np.bincount(kind, minlength=CURSOR)
        if counts[TEXT] == rows.size:
            return gather(sources, start, length, pa.binary())
        if counts[OBJECT] == rows.size:
            objects = gather(sources, start, length, pa.binary())
            return None if invalid_objects(objects).size else objects
        source = np.zeros(rows.size, np.int64)
        for each in (OBJECT, ESCAPED, BASE64):
            some = np.flatnonzero(kind == each)
            if not some.size:
                continue
            texts = gather(sources, start[some], length[some], pa.binary())
            if each == OBJECT:
                if invalid_objects(texts).size:
                    return None
                continue
            offsets, content = layout(texts)
            if each == ESCAPED:
                strings, invalid = unescape(texts)
                offsets, content = layout(strings)
                start[some], length[some] = offsets[:-1], np.diff(offsets)
            else:
                content, length[some], invalid = decode_base64(content, offsets)
                start[some] = offsets[:-1] // 4 * 3
            if invalid.any():
                return None
            source[some] = len(sources)
            sources.append(Words(content))
        return gather(sources, start, length, pa.binary(), source=source)

    def cursors(self, raw: NDArray[np.uint8]) -> tuple[pa.StringArray, Positions]:
        """Return the cursors, and for each the number of events before it."""
        rows = np.flatnonzero(self.kind == CURSOR)
        found = gather([Words(raw)], self.start[rows], self.length[rows], pa.string())
        return found, rows - np.arange(rows.size)

    def keys(self, raw: NDArray[np.uint8]) -> pa.StringArray | None:
        """Return every event's key, null where it has none; None when no event has one."""
        if self.key_start is None or self.key_length is None:
            return None
        events = self.kind != CURSOR
        start, length = self.key_start[events], self.key_length[events]
        named = start >= 0
        if not named.any():
            return None
        present = gather([Words(raw)], start[named], length[named], pa.string())
        return present if named.all() else present.take(fixed_width(np.cumsum(named) - 1, pa.int64(), named))
