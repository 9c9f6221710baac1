r"""Read the lines of a response (NDJSON) in columns: events, checkpoints, and the events that a checkpoint covers.

::

    {"event": {…}}   {"event": "text"}   {"cursor": "…"}        v2a; v2b says "data"
    {"partition": 0, "data": {…}}   {"partition": 0, "cursor": "…"}   v1

Lines end with byte ``\n`` alone (C-17). A response's bytes are cut into blocks of whole lines as they arrive. A
block of strings alone, in the forms that our door writes, is cut into columns as it is. msgspec reads other blocks, in
one call for all lines. It checks them by RFC 8259, but for UTF-8 and depth, which are checked here.
``line`` has the rules of a line: it reads the lines that msgspec refuses or that are unusual, and words their errors.

Spec: feedapi-spec SPEC.md, "Response"; docs/specifications.md, C-05 to C-08, C-17, C-21.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.columnar.arrays import booleans, layout, strings
from spark_streams.wire.columnar.byte_view import Mask, Positions, Words
from spark_streams.wire.columnar.gather import gather
from spark_streams.wire.feed.json_texts import BACKSLASH, CLOSE, NOTHING, NULL, OPEN, QUOTE, JsonTexts
from spark_streams.wire.feed.line import BASE64, Dialect, read_line
from spark_streams.wire.feed.strict_json import MAX_DEPTH, REFUSALS, is_utf8, perhaps_deeper

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


_NEWLINE, _RETURN, _SPACE = b"\n\r "
_ENCODED: Final = b'","encoding":"base64"}'


@dataclass(frozen=True)
class Lines:
    """The content of a block of lines.

    Args:
        values: the events in order: the exact JSON text of an object, the UTF-8 of a string, the bytes of a string
            that is marked as base64, null for null.
        cursors: the checkpoints in order.
        covered: for each checkpoint, the number of this block's events before it.
        ends: for each checkpoint, the byte position in the block directly after its line, the newline included.
        keys: each event's member ``key``, or null.

    Shape: values binary; cursors, keys string.
    """

    values: pa.BinaryArray
    cursors: pa.StringArray
    covered: Positions
    ends: Positions
    keys: pa.StringArray

    @property
    def count(self) -> int:
        """The number of events."""
        return len(self.values)

    def events(self, start: int, stop: int) -> tuple[pa.BinaryArray, pa.StringArray]:
        """Return values and keys from number ``start``, inclusive, to ``stop``, exclusive."""
        return self.values.slice(start, stop - start), self.keys.slice(start, stop - start)


def parse_lines(
    block: bytes | bytearray | memoryview | pa.Buffer, dialect: Dialect, partition: int | None = None, *, first: int = 1
) -> Lines:
    """Read a block of whole lines.

    Args:
        block: the bytes; the last line's newline may be missing.
        dialect: the version of the response.
        partition: v1: the requested partition; lines of others are skipped. None accepts all.
        first: the number of the block's first line, for errors.

    Raises:
        RemoteProtocolError: a line is malformed; the message names it and shows its beginning.
    """
    raw = np.frombuffer(block, np.uint8)
    newlines = np.flatnonzero(raw == _NEWLINE)
    ends = newlines if newlines.size and newlines[-1] == raw.size - 1 else np.append(newlines, raw.size)
    starts, next_line = np.append(0, ends[:-1] + 1), np.minimum(ends + 1, raw.size)
    if raw.size:
        ends = np.maximum(ends - (raw[ends - 1] == _RETURN), starts)
    if (found := _strings(raw, starts, ends, next_line, dialect, partition)) is not None:
        return found
    members, singly = _decoded(raw, starts, ends, dialect)
    cursors: list[str | None] = [line.cursor for line in members]
    events = JsonTexts.of([line.event for line in members])
    keys = JsonTexts.of([line.key for line in members])
    checkpoints = [row for row, cursor in enumerate(cursors) if cursor is not None]
    if dialect is Dialect.PUBLISHED or not np.delete(events.kinds, checkpoints).all():
        singly |= [bool(line.other) and (bool(line.event) or line.cursor is not None) for line in members]
        events = JsonTexts.of([line.event or line.other for line in members])
    events.kinds[checkpoints] *= events.kinds[checkpoints] != NULL  # beside a cursor it is no event
    singly |= ~(np.isin(events.kinds, (0, OPEN, QUOTE, NULL)) & np.isin(keys.kinds, (0, QUOTE, NULL)))
    if dialect is Dialect.PUBLISHED:
        singly |= events.kinds == 0
    if dialect is Dialect.V1:
        wanted = msgspec.Raw(str(partition).encode())
        singly |= [line.partition != wanted for line in members]
    encoded = np.array([line.encoding == BASE64 for line in members], np.bool_) & ~singly & (events.kinds == QUOTE)
    if encoded.any():
        chosen = np.flatnonzero(encoded)
        if (decoded := _from_base64(events.taken(chosen, pa.binary()))) is None:
            singly |= encoded
        else:
            events.known = dict(zip(chosen.tolist(), decoded.to_pylist(), strict=True))
    for row in np.flatnonzero(singly).tolist():
        line = read_line(raw[starts[row] : ends[row]].data, row + first, dialect, partition)
        cursors[row] = None if line is None else line.cursor
        events.kinds[row] = line is not None and line.is_event
        events.known[row] = None if line is None else line.event
        keys.known[row] = None if line is None or line.key is None else line.key.encode()
    if singly.any():
        checkpoints = [row for row, cursor in enumerate(cursors) if cursor is not None]
    rows = np.flatnonzero(events.kinds)
    return Lines(
        events.taken(rows, pa.binary()),
        strings([cursors[row] for row in checkpoints]),
        np.cumsum(events.kinds != 0)[checkpoints],
        next_line[checkpoints],
        keys.taken(rows, pa.string()),
    )


def _strings(
    raw: NDArray[np.uint8], starts: Positions, ends: Positions, next_line: Positions, dialect: Dialect, partition: Any
) -> Lines | None:
    """Return the content of lines of strings and cursors alone, as our door writes them; None for other lines.

    They have no escapes, and their quotes tell their parts: a line has four, four more with a key before the event, and
    four more with an encoding after it; in v1 two more.
    """
    head = f'{{"partition":{partition},' if dialect is Dialect.V1 else "{"
    event, key, cursor = (f'{head}"{name}":"'.encode() for name in (dialect.event_key, "key", "cursor"))
    after_key = f'","{dialect.event_key}":"'.encode()
    if raw.size < len(_ENCODED) or (ends - starts < len(cursor) + 2).any():
        return None
    words = Words(raw)
    covers, keyed = words.holds(starts, cursor), words.holds(starts, key)
    encoded = words.holds(np.maximum(ends - len(_ENCODED), 0), _ENCODED)
    if not ((covers | keyed | words.holds(starts, event)) & words.holds(ends - 2, b'"}')).all():
        return None
    quote, last = raw == QUOTE, np.cumsum(event.count(b'"') + 1 + 4 * keyed + 4 * encoded) - 1
    if np.count_nonzero(quote) != last[-1] + 1 or (covers & (encoded | (dialect is Dialect.PUBLISHED))).any():
        return None
    if np.count_nonzero(raw < _SPACE) != (next_line - ends).sum() or (raw == BACKSLASH).any() or not is_utf8(raw):
        return None
    begins, key_begins = starts + np.where(covers, len(cursor), len(event)), starts + len(key)
    stops, key_stops = ends - np.where(encoded, len(_ENCODED), 2), key_begins
    if keyed.any():
        quotes = np.flatnonzero(quote)
        if (quotes[last] != ends - 2).any():  # a line has more quotes than its form, another one fewer
            return None
        key_stops = np.where(keyed, quotes[last - 4 * encoded - 4], key_begins)
        begins = np.where(keyed, key_stops + len(after_key), begins)
    if (begins > stops).any() or not words.holds(key_stops[keyed], after_key).all():
        return None
    texts, key_sizes = ~covers, key_stops - key_begins
    keys = pa.nulls(np.count_nonzero(texts), pa.string())
    if keyed.any():
        keys = gather(words, key_begins[texts], key_sizes[texts], pa.string(), valid=keyed[texts])
    sizes = stops - begins
    cursors = gather(words, begins[covers], sizes[covers], pa.string())
    values = gather(words, begins[texts], sizes[texts], pa.binary())
    if encoded.any():
        chosen = booleans(encoded[texts])
        if (decoded := _from_base64(values.filter(chosen))) is None:
            return None
        values = pc.replace_with_mask(values, chosen, decoded)
    return Lines(values, cursors, np.cumsum(texts, dtype=np.int64)[covers], next_line[covers], keys)


def _from_base64(texts: pa.BinaryArray) -> pa.BinaryArray | None:
    """Return the bytes that texts in base64, none null, stand for; None if one of them is no base64."""
    bounds, content = layout(texts)
    ends, sizes = bounds[1:], np.diff(bounds)
    padding = np.append(content == ord("="), [False, False])  # an empty text at the start finds no padding before it
    padded = np.where(sizes > 0, padding[ends - 1] + (padding[ends - 1] & padding[ends - 2]).astype(np.int64), 0)
    if (bounds % 4).any() or padded.sum() != np.count_nonzero(padding):
        return None
    try:
        decoded = base64.b64decode(np.where(padding[:-2], np.uint8(ord("A")), content).tobytes(), validate=True)
    except ValueError:
        return None
    return gather(Words(np.frombuffer(decoded, np.uint8)), bounds[:-1] // 4 * 3, sizes // 4 * 3 - padded, pa.binary())


@lru_cache
def _decoder(dialect: Dialect) -> tuple[msgspec.json.Decoder[Any], Any]:
    """Return what reads the members that ``line`` looks at, and a line without any."""
    published = dialect is Dialect.PUBLISHED
    raws = ("event", "other", "key", "partition")[: 4 if dialect is Dialect.V1 else 3]
    encoding: Any = Literal["base64"] if published else str
    line = msgspec.defstruct(
        "Line",
        [
            *((name, msgspec.Raw, NOTHING) for name in raws),
            ("encoding", encoding | None, None),
            *([] if published else [("cursor", str | None, None)]),
        ],
        rename={"event": dialect.event_key, "other": dialect.other_event_key},
        namespace={"cursor": None} if published else None,
        forbid_unknown_fields=published,
        gc=False,
    )
    return msgspec.json.Decoder(line), line()


def _decoded(raw: NDArray[np.uint8], starts: Positions, ends: Positions, dialect: Dialect) -> tuple[list[Any], Mask]:
    """Return each line's members, and which lines are left to ``read_line``: those have none."""
    decoder, nothing = _decoder(dialect)
    singly = perhaps_deeper(raw, starts, ends, MAX_DEPTH) | (not is_utf8(raw))
    # No JSON has "}" before "{": each of these lines is an object, if there are as many objects as lines.
    whole = raw.size > 0 and (raw[np.minimum(starts, raw.size - 1)] == OPEN) & (raw[ends - 1] == CLOSE)
    if np.all(whole) and not singly.any():
        with suppress(*REFUSALS):
            lines = decoder.decode_lines(raw.data)
            if len(lines) == starts.size:
                return lines, singly
    lines = [nothing] * starts.size
    for row in np.flatnonzero(~singly).tolist():
        try:
            lines[row] = decoder.decode(raw[starts[row] : ends[row]].data)
        except REFUSALS:
            singly[row] = True
    return lines, singly
