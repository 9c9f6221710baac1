"""Recovery of a partition's last segment when a log is opened, and the recovery point that it goes by.

The recovery point says how far the last segment was acknowledged, and how far it was forced to the disk. It is a file
of its own, ``recovery-point``, which each append overwrites in place before its acknowledgement, big-endian::

    0   segment base offset   i64
    8   acknowledged end      i64   byte position in that segment
    16  synced end            i64   likewise: up to here the bytes were forced to the disk
    24  boot id               16 bytes, of the system that wrote it
    40  crc                   u32   CRC-32C of the 40 bytes before

It distinguishes a torn tail from a flipped bit. Recovery checks every batch from the segment's beginning. The rule,
with E the acknowledged end:

- Bytes after E were never acknowledged: recovery keeps whole batches among them and cuts the rest (a torn tail).
- The file is shorter than E: bytes were lost, not changed. Recovery cuts back to the last whole batch.
- A batch before E fails its check although all its bytes are there: ``CorruptLog``, which names file and position;
  nothing is cut, for the batches after it were acknowledged too. The one exception is a power cut: when another boot
  wrote the point and the batch lies past its synced end, the disk never got it, and the log goes on without it.
- The point names an older segment than the last one: a kill ended a roll before it rewrote the point. The older segment
  had been forced to the disk and indexed by then, and counts as closed; no byte of the new one was acknowledged.
- The point names a newer segment than the last one: that file is gone, ``CorruptLog``.
- ``sync`` and each roll force the point itself to the disk; an append does not, also under fsync policy ``always``.
  After a power cut the point may be older than the batches: recovery keeps whole batches, and treats as a torn tail
  only a batch that is both newer than the point and damaged.
- Without a valid recovery point (the file is missing, or fails its own check, which is logged) a batch that runs past
  the end of the file is a torn tail, and every other failed check is ``CorruptLog``.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final
from weakref import ReferenceType, ref

import google_crc32c

from spark_streams.errors import CorruptLog
from spark_streams.log.format.record_batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchFault,
    check_place,
    parse_header,
    verify,
)
from spark_streams.log.storage.files import OpenFile, ReadAhead, logger, sync_directory, write_all
from spark_streams.log.storage.segment import LOG_SUFFIX, Segment
from spark_streams.offsets import format_offset

_POINT = struct.Struct(">qqq16s")
_CRC = struct.Struct(">I")
KEPT_POINTS: Final = 2_048
"""The most files of recovery points that are open, in all logs of the process: a log may have 10,000 partitions, each
of which has its last segment open already."""
_kept: deque[ReferenceType[RecoveryPointFile]] = deque()
_opening = threading.Lock()


@cache
def this_boot() -> bytes:
    """Return the id of this run of the operating system, 16 bytes; zeros where the system has none."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return bytes(16)
    return bytes.fromhex(text.replace("-", ""))


@dataclass(frozen=True)
class RecoveryPoint:
    """The content of the file, about the last segment.

    Args:
        base_offset: the segment's base offset.
        acknowledged_end: where the acknowledged batches end, in bytes from the segment's beginning, exclusive.
        synced_end: where the bytes end that were forced to the disk, in bytes from the segment's beginning, exclusive.
        boot: the id of the run of the system that wrote it, 16 bytes.
    """

    base_offset: int
    acknowledged_end: int
    synced_end: int
    boot: bytes


class RecoveryPointFile:
    """The file of the recovery point; one thread writes it at a time.

    It is open while it is one of the ``KEPT_POINTS`` that were opened last: partitions without appends hold none open.

    Args:
        path: the file; it is created when it is missing.

    Raises:
        OSError: the system refused, here or in a method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: OpenFile | None = None
        self._closed = False
        self._opened()

    def _opened(self) -> OpenFile:
        """Return the open file, which the caller keeps while it uses the descriptor: another thread may release it."""
        file = self._file
        if file is None:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
            file = self._file = OpenFile(self._path, os.O_RDWR | os.O_CREAT)
            with _opening:
                _kept.append(ref(self))
                oldest = _kept.popleft()() if len(_kept) > KEPT_POINTS else None
            if oldest is not None:
                oldest._file = None  # a thread that writes it now has a reference of its own
        return file

    def read(self) -> RecoveryPoint | None:
        """Return the point, or None when the file is new or does not pass its check.

        A failed check is logged and is no error: without a point, recovery tolerates less damage, not more.
        """
        file = self._opened()
        content = os.pread(file.fd, _POINT.size + _CRC.size, 0)
        if not content:
            return None
        whole = len(content) == _POINT.size + _CRC.size
        if not whole or _CRC.unpack_from(content, _POINT.size)[0] != google_crc32c.value(content[: _POINT.size]):
            logger.warning("%s: does not pass its check at byte 0; every batch has to pass its own", self._path)
            return None
        return RecoveryPoint(*_POINT.unpack_from(content))

    def write(self, base_offset: int, acknowledged_end: int, synced_end: int) -> None:
        """Overwrite the point.

        Args:
            base_offset: the base offset of the last segment.
            acknowledged_end: where its acknowledged batches end, in bytes, exclusive.
            synced_end: where the bytes end that were forced to the disk, in bytes, exclusive.

        Raises:
            OSError: the system refused.
        """
        body = _POINT.pack(base_offset, acknowledged_end, synced_end, this_boot())
        file = self._opened()
        write_all(file.fd, body + _CRC.pack(google_crc32c.value(body)), 0)

    def sync(self) -> None:
        """Force the point to the disk."""
        file = self._opened()
        os.fdatasync(file.fd)

    def close(self) -> None:
        """Close the file; writes fail from now on, as another stream may get the folder."""
        self._closed = True
        self._file = None


def recover_last(segment: Segment, point: RecoveryPoint | None) -> None:
    """Make the whole batches of the last segment visible, cut the bytes after them, and force the batches to the disk.

    Args:
        segment: the last segment, opened as the active one.
        point: the recovery point; None without a valid one.

    Raises:
        CorruptLog: an acknowledged batch fails its check; the file is left as it is.
    """
    file = segment.file()
    file_bytes = os.fstat(file.fd).st_size
    ahead = ReadAhead(file, file_bytes)
    acknowledged = point.acknowledged_end if point is not None and point.base_offset == segment.base_offset else 0
    lost = file_bytes < acknowledged
    # From here on a power cut may have taken bytes from the disk.
    unsafe_from = file_bytes
    if point is not None and acknowledged and point.boot != this_boot():
        unsafe_from = point.synced_end
    while segment.end < file_bytes:
        position, left = segment.end, file_bytes - segment.end
        head = ahead.view_at(position, min(HEADER_BYTES, left))
        # The length first: a batch that runs past the file is torn, whatever else its header says.
        if left < HEADER_BYTES or int.from_bytes(head[8:12], "big", signed=True) + LENGTH_PREFIX_BYTES > left:
            if position < acknowledged and not lost and position < unsafe_from:
                text = "an acknowledged batch's length runs past the end of the file"
                raise CorruptLog(str(segment.path), position, text)
            break
        try:
            header = parse_header(head)
            check_place(header, segment.next_offset, left)
            verify(ahead.view_at(position, header.size), 0, header)
        except BatchFault as fault:
            if (position >= acknowledged and point is not None) or position >= unsafe_from:
                break
            raise CorruptLog(str(segment.path), position, str(fault)) from fault
        segment.take(header)
    if segment.end < acknowledged:
        logger.warning(
            "%s: %d acknowledged bytes were lost from byte %d on (the file was cut, or the power failed before they "
            "were forced to the disk); going on from offset %d",
            segment.path,
            acknowledged - segment.end,
            segment.end,
            segment.next_offset,
        )
    if segment.end < file_bytes:
        logger.info("%s: cut a torn tail of %d bytes at byte %d", segment.path, file_bytes - segment.end, segment.end)
        os.ftruncate(file.fd, segment.end)
    # The system may hold bytes of a killed process in memory only: they must be on the disk before the point says so.
    os.fsync(file.fd)


def open_segments(folder: Path, index_interval_bytes: int, point: RecoveryPoint | None) -> list[Segment]:
    """Open a partition's segments, oldest first; the last one is checked, recovered and made ready for appends.

    It removes the remains of a crash: half-written files, and indexes whose segment is gone.

    Args:
        folder: the partition's folder.
        index_interval_bytes: about how many bytes of a segment one entry of its sparse index covers.
        point: the recovery point; None without a valid one.

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
            path.unlink()
    # An older base than the last segment's means a roll that was killed half way; a newer one, a file that is gone.
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
        _, oldest = next(last.headers(0, last.base_offset, ReadAhead(last.file(), last.end, HEADER_BYTES)))
        first_ms = oldest.max_timestamp if oldest.append_time else changed_ms
        last.first_append_ms, last.last_append_ms = min(first_ms, changed_ms), changed_ms
    if not bases:
        sync_directory(folder)
    return segments
