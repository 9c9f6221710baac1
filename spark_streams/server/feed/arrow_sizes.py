"""Computes the decompressed size of an Arrow stream before anything is decompressed.

::

    stream       = message*
    message      = metadata (a flatbuffer: Message) body
    Message      header: Schema, RecordBatch, or DictionaryBatch, whose field ``data`` is a RecordBatch
    RecordBatch  length  nodes  buffers: offset(i64) length(i64) each  compression
    buffer       with compression: plain bytes(i64, -1 for one that is not compressed) content

A few kilobytes of zstd become gigabytes, and Arrow allocates the length that a buffer states; so a publisher could use
up the door's memory.

Spec: Arrow columnar format, "Serialization and Interprocess Communication"; Message.fbs; FlatBuffers' binary format.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import pyarrow as pa

_HEADER: Final = 2
"""The number of this field in the table Message; the constants below are field numbers too."""
_DICTIONARY_DATA: Final = 1
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
_PLAIN_BYTES: Final = struct.Struct("<q")


def inflated_bytes(body: bytes) -> int:
    """Return the decompressed size of the compressed buffers, by their own lengths; 0 when none is compressed.

    Raises:
        pa.ArrowException, OSError: the body is no Arrow stream.
        struct.error, ValueError: its metadata point outside their buffer.
    """
    total = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type in ("record batch", "dictionary"):
            metadata = memoryview(message.metadata)
            batch = _followed(metadata, struct.unpack_from("<I", metadata)[0], _HEADER)
            if message.type == "dictionary":
                batch = _followed(metadata, batch, _DICTIONARY_DATA)
            if _followed(metadata, batch, _COMPRESSION) is not None:
                total += _plain(metadata, _followed(metadata, batch, _BUFFERS), memoryview(message.body))
    return total


def _followed(metadata: memoryview, table: int | None, number: int) -> int | None:
    """Return the position that a field of a table points to; None when the table or the field is missing."""
    if table is None:
        return None
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    if vtable < 0:
        raise ValueError("a table before its buffer")
    if 4 + 2 * number + 2 > struct.unpack_from("<H", metadata, vtable)[0]:
        return None
    offset = int(struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0])
    return table + offset + int(struct.unpack_from("<I", metadata, table + offset)[0]) if offset else None


def _plain(metadata: memoryview, buffers: int | None, content: memoryview) -> int:
    """Return the sum of the lengths that the buffers of a batch state; ``buffers`` is the position of their list."""
    if buffers is None:
        return 0
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for at, length in np.frombuffer(metadata, "<i8", 2 * count, buffers + 4).reshape(count, 2).tolist():
        if length >= _PLAIN_BYTES.size:
            if at < 0:
                raise ValueError("a buffer before its body")
            total += max(0, _PLAIN_BYTES.unpack_from(content, at)[0])
    return total
