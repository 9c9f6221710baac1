"""Events and checkpoints as lines (NDJSON), from columns."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.feed.dialect import Dialect

__all__ = ["encode_lines"]


def encode_lines(
    values: pa.BinaryArray,
    dialect: Dialect,
    partition: int = 0,
    *,
    cursors: Sequence[str] | pa.StringArray = (),
    covered: NDArray[np.int64] | Sequence[int] = (),
    keys: pa.StringArray | None = None,
) -> bytes:
    """Write events and checkpoints.

    Args:
        values: the events' bytes; a null is an error. A JSON object is sent byte for byte, but raw newlines in it
            become spaces; other UTF-8 is sent as a JSON string; other bytes as a base64 string beside
            ``"encoding":"base64"``.
        dialect: the version that is spoken.
        partition: what lines of v1 say.
        cursors: the checkpoints, in order.
        covered: per checkpoint, after how many of the events it goes; rising.
        keys: per event, member ``key``, or null for none; this project's extension.
    """
    texts = values.to_pylist()
    names = keys.to_pylist() if keys is not None else [None] * len(texts)
    checkpoints = list(zip(covered, pa.array(cursors, pa.string()).to_pylist(), strict=True))
    head = b'{"partition":%d,' % partition if dialect is Dialect.V1 else b"{"
    out: list[bytes] = []
    for row, (text, key) in enumerate(zip(texts, names, strict=True)):
        while checkpoints and checkpoints[0][0] <= row:
            out.append(head + b'"cursor":' + json.dumps(checkpoints.pop(0)[1], ensure_ascii=False).encode() + b"}\n")
        if text is None:
            raise LocalProtocolError("an event without value cannot be sent")
        named = b"" if key is None else b'"key":' + json.dumps(key, ensure_ascii=False).encode() + b","
        out.append(head + named + _event(text, dialect) + b"}\n")
    out.extend(head + b'"cursor":' + json.dumps(c, ensure_ascii=False).encode() + b"}\n" for _, c in checkpoints)
    return b"".join(out)


def _event(text: bytes, dialect: Dialect) -> bytes:
    name = b'"%s":' % dialect.event_key.encode()
    try:
        if isinstance(json.loads(text), dict):
            return name + text.strip(b" \t\r\n").replace(b"\n", b" ").replace(b"\r", b" ")
    except (ValueError, RecursionError):
        pass
    try:
        return name + json.dumps(text.decode(), ensure_ascii=False).encode()
    except UnicodeDecodeError:
        return b'"encoding":"base64",' + name + b'"' + base64.b64encode(text) + b'"'
