"""Check many JSON texts at once, with Arrow's JSON reader.

Arrow accepts the JSON of RFC 8259, with two exceptions that this file searches for: NaN and the infinities, and bytes
that are not UTF-8. It refuses some texts that are JSON: numbers beyond a double (``1e999``) and halves of surrogate
pairs. So a text that it accepts is right, but for these exceptions; ``line`` judges the texts that it refuses, one by
one.

``without_long_strings`` makes the texts shorter before they are checked. Reading a string byte by byte is most of what
checking a long event costs, and the bytes that matter in it are few: quotes, backslashes, control characters. Between
two quotes with none of these in between, everything can go::

    {"text":"lorem ipsum … dolor","more":"x"}   ->   {"text":"","more":"x"}

It does not matter whether the two quotes belong to one string. If they do not, they end one string and begin the next,
and become adjacent: ``""`` where no string may follow. The shortened text is then invalid, whether or not the long text
was valid. So a shortened text that is valid comes from a valid text.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from spark_streams.wire.columnar.arrays import binaries, booleans, layout
from spark_streams.wire.columnar.byte_view import Mask, Positions, Words
from spark_streams.wire.columnar.gather import gather

LONG_BYTES: Final = 48
"""A string with more bytes than this is left out."""
_SAMPLE_BYTES: Final = 16 << 10
_CACHED_BYTES: Final = 128 << 10
"""The bytes that are compared at once: as many as a cache holds."""
_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20


def without_long_strings(raw: NDArray[np.uint8]) -> pa.Buffer | None:
    """Return JSON without the content of its long strings, or None when that is not much shorter.

    Args:
        raw: the JSON, in UTF-8, which is not checked.
    """
    if _saved(_long_strings(raw[:_SAMPLE_BYTES])) * 2 < min(raw.size, _SAMPLE_BYTES):
        return None
    after, before = _long_strings(raw)
    start = np.concatenate((np.zeros(1, np.int64), before))
    end = np.append(after, raw.size)
    return gather([Words(raw)], start, end - start, pa.binary()).buffers()[2]


def _saved(strings: tuple[Positions, Positions]) -> int:
    return int((strings[1] - strings[0]).sum())


def _long_strings(raw: NDArray[np.uint8]) -> tuple[Positions, Positions]:
    """Return where the content of each long string begins, and where its closing quote is."""
    found = []
    for first in range(0, raw.size, _CACHED_BYTES):
        part = raw[first : first + _CACHED_BYTES]
        special = part == _QUOTE
        special |= part == _BACKSLASH
        if part.min() < _SPACE:  # takes half the time of a comparison of every byte, and is hardly ever true
            special |= part < _SPACE
        positions = np.flatnonzero(special)
        positions += first
        found.append(positions)
    special_at: Positions = np.concatenate(found) if len(found) > 1 else found[0]
    special_bytes = raw[special_at]
    quote = special_bytes == _QUOTE
    # Every first quote of two begins a string. A quote after a backslash does not count. The rare one after an escaped
    # backslash wrongly does not count either, which only makes the shortened text invalid.
    counted = quote.copy()
    counted[1:] &= (special_bytes[:-1] != _BACKSLASH) | (np.diff(special_at) != 1)
    inside = (np.cumsum(counted) & 1).astype(np.bool_)
    long = np.flatnonzero(inside[:-1] & quote[:-1] & quote[1:] & (np.diff(special_at) > LONG_BYTES))
    return special_at[long] + 1, special_at[long + 1]


CHECKED_BYTES: Final = 4 << 20
"""The bytes that one call checks: enough that a call's 40 µs, and its wait for Arrow's own thread, do not matter."""
LONG_EVENT_BYTES: Final = 256
"""The average size of events in bytes from which on a search for strings that need no check pays."""
ALONE: Final = 16
"""The most texts of a group with an invalid text that is not halved and checked again."""

_NA: Final = int.from_bytes(b"Na", "little")
_IN: Final = int.from_bytes(b"In", "little")
# Build nothing from the texts: the schema has a column that no event has, and everything else is ignored.
_NOTHING: Final = pa.json.ParseOptions(
    explicit_schema=pa.schema([("\x7f", pa.null())]), unexpected_field_behavior="ignore"
)
_TEXT: Final = pa.json.ParseOptions(explicit_schema=pa.schema([("v", pa.string())]), unexpected_field_behavior="error")


def is_utf8(raw: NDArray[np.uint8]) -> bool:
    """Return whether bytes, at most 2**31 - 1, are UTF-8."""
    buffers = [None, pa.py_buffer(np.array([0, raw.size], np.int32)), pa.py_buffer(raw)]
    try:
        pa.Array.from_buffers(pa.string(), 1, buffers).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def beyond_arrow(raw: NDArray[np.uint8], start: Positions, end: Positions, depth: int) -> Mask:
    """Return which texts have faults that Arrow's reader does not see: a zero byte, or perhaps too many levels.

    Args:
        raw: the bytes of all texts.
        start: first byte of each text, inclusive.
        end: byte after each text, exclusive; rising.
        depth: the most levels.
    """
    beyond = np.zeros(start.size, np.bool_)
    if raw.size and not raw.min():
        beyond[np.searchsorted(end, np.flatnonzero(raw == 0), side="right")] = True
    for row in np.flatnonzero(end - start > 2 * depth).tolist():
        # Both opening brackets are 0x7b once this bit is set.
        beyond[row] |= np.count_nonzero((raw[start[row] : end[row]] | 0x20) == 0x7B) > depth
    return beyond


def not_a_number(raw: NDArray[np.uint8]) -> Positions:
    """Return the places where NaN or an infinity may be a number: a position in each, and in some strings as well."""
    # Compare two bytes at once, at even positions and at odd ones.
    even, odd = (raw[first : first + (raw.size - first) // 2 * 2].view("<u2") for first in (0, 1))
    if not any((pairs == letters).any() for pairs in (even, odd) for letters in (_NA, _IN)):
        return np.zeros(0, np.int64)
    maybe = ((raw[:-1] == 0x4E) & (raw[1:] == 0x61)) | ((raw[:-1] == 0x49) & (raw[1:] == 0x6E))
    found: Positions = np.flatnonzero(maybe)
    # A number comes after one of these characters; "Infinity" or "NaN" inside a text seldom does.
    before = raw[np.maximum(found - 1, 0)]
    third = raw[np.minimum(found + 2, raw.size - 1)]
    suspect: Mask = np.isin(before, np.frombuffer(b":,[- \t\r", np.uint8)) & ((third == 0x4E) | (third == 0x66))
    suspects: Positions = found[suspect]
    return suspects


def invalid_objects(texts: pa.BinaryArray) -> Positions:
    """Return which texts may be invalid JSON objects; each is UTF-8, begins with ``{`` and ends with ``}``.

    Arrow reads the texts as one document. An object never contains ``}{``, so each text holds whole objects, and if
    there are as many objects as texts, each text is one object.
    """
    if not len(texts):
        return np.zeros(0, np.int64)
    offsets, content = layout(texts)
    bounds = np.searchsorted(offsets, np.arange(0, content.size, CHECKED_BYTES)).tolist()
    invalid = np.zeros(len(texts), np.bool_)
    for first, end in zip(bounds, [*bounds[1:], len(texts)], strict=True):
        raw = content[offsets[first] : offsets[end]]
        if first == end or _valid_when_shortened(raw, end - first):
            continue
        suspects = not_a_number(raw) + offsets[first]
        invalid[np.searchsorted(offsets, suspects, side="right") - 1] = True
        for row in _invalid_of(pa.py_buffer(raw), offsets[first : end + 1] - offsets[first]):
            invalid[first + row] = True
    found: Positions = np.flatnonzero(invalid)
    return found


def _valid_when_shortened(raw: NDArray[np.uint8], count: int) -> bool:
    """Return whether a document surely has this many objects; False for a document without long strings."""
    if raw.size < count * LONG_EVENT_BYTES:
        return False
    shortened = without_long_strings(raw)
    return (
        shortened is not None
        and not not_a_number(np.frombuffer(shortened, np.uint8)).size
        and _objects(shortened) == count
    )


def _invalid_of(content: pa.Buffer, offsets: Positions) -> list[int]:
    """Return which texts of a document may be no objects, by bisection."""
    found: list[int] = []
    groups = [(0, offsets.size - 1)]
    while groups:
        first, end = groups.pop()
        part = content.slice(int(offsets[first]), int(offsets[end] - offsets[first]))
        if first == end or _objects(part) == end - first:
            continue
        if end - first <= ALONE:
            found.extend(range(first, end))
        else:
            middle = (first + end) // 2
            groups += [(first, middle), (middle, end)]
    return found


def _objects(content: pa.Buffer) -> int:
    """Return the number of objects in a document; -1 if it is invalid."""
    try:
        return int(read_objects(content, _NOTHING).num_rows)
    except pa.ArrowInvalid:
        return -1


def read_objects(content: pa.Buffer, options: pa.json.ParseOptions) -> pa.Table:
    """Read a document's objects into a table, as one block and without threads of Arrow's.

    Raises:
        pyarrow.ArrowInvalid: the document is invalid, or not as ``options`` expect it.
    """
    reading = pa.json.ReadOptions(use_threads=False, block_size=content.size + 1)
    return pa.json.read_json(pa.BufferReader(content), reading, options)


def unescape(texts: pa.BinaryArray) -> tuple[pa.StringArray, Mask]:
    """Return the content of JSON strings.

    Args:
        texts: each begins and ends with a quote.

    Returns:
        The strings, and which of them may be no JSON; those are empty.
    """
    before, after, nothing = binaries([b'{"v":', b"}", b""])
    lines = pc.binary_join_element_wise(before, texts, after, nothing)
    invalid = np.zeros(len(texts), np.bool_)
    invalid[invalid_objects(lines)] = True
    if invalid.any():
        lines = pc.if_else(booleans(invalid), binaries([b'{"v":""}'])[0], lines)
    try:
        strings = read_objects(pa.py_buffer(layout(lines)[1]), _TEXT).column("v").combine_chunks()
        strings.validate(full=True)
    except pa.ArrowInvalid:
        # A text such as `"a","v":"b"` is an object's inside too; what such a block holds is read line by line.
        return binaries([b""] * len(texts)).cast(pa.string()), np.ones(len(texts), np.bool_)
    return strings, invalid
