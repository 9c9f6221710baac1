r"""Read the lines of a response (NDJSON) in columns: events, checkpoints, and the events that a checkpoint covers.

::

    {"event": {…}}   {"event": "text"}   {"cursor": "…"}        v2a; v2b says "data"
    {"partition": 0, "data": {…}}   {"partition": 0, "cursor": "…"}   v1

``line`` has the rules of a line. Lines end with byte ``\n`` alone (C-17). A response's bytes are cut into blocks of
whole lines as they arrive, and each block is read at once.

Spec: feedapi-spec SPEC.md, "Response"; docs/specifications.md, C-05 to C-08, C-17, C-21.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.arrays import binaries, strings
from spark_streams.wire.feed.dialect import Dialect
from spark_streams.wire.feed.line import read_line
from spark_streams.wire.feed.line_places import LinePlaces
from spark_streams.wire.feed.lines_bulk import BulkLines

MAX_LINE_BYTES: Final = 64 << 20
"""The default maximum length of a line; the Go library stops at 64 KiB, without an error."""
_MARK: Final = b"\xef\xbb\xbf"


class LineBlocks:
    """Cuts a response into blocks of whole lines, as its bytes arrive.

    Args:
        max_line_bytes: the longest line that is accepted, without its newline.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._pending = 0
        self._started = False

    def feed(self, received: bytes) -> list[bytes]:
        """Add the next bytes; return the whole lines that have arrived, as no block or one block, never cut.

        A byte order mark at the very start of the response is skipped (F-24).

        Raises:
            RemoteProtocolError: a line is longer than ``max_line_bytes``.
        """
        cut = received.rfind(b"\n") + 1
        if not cut:
            self._keep(received)
            return []
        block = b"".join((*self._pieces, received[:cut]))
        self._pieces, self._pending = [], 0
        if not self._started:
            self._started = True
            block = block.removeprefix(_MARK)
        self._measure(block)
        self._keep(received[cut:])
        return [block] if block else []

    @property
    def tail(self) -> bytes:
        """The bytes after the last newline: an unfinished line, when the response is over."""
        tail = b"".join(self._pieces)
        return tail if self._started else tail.removeprefix(_MARK)

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._pending += len(piece)
            if self._pending > self.max_line_bytes:
                self._too_long(self._pending)

    def _measure(self, block: bytes) -> None:
        if len(block) - 1 <= self.max_line_bytes:
            return
        newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        longest = int(np.diff(newlines, prepend=-1).max()) - 1
        if longest > self.max_line_bytes:
            self._too_long(longest)

    def _too_long(self, length: int) -> None:
        raise RemoteProtocolError(
            f"a line of {length} bytes or more: expected at most {self.max_line_bytes} (option 'maxLineBytes')"
        )


FEW_LINES: Final = 64
FEW_BYTES: Final = 64 << 10
"""A block with fewer lines and fewer bytes than the limits is read line by line, which is faster there."""
_NEWLINE: Final = 0x0A


@dataclass(frozen=True)
class Lines:
    """The content of a block of lines.

    Args:
        values: the events in order: the exact JSON text of an object, the UTF-8 of a string, the bytes of a string
            that is marked as base64, null for null; None when they were not requested.
        count: the number of events.
        cursors: the checkpoints in order.
        covered: for each checkpoint, the number of this block's events before it.
        ends: for each checkpoint, the byte position in the block directly after its line, the newline included.
        keys: each event's member ``key``, or null; None when no event has one, or events were not requested.
        places: where events and cursors are in the block, for ``lines_at``; None unless lines were read without a check
            of their events' contents, and where some are not in place.

    Shape: values binary; cursors, keys string.
    """

    values: pa.BinaryArray | None
    count: int
    cursors: pa.StringArray
    covered: NDArray[np.int64]
    ends: NDArray[np.int64]
    keys: pa.StringArray | None
    places: LinePlaces | None = None


def parse_lines(
    block: bytes | bytearray | memoryview | pa.Buffer,
    dialect: Dialect,
    partition: int | None = None,
    *,
    values: bool = True,
    checked: bool = True,
    first: int = 1,
) -> Lines:
    """Read a block of whole lines.

    Args:
        block: the bytes; the last line's newline may be missing.
        dialect: the version of the response.
        partition: v1: the requested partition; lines of others are skipped. None accepts all.
        values: whether to return the events themselves.
        checked: whether events must be valid JSON, or base64. Without it only their line must look like an event's, for
            callers that forward the lines to a reader that checks them; ``values`` must be False.
        first: the number of the block's first line, for errors.

    Raises:
        RemoteProtocolError: a line is malformed; the message names it and shows its beginning.
    """
    raw = np.frombuffer(block, np.uint8)
    if raw.size < FEW_BYTES and np.count_nonzero(raw == _NEWLINE) < FEW_LINES:
        return parse_singly(raw, dialect, partition, values=values, first=first)
    return parse_bulk(raw, dialect, partition, values=values, checked=checked or values, first=first)


def parse_singly(
    raw: NDArray[np.uint8], dialect: Dialect, partition: int | None, *, values: bool, first: int = 1
) -> Lines:
    """Do what ``parse_lines`` does line by line."""
    block = raw.tobytes()
    events: list[bytes | None] = []
    keys: list[str | None] = []
    cursors: list[str] = []
    covered: list[int] = []
    ends: list[int] = []
    end = 0
    for number, line in enumerate(block.split(b"\n"), first):
        end = min(end + len(line) + 1, len(block))
        read = read_line(line.removesuffix(b"\r"), number, dialect, partition)
        if read is None:
            continue
        if read.is_event:
            events.append(read.event)
            keys.append(read.key)
        if read.cursor is not None:
            cursors.append(read.cursor)
            covered.append(len(events))
            ends.append(end)
    return Lines(
        binaries(events) if values else None,
        len(events),
        strings(cursors),
        np.array(covered, np.int64),
        np.array(ends, np.int64),
        strings(keys) if values and any(key is not None for key in keys) else None,
    )


def parse_bulk(
    raw: NDArray[np.uint8],
    dialect: Dialect,
    partition: int | None,
    *,
    values: bool,
    checked: bool = True,
    first: int = 1,
) -> Lines:
    """Do what ``parse_lines`` does for all lines of one form together."""
    lines = BulkLines(raw, dialect, partition, first)
    lines.recognise()
    lines.check(contents=checked)
    lines.read_rest()
    is_event = lines.event.source >= 0
    checkpoints, cursors = lines.cursors()
    return Lines(
        lines.events() if values else None,
        int(np.count_nonzero(is_event)),
        cursors,
        np.cumsum(is_event, dtype=np.int64)[checkpoints],
        lines.next_line[checkpoints],
        lines.keys() if values else None,
        None if checked else lines.places(),
    )


def lines_at(block: bytes | memoryview, places: LinePlaces) -> Lines | None:
    """Return what ``parse_lines`` returns of a block whose events and cursors are known, without another search.

    Args:
        block: the bytes.
        places: where they are, as ``parse_lines`` has found them in these bytes, or a part of these places.

    Returns:
        None where an event is not what it looked like: ``parse_lines`` raises the error then.
    """
    raw = np.frombuffer(block, np.uint8)
    values = places.values(raw)
    if values is None:
        return None
    cursors, covered = places.cursors(raw)
    return Lines(values, len(values), cursors, covered, places.ends, places.keys(raw))
