"""The segment files of one partition: opening, storing, rolling, retention, and the recovery point beside them.

An append goes to the active segment, the last one. The order of the steps makes an append safe against kill -9: the
batches are written after the visible ones, the recovery point acknowledges them, and only then readers see them. If the
system refuses a step, the append is taken back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from spark_streams.log.config import StreamConfig
from spark_streams.log.format.record_batch import BatchHeader
from spark_streams.log.storage.files import logger, make_directory, sync_directory
from spark_streams.log.storage.recovery import RecoveryPointFile, open_segments
from spark_streams.log.storage.segment import Segment

_BASE_OFFSET: Final = attrgetter("base_offset")


def index_of_offset(segments: Sequence[Segment], offset: int) -> int:
    """Return the index of the segment that holds ``offset``; 0 for an offset below the first segment."""
    return max(0, bisect_right(segments, offset, key=_BASE_OFFSET) - 1)


class Segments:
    """The segments of one open partition.

    The caller makes one changing call at a time. Other threads read beside it: ``listed`` is replaced whole and never
    changed, so a reader keeps the list that it took.

    Args:
        folder: the partition's folder; it is created when it is missing.
        config: the stream's settings.

    Attributes:
        listed: the segments, oldest first; the last one is active.

    Raises:
        CorruptLog: an acknowledged batch of the last segment fails its check, or the segment is missing.
    """

    def __init__(self, folder: Path, config: StreamConfig) -> None:
        self._folder = folder
        self._config = config
        make_directory(folder)
        self._point = RecoveryPointFile(folder / "recovery-point")
        try:
            self.listed = open_segments(folder, config.index_interval_bytes, self._point.read())
        except BaseException:
            self._point.close()
            raise
        self._synced_end = self.listed[-1].end
        self._write_point(self._synced_end)

    def _write_point(self, acknowledged_end: int) -> None:
        self._point.write(self.listed[-1].base_offset, acknowledged_end, self._synced_end)

    def store(self, batches: Sequence[tuple[BatchHeader, bytes]], now_ms: int, *, sync: bool) -> None:
        """Store the batches of one append and make them visible to readers: all of them or none.

        Args:
            batches: header and bytes of each batch, at least one, from the next offset on.
            now_ms: the time of the append.
            sync: whether to force them to the disk before they are acknowledged.

        Raises:
            OSError: the system refused; none of the batches is stored.
        """
        joined = batches[0][1] if len(batches) == 1 else b"".join(batch for _, batch in batches)
        self._roll_if_due(now_ms, len(joined))
        active = self.listed[-1]
        synced_before = self._synced_end
        try:
            end = active.write(joined)
            if sync:
                active.sync()
                self._synced_end = end
            self._write_point(end)
        except OSError:
            self._synced_end = synced_before
            active.take_back()
            raise
        # Only now: a reader must not see batches that may still be taken back.
        active.publish([header for header, _ in batches], now_ms)

    def _roll_if_due(self, now_ms: int, coming_bytes: int) -> None:
        active = self.listed[-1]
        if active.sealed:
            # A roll failed half way: the index is written and the next file may exist, so nothing may be added here.
            self.roll()
            return
        if not active.end:
            return
        too_big = active.end + coming_bytes > self._config.segment_max_bytes
        age = self._config.segment_max_age_ms
        too_old = age is not None and active.first_append_ms is not None and now_ms - active.first_append_ms >= age
        if too_big or too_old:
            self.roll()

    def roll(self) -> None:
        """Close the active segment and begin the next one.

        Raises:
            OSError: the system refused; the next append tries again.
        """
        active = self.listed[-1]
        active.seal()
        following = Segment(self._folder, active.next_offset, self._config.index_interval_bytes)
        following.open_active()
        sync_directory(self._folder)
        self._point.write(following.base_offset, 0, 0)
        self._point.sync()
        self.listed = [*self.listed, following]
        self._synced_end = 0
        active.let_go()

    def sync(self) -> None:
        """Force the stored batches to the disk, and then the recovery point that says so."""
        active = self.listed[-1]
        if active.end == self._synced_end:
            return
        active.sync()
        self._synced_end = active.end
        self._write_point(active.end)
        self._point.sync()

    def remove_expired(self, now_ms: int) -> int:
        """Remove the segments that retention no longer keeps; return how many."""
        expired = _count_expired(self.listed, self._config, now_ms)
        # The closed ones first: on a full disk the roll has no room before they are gone.
        closed = len(self.listed) - 1
        self._remove(min(expired, closed))
        if expired > closed:
            self.roll()
            self._remove(1)
        return expired

    def _remove(self, count: int) -> None:
        """Remove the oldest segments, which are closed."""
        removed, self.listed = self.listed[:count], self.listed[count:]
        for segment in removed:
            segment.unlink()
        if removed:
            sync_directory(self._folder)
            logger.info("%s: retention removed %d segments", self._folder, count)

    def close(self) -> None:
        """Force the stored batches to the disk and close the files.

        Raises:
            OSError: the system refused; the files are closed all the same.
        """
        try:
            self.sync()
            self.listed[-1].stamp()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the files without forcing anything to the disk."""
        for segment in self.listed:
            segment.let_go()
        self._point.close()


def _count_expired(segments: Sequence[Segment], config: StreamConfig, now_ms: int) -> int:
    """Return how many segments, from the oldest on, retention removes.

    By age a segment goes when its last append is older than ``retention_max_age_ms``: the time of the append counts,
    not the records' own timestamps, so that events of 1957 are kept as long as any other. The active segment may go by
    age (the caller rolls it first). By size the oldest goes while the others still hold ``retention_max_bytes``; the
    active segment never goes by size.
    """
    count = 0
    if config.retention_max_age_ms is not None:
        for segment in segments:
            if not segment.end or segment.last_append_ms is None:
                break
            if now_ms - segment.last_append_ms <= config.retention_max_age_ms:
                break
            count += 1
    if config.retention_max_bytes is not None:
        left = sum(segment.end for segment in segments[count:])
        while count < len(segments) - 1 and left - segments[count].end >= config.retention_max_bytes:
            left -= segments[count].end
            count += 1
    return count
