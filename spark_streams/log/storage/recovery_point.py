"""How far the last segment was acknowledged, and how far it was forced to the disk.

A whole file of its own, overwritten in place after each append and before its acknowledgement, big-endian::

    0   segment base offset   i64
    8   acknowledged end      i64   byte position in that segment
    16  synced end            i64   likewise: up to here the bytes were forced to the disk
    24  boot id               16 bytes, of the system that wrote it
    40  crc                   u32   CRC-32C of the 40 bytes before

It is what tells a torn tail from a flipped bit. Bytes past the acknowledged end were never promised to anybody. Bytes
before it were, so they must check out, or the log is corrupt: with two exceptions in which they were lost rather than
changed, a file that is shorter than that, and a power cut (another boot id) before they were forced to the disk.
"""

from __future__ import annotations

import logging
import os
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import google_crc32c

from spark_streams.log.storage.files import write_all

__all__ = ["RecoveryPoint", "RecoveryPointFile", "this_boot"]

logger = logging.getLogger("spark_streams.log")

_POINT = struct.Struct(">qqq16s")
_CRC = struct.Struct(">I")


@cache
def this_boot() -> bytes:
    """Return what tells this run of the operating system from another, 16 bytes; zeros where it does not say."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return bytes(16)
    return bytes.fromhex(text.replace("-", ""))


@dataclass(frozen=True)
class RecoveryPoint:
    """What was promised of the last segment; positions are bytes from its beginning, exclusive ends."""

    base_offset: int
    acknowledged_end: int
    synced_end: int
    boot: bytes


class RecoveryPointFile:
    """The open file; one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def read(self) -> RecoveryPoint | None:
        """Return the point, or None when the file is new or does not pass its check.

        The latter is logged and is no error: without a point recovery allows less, not more, to be damaged.
        """
        content = os.pread(self._fd, _POINT.size + _CRC.size, 0)
        if not content:
            return None
        whole = len(content) == _POINT.size + _CRC.size
        if not whole or _CRC.unpack_from(content, _POINT.size)[0] != google_crc32c.value(content[: _POINT.size]):
            logger.warning("%s: does not pass its check at byte 0; every batch has to pass its own", self._path)
            return None
        return RecoveryPoint(*_POINT.unpack_from(content))

    def write(self, base_offset: int, acknowledged_end: int, synced_end: int) -> None:
        """Overwrite the point."""
        body = _POINT.pack(base_offset, acknowledged_end, synced_end, this_boot())
        write_all(self._fd, body + _CRC.pack(google_crc32c.value(body)), 0)

    def sync(self) -> None:
        """Force the point to the disk."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
