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

import pyarrow as pa

_HEADER: Final = 2
"""The number of this field in the table Message; the constants below are field numbers too."""
_DICTIONARY_DATA: Final = 1
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
_BUFFER: Final = struct.Struct("<qq")
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
            table = _Table(metadata, struct.unpack_from("<I", metadata)[0]).table(_HEADER)
            if table is not None and message.type == "dictionary":
                table = table.table(_DICTIONARY_DATA)
            if table is not None and table.table(_COMPRESSION) is not None:
                total += _plain(table, memoryview(message.body))
    return total


def _plain(batch: _Table, content: memoryview) -> int:
    total = 0
    for at, length in batch.structs(_BUFFERS, _BUFFER):
        if length >= _PLAIN_BYTES.size:
            if at < 0:
                raise ValueError("a buffer before its body")
            total += max(0, _PLAIN_BYTES.unpack_from(content, at)[0])
    return total


class _Table:
    """A table of a flatbuffer; its vtable has the place of each field, by number."""

    def __init__(self, buffer: memoryview, at: int) -> None:
        self._buffer = buffer
        self._at = at

    def _field(self, number: int) -> int | None:
        vtable = self._at - int(struct.unpack_from("<i", self._buffer, self._at)[0])
        if vtable < 0:
            raise ValueError("a table before its buffer")
        if 4 + 2 * number + 2 > struct.unpack_from("<H", self._buffer, vtable)[0]:
            return None
        offset = int(struct.unpack_from("<H", self._buffer, vtable + 4 + 2 * number)[0])
        return self._at + offset if offset else None

    def _target(self, number: int) -> int | None:
        place = self._field(number)
        return None if place is None else place + int(struct.unpack_from("<I", self._buffer, place)[0])

    def table(self, number: int) -> _Table | None:
        """Return the table that a field points to, None when the field is not there."""
        target = self._target(number)
        return None if target is None else _Table(self._buffer, target)

    def structs(self, number: int, kind: struct.Struct) -> list[tuple[int, int]]:
        """Return a vector of structs; an empty list when the field is not there."""
        target = self._target(number)
        if target is None:
            return []
        (count,) = struct.unpack_from("<I", self._buffer, target)
        if count * kind.size > len(self._buffer):
            raise ValueError("a list that is longer than its buffer")
        return [kind.unpack_from(self._buffer, target + 4 + n * kind.size) for n in range(count)]
