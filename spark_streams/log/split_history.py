"""What became of the records of a partition whose history was redistributed: a file that outlives the partition.

``DIR/streams/NAME/splits/PARTITION``, big-endian::

    0    first offset   i64    that was retained; the children's offsets begin there too
    8    count          i64    of records
    16   notes length   u32
    20   notes          JSON   name of a note of publishers to its publishers' last sequence numbers
    ..   children       u8 each: which child has the record, an index into the parent's children
    end  crc            u32    CRC-32C of everything before

A child holds its share in the order of the parent. The record number k of it is therefore the child's, and an offset of
the parent becomes an offset of a child by counting how many records before it went there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import CorruptLog
from spark_streams.log.storage.files import write_atomically

__all__ = ["SplitHistory"]

_HEAD: Final = struct.Struct(">qqI")
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, eq=False)
class SplitHistory:
    """One redistributed partition.

    Args:
        first_offset: the first record that was retained.
        children: uint8, for each record from there on the index of the child that has it.
        notes: name of a note of publishers to its publishers' last sequence numbers.
    """

    first_offset: int
    children: NDArray[np.uint8]
    notes: Mapping[str, Mapping[str, int]]

    def translate(self, child: int, offset: int) -> int:
        """Return the next record to read on a child where ``offset`` was the next one to read on the parent.

        An offset whose record retention had removed gives one below the child's first offset. One beyond the parent's
        end is taken for the end.
        """
        if offset < self.first_offset:
            return offset
        return self.first_offset + int(np.count_nonzero(self.children[: offset - self.first_offset] == child))

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all, and force it to the disk."""
        notes = json.dumps(self.notes, separators=(",", ":")).encode()
        content = _HEAD.pack(self.first_offset, len(self.children), len(notes)) + notes + self.children.tobytes()
        write_atomically(path, content + _CRC.pack(google_crc32c.value(content)))

    @classmethod
    def read(cls, path: Path) -> SplitHistory:
        """Read the file.

        Raises:
            CorruptLog: it is missing or fails its check.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise CorruptLog(str(path), 0, "the file is missing") from None
        end = len(content) - _CRC.size
        if end < _HEAD.size or _CRC.unpack_from(content, end)[0] != google_crc32c.value(content[:end]):
            raise CorruptLog(str(path), 0, "the file does not pass its CRC-32C")
        first, count, size = _HEAD.unpack_from(content)
        start = _HEAD.size + size
        if start + count != end:
            raise CorruptLog(str(path), 8, f"it says {count} records and has room for {end - start}")
        notes = json.loads(content[_HEAD.size : start])
        return cls(first, np.frombuffer(content, np.uint8, count, start), notes)
