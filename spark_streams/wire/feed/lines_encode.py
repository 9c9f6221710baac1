"""Encode columns of events as lines (NDJSON).

Each event's bytes decide its form:

* null, as null;
* a JSON object, byte for byte; line breaks in it, which can only be between its parts, become spaces (P-21);
* other UTF-8, as a JSON string;
* anything else, as a string of base64, next to ``"encoding":"base64"``. The specification has strings for "e.g. a
  binary representation" and does not define how; a reader that does not know the member reads the base64 as text.

Spec: feedapi-spec SPEC.md, "Event command"; docs/specifications.md, P-21, P-25, F-21.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.columnar.arrays import layout
from spark_streams.wire.columnar.byte_view import Mask
from spark_streams.wire.feed.json_encode import quoted
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.strict_json import MAX_DEPTH, REFUSALS, depth_of, is_utf8, load_json, perhaps_deeper

_BINARY: Final = pa.binary()
_SPACES: Final = b" \t\r\n"
_JSON: Final = msgspec.json.Decoder(msgspec.Raw)


def encode_lines(
    values: pa.BinaryArray, dialect: Dialect, partition: int = 0, *, keys: pa.StringArray | None = None
) -> bytes:
    """Write events.

    Args:
        values: the events' bytes, null for JSON's null.
        dialect: the version of the lines.
        partition: the partition in lines of v1.
        keys: each event's member ``key``, null for none; this project's extension.

    Raises:
        LocalProtocolError: the number of keys differs from that of events.
    """
    if keys is not None and len(keys) != len(values):
        raise LocalProtocolError("every event needs its key or null")
    head = f'{{"partition":{partition},' if dialect is Dialect.V1 else "{"
    lines = _events(values.cast(_BINARY), head, dialect.event_key, keys)
    return layout(lines)[1].tobytes()


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), _BINARY)


def _events(values: pa.BinaryArray, head: str, name: str, keys: pa.StringArray | None) -> pa.BinaryArray:
    """Return the events' lines, newlines included."""
    start: pa.Scalar | pa.BinaryArray = _text(f'{head}"{name}":')
    if keys is not None and keys.null_count < len(keys):
        named = pc.binary_join_element_wise(_text(head + '"key":'), _quoted(keys), _text(f',"{name}":'), b"")
        start = pc.coalesce(named, start)
    end = _text("}\n")
    null = values.is_null() if values.null_count else None
    objects, events = _objects(values if null is None else values.fill_null(b""))
    if not objects.all():
        strings, as_base64 = _strings(pc.if_else(pa.array(objects), pa.scalar(None, _BINARY), values))
        events = pc.coalesce(strings, events)
        if as_base64.any():
            end = pc.if_else(pa.array(as_base64), _text(',"encoding":"base64"}\n'), end)
    if null is not None:
        events = pc.if_else(null, _text("null"), events)
    return pc.binary_join_element_wise(start, events, end, b"")


def _objects(values: pa.BinaryArray) -> tuple[Mask, pa.BinaryArray]:
    """Return which values are JSON objects, and the values in the form for objects."""
    offsets, content = layout(values)
    start, end = offsets[:-1], offsets[1:]
    some = end > start
    first = np.zeros(start.size, np.uint8)
    last = first.copy()
    first[some], last[some] = content[start[some]], content[end[some] - 1]
    found: Mask = (first == 0x7B) & (last == 0x7D)
    # Check one by one the values that the check of all together would not see, or not accept.
    singly: Mask = np.isin(first, np.frombuffer(b"{ \t\r\n", np.uint8)) & ~found
    if not is_utf8(content):
        singly |= found
    else:
        # The line itself is one level.
        singly |= perhaps_deeper(content, start, end, MAX_DEPTH - 1)
        check = _JSON.decode
        for row, text in enumerate(values.to_pylist()) if found.any() else ():
            try:
                found[row] and check(text)
            except REFUSALS:
                singly[row] = True
    changed: dict[int, bytes] = {}
    for row in np.flatnonzero(singly).tolist():
        text = content[start[row] : end[row]].tobytes()
        found[row] = _is_object(text)
        if found[row] and text != (stripped := text.strip(_SPACES)):
            changed[row] = stripped
    broken = (content == 0x0A) | (content == 0x0D)
    if broken.any():
        # In an object, a raw line break is never inside a string; other values are not taken from this copy.
        content = content.copy()
        content[broken] = 0x20
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(content)]
        values = pa.Array.from_buffers(_BINARY, len(values), buffers)
    if changed:
        replaced = np.zeros(len(values), np.bool_)
        replaced[list(changed)] = True
        texts = [text.replace(b"\n", b" ").replace(b"\r", b" ") for text in changed.values()]
        values = pc.replace_with_mask(values, pa.array(replaced), pa.array(texts, _BINARY))
    return found, values


def _is_object(text: bytes) -> bool:
    if not text.lstrip(_SPACES).startswith(b"{"):
        return False
    try:
        # The line itself is one level.
        return isinstance(load_json(text, "event"), dict) and depth_of(text.decode()) < MAX_DEPTH
    except RemoteProtocolError:
        return False


def _strings(values: pa.BinaryArray) -> tuple[pa.BinaryArray, Mask]:
    """Return values as JSON strings, and which of them are base64; null stays null."""
    try:
        return _quoted(values.cast(pa.string())), np.zeros(len(values), np.bool_)
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    other = np.zeros(len(values), np.bool_)
    for row, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(base64.b64encode(value).decode())
            other[row] = True
    return _quoted(pa.array(texts, pa.string())), other


def _quoted(texts: pa.StringArray) -> pa.BinaryArray:
    """Return texts as JSON strings; null stays null."""
    return quoted(texts).cast(_BINARY)
