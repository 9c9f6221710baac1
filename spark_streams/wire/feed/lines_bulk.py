"""Read a block's lines together by their forms; lines without a known form are read one by one."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import booleans, fixed_width, layout
from spark_streams.wire.columnar.byte_view import Positions, Words
from spark_streams.wire.columnar.gather import decode_base64, gather
from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.json_check import beyond_arrow, invalid_objects, is_utf8, unescape
from spark_streams.wire.feed.line import read_line
from spark_streams.wire.feed.line_forms import Found, LineForm, forms_of
from spark_streams.wire.feed.line_places import BASE64, CURSOR, ESCAPED, OBJECT, TEXT, LinePlaces
from spark_streams.wire.feed.strict_json import MAX_DEPTH

MAX_FORMS: Final = 16
"""The most forms to search for in a block; lines of further forms are read one by one."""
_NEWLINE: Final = 0x0A
_RETURN: Final = 0x0D
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_FIRST_CHARACTER: Final = 0x20
_NONE: Final = -1


class TextRanges(NamedTuple):
    """The place of a text of each line: its buffer (0 is the block, -1 no text), its start, its number of bytes."""

    source: NDArray[np.int64]
    start: Positions
    length: Positions

    @staticmethod
    def none(lines: int) -> TextRanges:
        """Return the places of lines that have no such text."""
        return TextRanges(np.full(lines, _NONE), np.zeros(lines, np.int64), np.zeros(lines, np.int64))

    def put(self, lines: Positions | int, source: int, start: Positions | int, length: Positions | int) -> None:
        """Set the text of lines."""
        self.source[lines], self.start[lines], self.length[lines] = source, start, length


class BulkLines:
    """The lines of one block during reading: call ``recognise``, ``check``, ``read_rest``, then the rest.

    ``event``, ``cursor`` and ``key`` are the places of each line's texts; ``next_line`` is the start of the next line.

    Args:
        raw: the block, at least eight bytes.
        dialect: the version of the response.
        partition: v1: the requested partition; None accepts all.
        first: the number of the first line, for errors.
    """

    def __init__(self, raw: NDArray[np.uint8], dialect: Dialect, partition: int | None, first: int = 1) -> None:
        self._raw, self._dialect, self._partition, self._first = raw, dialect, partition, first
        newlines = np.flatnonzero(raw == _NEWLINE)
        ends = newlines if newlines.size and newlines[-1] == raw.size - 1 else np.append(newlines, raw.size)
        self.next_line = np.minimum(ends + 1, raw.size)
        self._start = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        returns = (ends > self._start) & (raw[np.maximum(ends - 1, 0)] == _RETURN)
        self._end = ends - returns
        self._line_endings = newlines.size + int(np.count_nonzero(returns))
        self._quotes = 0
        lines = ends.size
        self.event, self.cursor, self.key = TextRanges.none(lines), TextRanges.none(lines), TextRanges.none(lines)
        self._kind = np.zeros(lines, np.uint8)
        self._null = np.zeros(lines, np.bool_)
        self._unwanted = np.zeros(lines, np.bool_)
        self._singly = np.zeros(lines, np.bool_)
        self._sources = [Words(raw)]
        self._objects: pa.BinaryArray | None = None

    def recognise(self) -> None:
        """Find the lines of each form, without a check of their events."""
        if is_utf8(self._raw):
            self._singly = beyond_arrow(self._raw, self._start, self._end, MAX_DEPTH)
        else:
            self._singly[:] = True
        content = self._sources[0]
        left = np.flatnonzero((self._start < self._end) & ~self._singly)
        for _ in range(MAX_FORMS):
            if not left.size:
                return
            first = int(left[0])
            line = self._line(first)
            pending = np.ones(self._start.size, np.bool_)
            for template in forms_of(line, self._dialect, self._partition):
                found = template.find(content, left, self._start[left], self._end[left])
                self._take(template, found)
                pending[found.lines] = False
                left = left[pending[left]]
                if not pending[first]:
                    break
            else:
                self._singly[first] = True
                left = left[1:]
        self._singly[left] = True

    def check(self, *, contents: bool = True) -> None:
        """Check the events that were found; lines whose events fail are left to ``read_rest``.

        Args:
            contents: whether to check what is in objects and in base64, too. Without it events stay as they are in the
                block, for ``places``.
        """
        if contents:
            rows = np.flatnonzero(self._kind == OBJECT)
            found = gather(self._sources, self.event.start[rows], self.event.length[rows], pa.binary())
            invalid = rows[invalid_objects(found)]
            self._singly[invalid] = True
            if not invalid.size:
                self._objects = found
        self._check_texts(np.flatnonzero(self._kind >= TEXT), contents=contents)
        for places in (self.event, self.cursor, self.key):
            places.source[self._unwanted | self._singly] = _NONE

    def read_rest(self) -> None:
        """Read the lines that have no known form, or whose events failed the check.

        Raises:
            RemoteProtocolError: a line is malformed; the error names the first one.
        """
        rest = np.flatnonzero(self._singly)
        if not rest.size:
            return
        extra: list[bytes] = []
        size = 0
        for row in rest.tolist():
            read = read_line(self._line(row), row + self._first, self._dialect, self._partition)
            if read is None:
                continue
            self._null[row] = read.is_event and read.event is None
            event = b"" if self._null[row] else read.event
            for places, text in ((self.event, event), (self.cursor, read.cursor), (self.key, read.key)):
                if text is not None:
                    content = text if isinstance(text, bytes) else text.encode()
                    places.put(row, len(self._sources), size, len(content))
                    extra.append(content)
                    size += len(content)
        self._sources.append(Words(np.frombuffer(b"".join(extra), np.uint8)))

    def _line(self, row: int) -> memoryview:
        """Return a line as a view: Python would hold its lock during a copy, however long the line is."""
        return self._raw[self._start[row] : self._end[row]].data

    def events(self) -> pa.BinaryArray:
        """Return the events."""
        rows = np.flatnonzero(self.event.source >= 0)
        if self._objects is not None and rows.size == len(self._objects) and (self._kind[rows] == OBJECT).all():
            return self._objects
        found = self._gathered(self.event, rows, pa.binary())
        null = self._null[rows]
        return pc.if_else(booleans(null), pa.nulls(1, pa.binary())[0], found) if null.any() else found

    def cursors(self) -> tuple[Positions, pa.StringArray]:
        """Return which lines are checkpoints, and their cursors."""
        rows = np.flatnonzero(self.cursor.source >= 0)
        return rows, self._gathered(self.cursor, rows, pa.string())

    def places(self) -> LinePlaces | None:
        """Return where events and cursors are, after a check without their contents; None if some are not in place."""
        event, cursor, key = self.event.source >= 0, self.cursor.source >= 0, self.key.source >= 0
        if self._singly.any() or (event & cursor).any():
            return None
        rows = np.flatnonzero(event | cursor)
        is_cursor = cursor[rows]
        named = bool(key.any())
        key_start = np.where(key, self.key.start, _NONE)[rows] if named else None
        return LinePlaces(
            np.where(is_cursor, CURSOR, self._kind[rows]).astype(np.uint8),
            np.where(is_cursor, self.cursor.start[rows], self.event.start[rows]),
            np.where(is_cursor, self.cursor.length[rows], self.event.length[rows]),
            self.next_line[rows[is_cursor]],
            key_start,
            self.key.length[rows] if named else None,
        )

    def keys(self) -> pa.StringArray | None:
        """Return every event's key, null where it has none; None when no event has one."""
        events = np.flatnonzero(self.event.source >= 0)
        named = self.key.source[events] >= 0
        if not named.any():
            return None
        present = self._gathered(self.key, events[named], pa.string())
        return present if named.all() else present.take(fixed_width(np.cumsum(named) - 1, pa.int64(), named))

    def _gathered(self, places: TextRanges, rows: Positions, kind: pa.DataType) -> pa.Array:
        source = places.source[rows]
        start, length = places.start[rows], places.length[rows]
        return gather(self._sources, start, length, kind, source=source if source.any() else None)

    def _take(self, template: LineForm, found: Found) -> None:
        """Set the places of the texts of lines of one form."""
        lines = found.lines
        self._quotes += template.quotes * lines.size
        self._unwanted[lines] = not template.wanted
        for places, span in ((self.event, found.event), (self.cursor, found.cursor), (self.key, found.key)):
            if span is not None:
                places.put(lines, 0, span[0], span[1] - span[0])
        if found.event is not None:
            text = self._raw[found.event[0]] == _QUOTE
            self._quotes += 2 * int(np.count_nonzero(text))
            self._kind[lines] = np.where(text, BASE64 if template.base64 else TEXT, OBJECT)

    def _check_texts(self, rows: Positions, *, contents: bool) -> None:
        """Check events that are strings, and find or build their content."""
        if not rows.size:
            return
        base64 = self._kind[rows] == BASE64
        special = np.zeros(rows.size, np.bool_)
        if not self._has_only_plain_texts():
            inside = gather(self._sources, self.event.start[rows] + 1, self.event.length[rows] - 2, pa.binary())
            offsets, content = layout(inside)
            where = np.flatnonzero((content == _QUOTE) | (content == _BACKSLASH) | (content < _FIRST_CHARACTER))
            special[np.searchsorted(offsets[1:], where, side="right")] = True
            self._singly[rows[special & base64]] = True
            self._unescape(rows[special & ~base64], contents=contents)
        plain = rows[~special]
        self.event.start[plain] += 1
        self.event.length[plain] -= 2
        if contents:
            self._decode_base64(rows[~special & base64])

    def _has_only_plain_texts(self) -> bool:
        """Return whether surely no event is a text with a quote, a backslash or a control character inside.

        The block then has as many quotes as its lines' forms, and as many control characters as line endings. To count
        them takes a third of the time that it takes to search each text.
        """
        raw = self._raw
        return (
            not self._singly.any()
            and int(np.count_nonzero(raw == _QUOTE)) == self._quotes
            and int(np.count_nonzero(raw < _FIRST_CHARACTER)) == self._line_endings
            and not (raw == _BACKSLASH).any()
        )

    def _unescape(self, rows: Positions, *, contents: bool) -> None:
        if not rows.size:
            return
        texts = gather(self._sources, self.event.start[rows], self.event.length[rows], pa.binary())
        strings, invalid = unescape(texts)
        self._singly[rows[invalid]] = True
        if not contents:
            self._kind[rows] = ESCAPED
            return
        offsets, content = layout(strings)
        self.event.put(rows, len(self._sources), offsets[:-1], np.diff(offsets))
        self._sources.append(Words(content))

    def _decode_base64(self, rows: Positions) -> None:
        if not rows.size:
            return
        texts = gather(self._sources, self.event.start[rows], self.event.length[rows], pa.binary())
        offsets, content = layout(texts)
        decoded, length, invalid = decode_base64(content, offsets)
        if invalid.any():
            self._singly[rows[invalid]] = True
            self._decode_base64(rows[~invalid])
            return
        self.event.put(rows, len(self._sources), offsets[:-1] // 4 * 3, length)
        self._sources.append(Words(decoded))
