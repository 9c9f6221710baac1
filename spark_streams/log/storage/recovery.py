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
"""

from __future__ import annotations

import logging
import os
from itertools import pairwise
from pathlib import Path

from spark_streams.errors import CorruptLog
from spark_streams.log.format.record_batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchFault,
    BatchHeader,
    parse_header,
    verify,
)
from spark_streams.log.storage.files import ReadAhead, sync_directory
from spark_streams.log.storage.recovery_point import RecoveryPoint, this_boot
from spark_streams.log.storage.segment import LOG_SUFFIX, Segment, check_place
from spark_streams.log.storage.segment_index import remove_if_there
from spark_streams.offsets import format_offset

__all__ = ["open_segments", "recover_last"]

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
