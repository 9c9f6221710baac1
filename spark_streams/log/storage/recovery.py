"""What is kept of the last segment when a log is opened.

Every batch is checked from the segment's beginning. The rule, with E the acknowledged end of the recovery point:

- Bytes after E were never acknowledged: whole batches among them are kept, the rest (a torn tail) is cut.
- The file is shorter than E: bytes were lost, not changed. What is left is cut back to the last whole batch.
- A batch before E fails its check although all its bytes are there: ``CorruptLog``, naming file and position; nothing
  is cut, for the batches after it were acknowledged too. The one exception is a power cut: when another boot wrote the
  point and the batch lies past its synced end, the disk never got it, and the log goes on with what it got.
- The point names an older segment than the last one: a roll was killed before it rewrote the point. The older segment
  had been forced to the disk and indexed by then, and counts as closed; nothing of the new one was acknowledged.
- The point names a newer segment than the last one: that file is gone, ``CorruptLog`` (``open_segments`` sees to it).
- The point itself is forced to the disk by ``sync`` and by each roll, not by each append, also under fsync policy
  ``always``. After a power cut it may be older than the batches: whole ones are kept, and only a batch that is both
  newer than the point and damaged is taken for a torn tail.
- Without a valid recovery point (the file is missing, or fails its own check, which is logged) a batch that runs past
  the end of the file is a torn tail, and every other failed check is ``CorruptLog``.

How far the last segment was acknowledged, and how far it was forced to the disk.

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
from itertools import pairwise
from pathlib import Path

import google_crc32c

from spark_streams.errors import CorruptLog
from spark_streams.log.format.record_batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchFault,
    BatchHeader,
    parse_header,
    verify,
)
from spark_streams.log.storage.files import ReadAhead, sync_directory, write_all
from spark_streams.log.storage.segment import LOG_SUFFIX, Segment, check_place
from spark_streams.log.storage.segment_index import remove_if_there
from spark_streams.offsets import format_offset

__all__ = ["RecoveryPoint", "RecoveryPointFile", "open_segments", "recover_last", "this_boot"]

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


logger = logging.getLogger("spark_streams.log")


class _Torn(Exception):
    """The file ends before the batch does."""


def _batch_at(ahead: ReadAhead, position: int, file_bytes: int, expected_offset: int) -> BatchHeader:
    left = file_bytes - position
    head = ahead.piece(position, min(HEADER_BYTES, left))
    if len(head) >= LENGTH_PREFIX_BYTES:
        size = int.from_bytes(head[8:12], "big", signed=True) + LENGTH_PREFIX_BYTES
        if size > left:
            raise _Torn
    if len(head) < HEADER_BYTES:
        raise _Torn
    header = parse_header(head)
    check_place(header, expected_offset, left)
    verify(ahead.piece(position, header.size), 0, header)
    return header


def recover_last(segment: Segment, point: RecoveryPoint | None) -> None:
    """Make the whole batches of the last segment visible, cut what follows them, and force the rest to the disk.

    Raises:
        CorruptLog: an acknowledged batch fails its check; the file is left as it is.

    """
    file = segment.file()
    file_bytes = segment.file_bytes()
    ahead = ReadAhead(file, file_bytes)
    promised = point.acknowledged_end if point is not None and point.base_offset == segment.base_offset else 0
    lost = file_bytes < promised
    safe_before = 0
    if point is not None and promised and point.boot != this_boot():
        safe_before = point.synced_end
        power_cut_possible = True
    else:
        power_cut_possible = False
    while segment.end < file_bytes:
        position = segment.end
        try:
            segment.take(_batch_at(ahead, position, file_bytes, segment.next_offset))
        except _Torn:
            if position < promised and not lost and not (power_cut_possible and position >= safe_before):
                raise CorruptLog(
                    str(segment.path), position, "an acknowledged batch's length runs past the end of the file"
                ) from None
            break
        except BatchFault as fault:
            if position >= promised and point is not None:
                break
            if power_cut_possible and position >= safe_before:
                break
            raise CorruptLog(str(segment.path), position, str(fault)) from fault
    if segment.end < promised:
        logger.warning(
            "%s: %d acknowledged bytes were lost from byte %d on (the file was cut, or the power failed before they "
            "were forced to the disk); going on from offset %d",
            segment.path,
            promised - segment.end,
            segment.end,
            segment.next_offset,
        )
    if segment.end < file_bytes:
        logger.info("%s: cut a torn tail of %d bytes at byte %d", segment.path, file_bytes - segment.end, segment.end)
        os.ftruncate(file.fd, segment.end)
    # What a killed process wrote is with the system only: it has to be on the disk before the point says so.
    os.fsync(file.fd)


def open_segments(folder: Path, index_interval_bytes: int, point: RecoveryPoint | None) -> list[Segment]:
    """Open a partition's segments, oldest first; the last one is checked, recovered and made ready for appends.

    What a crash left behind is removed: half-written files, and indexes whose segment is gone.

    Raises:
        CorruptLog: an acknowledged batch of the last segment fails its check, or the segment is missing.
    """
    bases: list[int] = []
    for path in folder.iterdir():
        if path.suffix == LOG_SUFFIX and path.stem.isdigit():
            bases.append(int(path.stem))
        elif path.suffix == ".new":
            path.unlink()
    bases.sort()
    for path in folder.glob("*.index"):
        if not path.stem.isdigit() or int(path.stem) not in bases:
            remove_if_there(path)
    # An older base than the last segment's is a roll that was killed half way; a newer one is a file that is gone.
    if point is not None and (point.base_offset > bases[-1] if bases else point.base_offset or point.acknowledged_end):
        raise CorruptLog(
            str(folder / (format_offset(point.base_offset) + LOG_SUFFIX)),
            0,
            f"the file is missing, {point.acknowledged_end} acknowledged bytes with it",
        )
    segments = [Segment(folder, base, index_interval_bytes) for base in bases or [0]]
    for segment, following in pairwise(segments):
        segment.open_closed(following.base_offset)
    last = segments[-1]
    last.open_active()
    changed_ms = last.path.stat().st_mtime_ns // 1_000_000
    recover_last(last, point)
    if last.end:
        _, oldest = next(last.headers(0, last.base_offset, last.file()))
        first_ms = oldest.max_timestamp if oldest.append_time else changed_ms
        last.first_append_ms, last.last_append_ms = min(first_ms, changed_ms), changed_ms
    if not bases:
        sync_directory(folder)
    return segments
