"""One partition: an append-only sequence of records in segments.

Delivery guarantee: when ``append`` returns, the records are with the operating system and the recovery point says so:
they survive kill -9 of the process. They survive a power cut too once ``sync`` has returned (``fsync`` policy
``always`` does that before ``append`` returns). Readers never see a record before it is written whole.
"""

from __future__ import annotations

import functools
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.errors import CorruptLog, LogError, PartitionEnded
from spark_streams.filters.tree import Expression
from spark_streams.log.config import StreamConfig
from spark_streams.log.format.batching import Batching, Notes, encode_records, is_large, place
from spark_streams.log.format.record_batch import BatchHeader
from spark_streams.log.format.records import Records
from spark_streams.log.format.timestamps import NO_TIMESTAMP
from spark_streams.log.search import first_matching
from spark_streams.log.storage.batch_walk import StoredBatch, last_of_segment, walk_segment
from spark_streams.log.storage.files import sync_directory
from spark_streams.log.storage.recovery import RecoveryPointFile, open_segments
from spark_streams.log.storage.segment import Segment
from spark_streams.log.storage.segments import expired_segments

__all__ = ["Appended", "Copied", "Observer", "Partition", "PartitionClosed"]

logger = logging.getLogger("spark_streams.log")

Observer = Callable[[pa.LargeBinaryArray, Sequence[tuple[BatchHeader, bytes]]], None]
"""Values that were appended, and the batches that hold them, header and bytes, in their order."""


class PartitionClosed(LogError, OSError):
    """The log was closed, or the stream deleted, while somebody still used the partition."""


@dataclass(frozen=True)
class Appended:
    """Where an append went: first and last offset (inclusive) and the append time, in ms."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True)
class Copied:
    """Records of one stored batch, for another partition.

    Args:
        values, keys: of the records.
        timestamps: in ms; in a stream of append time the time of the append, for all of them.
        notes: of the batch that they become, or of each of several.
        together: whether they can and have to share one batch.
    """

    values: list[bytes]
    keys: list[bytes | None]
    timestamps: npt.NDArray[np.int64]
    notes: Notes
    together: bool


class Partition:
    """The open partition.

    Appends are made one at a time (a lock sees to it); reads may run beside them from any thread. The stream it belongs
    to says what splits made of it: ``starts_after`` is the closed partition that holds what came before its first
    record, ``cursor_from`` are the partitions that left and whose offsets ``Stream.translate`` takes, nearest first.

    Args:
        folder: the partition's folder, made when it is not there.
        stream: the stream's name.
        partition_id: the partition's identifier.
        config: the stream's settings.
        sync_each_append: fsync policy ``always``.
        clock: answers the time now, in ms.

    Raises:
        CorruptLog: an acknowledged batch of the last segment fails its check, or the segment is missing.

    """

    def __init__(
        self,
        folder: Path,
        stream: str,
        partition_id: str,
        config: StreamConfig,
        *,
        sync_each_append: bool,
        clock: Callable[[], int],
    ) -> None:
        self.stream = stream
        self.id = partition_id
        self.config = config
        self._folder = folder
        self._sync_each_append = sync_each_append
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._successors: tuple[str, ...] = ()
        self._keeping = False
        self.starts_after: str | None = None
        self.cursor_from: tuple[str, ...] = ()
        self._listeners: list[Callable[[], None]] = []
        self._observers: list[Observer] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._point = RecoveryPointFile(folder / "recovery-point")
        try:
            self._segments = open_segments(folder, config.index_interval_bytes, self._point.read())
        except BaseException:
            self._point.close()
            raise
        self._synced_end = self._segments[-1].end
        self._write_point(self._synced_end)

    def _write_point(self, acknowledged_end: int) -> None:
        self._point.write(self._segments[-1].base_offset, acknowledged_end, self._synced_end)

    def _check_open(self) -> None:
        if self._closed and self._successors:
            raise PartitionClosed(
                f"partition {self.id} of stream '{self.stream}' is gone: its history was redistributed onto partitions "
                f"{', '.join(self._successors)}"
            )
        if self._closed:
            raise PartitionClosed(
                f"partition {self.id} of stream '{self.stream}' is closed: the stream was deleted or the log closed"
            )

    def _check_takes(self) -> None:
        if self._successors:
            raise PartitionEnded(self.stream, self.id, self._successors)
        self._check_open()

    @property
    def closed(self) -> bool:
        """Whether it was split, and takes no more records."""
        return bool(self._successors)

    @property
    def gone(self) -> bool:
        """Whether its stream was deleted, or the log closed."""
        return self._closed

    @property
    def successors(self) -> tuple[str, ...]:
        """The partitions that it was split into."""
        return self._successors

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have appends wait, and ``sync`` and the like with them, while a split takes effect.

        Raises:
            PartitionEnded: it was split already.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        with self._lock:
            self._check_takes()
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Have retention wait."""
        with self._lock:
            self._keeping = True
        try:
            yield
        finally:
            with self._lock:
                self._keeping = False

    def end(self, successors: tuple[str, ...]) -> None:
        """Take no more records, from the next append on; called while it is ``held``, or before anybody uses it."""
        self._successors = successors

    @property
    def first_offset(self) -> int:
        """The first retained record's offset; equal to ``next_offset`` when there is none."""
        return self._segments[0].base_offset

    @property
    def next_offset(self) -> int:
        """1 + the last record's offset."""
        return self._segments[-1].next_offset

    @property
    def stored_bytes(self) -> int:
        """How many bytes the segments hold."""
        return sum(segment.end for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are, the active one included."""
        return len(self._segments)

    def append(
        self,
        values: pa.Array | Sequence[bytes],
        keys: pa.Array | Sequence[bytes | None] | None = None,
        timestamps: npt.NDArray[np.int64] | Sequence[int | None] | None = None,
        *,
        notes: Notes = (),
        groups: npt.NDArray[np.int64] | None = None,
    ) -> Appended:
        """Append records.

        Args:
            values: the values, none null, at least one.
            keys: as many keys, or None.
            timestamps: as many instants in ms, ``NO_TIMESTAMP`` or None for none; they count only in a stream whose
                timestamp type is ``create``.
            notes: what is to be stored or lost together with these records: record headers of the first record of
                each batch that the append makes; ``batches`` tells them. An append of more than 1 MiB, or with instants
                and "no timestamp" in a stream of create time, is cut into several batches, and when the process is
                killed before the append is acknowledged, the first of them may be kept without the others. Notes that
                must not speak of records that were lost are therefore given as a function, which is asked for those
                of rows ``start`` (inclusive) to ``stop`` (exclusive) of this append.
            groups: int64, of how many consecutive records each group is; those of one are kept or lost together,
                however large it is: they share a stored batch. None: each record is a group of its own.

        Raises:
            ValueError: no value, a null value, lengths that differ, or, in a stream of create time, a group of records
                with and without timestamps, which no batch can hold.
            TimestampRefused: the stream's batches cannot hold a timestamp (``StreamConfig.timestamp_format``).
            OSError: the system refused the write; nothing of this append is stored.
            PartitionEnded: the partition was split.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        # What takes long to encode is encoded before, and gets its place and time when its turn comes: whoever appends
        # a little to the same partition does not wait for it.
        early = (
            encode_records(values, keys, timestamps, self._batching(0), notes, groups, large=True)
            if is_large(values, keys)
            else []
        )
        with self._lock:
            self._check_takes()
            now = self._clock()
            batching = self._batching(now)
            batches = (
                place(early, batching) if early else encode_records(values, keys, timestamps, batching, notes, groups)
            )
            appended = self._store(batches, now)
        if self._observers and isinstance(values, pa.LargeBinaryArray):
            for observer in tuple(self._observers):
                self._tell(functools.partial(observer, values, batches))
        self._tell_listeners()
        return appended

    def append_copies(self, copies: Sequence[Copied], now_ms: int) -> None:
        """Append records of another partition with the timestamps that they have; nothing is forced to the disk.

        Args:
            copies: of at least one batch.
            now_ms: when they were appended there, which retention goes by.

        Raises:
            OSError: the system refused the write; nothing of this call is stored.
            PartitionEnded: the partition was split.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        with self._lock:
            self._check_takes()
            batches: list[tuple[BatchHeader, bytes]] = []
            batching = self._batching(0)
            for copied in copies:
                appended = batching.append_time_ms is not None
                batching = replace(
                    batching,
                    next_offset=batches[-1][0].next_offset if batches else self.next_offset,
                    append_time_ms=int(copied.timestamps[0]) if appended else None,
                )
                groups = np.array([len(copied.values)], np.int64) if copied.together else None
                times = None if appended else copied.timestamps
                batches += encode_records(copied.values, copied.keys, times, batching, copied.notes, groups)
            self._store(batches, now_ms, sync=False)

    def appended_ms(self, offset: int) -> int:
        """Return when a retained record was appended, at the latest: what retention by age goes by, in ms."""
        segments = self._segments
        segment = segments[max(0, bisect_right(segments, offset, key=lambda s: s.base_offset) - 1)]
        return segment.last_append_ms or 0

    def _tell_listeners(self) -> None:
        """Call the listeners, out of the lock; the records are stored, so nothing they raise may fail the append."""
        for listener in tuple(self._listeners):
            self._tell(listener)

    def _tell(self, listener: Callable[[], None]) -> None:
        try:
            listener()
        except Exception:
            logger.exception("%s/%s: a listener failed", self.stream, self.id)

    def _batching(self, now: int) -> Batching:
        return Batching(
            config=self.config,
            next_offset=self.next_offset,
            append_time_ms=now if self.config.timestamp_type == "append" else None,
        )

    def _store(self, batches: list[tuple[BatchHeader, bytes]], now: int, *, sync: bool = True) -> Appended:
        # One write for all batches: either the whole append is acknowledged or none of it is kept.
        joined = batches[0][1] if len(batches) == 1 else b"".join(batch for _, batch in batches)
        self._roll_if_due(now, len(joined))
        active = self._segments[-1]
        end = active.write(joined)
        synced_before = self._synced_end
        try:
            if sync and self._sync_each_append:
                active.sync()
                self._synced_end = end
            self._write_point(end)
        except OSError:
            self._synced_end = synced_before
            active.take_back()
            raise
        # Only now: a reader must not see what may still be taken back.
        active.publish([header for header, _ in batches], now)
        return Appended(batches[0][0].base_offset, batches[-1][0].next_offset - 1, now)

    def _roll_if_due(self, now: int, coming_bytes: int) -> None:
        active = self._segments[-1]
        if active.sealed:
            # A roll failed half way. Its index is written and the next file may be there: nothing may be added here.
            self._roll()
            return
        if not active.end:
            return
        too_big = active.end + coming_bytes > self.config.segment_max_bytes
        age = self.config.segment_max_age_ms
        too_old = age is not None and active.first_append_ms is not None and now - active.first_append_ms >= age
        if too_big or too_old:
            self._roll()

    def _roll(self) -> None:
        active = self._segments[-1]
        active.seal()
        following = Segment(self._folder, active.next_offset, self.config.index_interval_bytes)
        following.open_active()
        sync_directory(self._folder)
        self._point.write(following.base_offset, 0, 0)
        self._point.sync()
        self._segments = [*self._segments, following]
        self._synced_end = 0
        active.let_go()

    def read(self, offset: int, max_bytes: int = 1 << 20, *, whole: bool = False) -> Records | None:
        """Return records from ``offset`` (inclusive) on, or None when ``offset`` is the next one to be appended.

        An offset below the first retained one reads from there. About ``max_bytes`` of whole batches are decoded, and
        at least one batch.

        Args:
            offset: the first record wanted.
            max_bytes: about how much to decode.
            whole: begin with the first record of the stored batch that holds ``offset``, not with ``offset`` itself.

        Raises:
            ValueError: an offset beyond the end.
            CorruptLog: a check failed; nothing is served.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        while True:
            self._check_open()
            segments = self._segments
            if offset >= segments[-1].next_offset:
                if offset > segments[-1].next_offset:
                    raise ValueError(f"offset {offset} lies beyond the next one, {segments[-1].next_offset}")
                return None
            offset = max(offset, segments[0].base_offset)
            segment = segments[bisect_right(segments, offset, key=lambda s: s.base_offset) - 1]
            try:
                records = segment.read_from(offset, max_bytes)
            except FileNotFoundError as missing:
                self._check_removed(segment, missing)
                continue
            skip = 0 if whole else offset - int(records.offsets[0])
            return records.slice(skip) if skip else records

    def batches(self, offset: int) -> Iterator[StoredBatch]:
        """Walk the stored batches from the one that holds ``offset`` to the last one there is at the time of this call.

        An offset below the first retained one starts there. Records are not decoded, and CRCs not checked: what is
        told is what was written, and damage is found when the records are read. What retention removes under the walk
        is left out.

        Raises:
            ValueError: an offset beyond the end.
            CorruptLog: something lies there that is no batch.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        self._check_open()
        end = self.next_offset
        if offset > end:
            raise ValueError(f"offset {offset} lies beyond the next one, {end}")
        return self._walk(offset, end)

    def _walk(self, offset: int, end: int) -> Iterator[StoredBatch]:
        while True:
            self._check_open()
            segments = self._segments
            offset = max(offset, segments[0].base_offset)
            if offset >= end:
                return
            segment = segments[bisect_right(segments, offset, key=lambda s: s.base_offset) - 1]
            try:
                at_start = offset == segment.base_offset
                position, base = (0, offset) if at_start else segment.locate(offset)
                for batch in walk_segment(segment, position, base):
                    if batch.first_offset >= end:
                        return
                    yield batch
                    offset = batch.next_offset
            except FileNotFoundError as missing:
                self._check_removed(segment, missing)

    def batch_with(self, offset: int) -> StoredBatch | None:
        """Return the stored batch that holds an offset, None when none does (any more, or yet).

        Raises:
            As ``batches``.
        """
        found = next(self.batches(offset), None) if self.first_offset <= offset < self.next_offset else None
        return found if found is not None and found.first_offset <= offset else None

    def last_batch(self) -> StoredBatch | None:
        """Return the last stored batch, None when none is retained; CRCs are not checked.

        Raises:
            CorruptLog: something lies there that is no batch.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        while True:
            self._check_open()
            segment = next((segment for segment in reversed(self._segments) if segment.end), None)
            if segment is None:
                return None
            try:
                return last_of_segment(segment)
            except FileNotFoundError as missing:
                self._check_removed(segment, missing)

    def _check_removed(self, segment: Segment, missing: FileNotFoundError) -> None:
        """Return when retention, or the stream's end, has taken the segment from under a reader; else it is damage."""
        self._check_open()
        if segment in self._segments:
            raise CorruptLog(str(segment.path), 0, "the file is missing") from missing

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record, in log order, not earlier than ``timestamp_ms``.

        None: there is none. Records without a timestamp never match.

        Raises:
            CorruptLog: a check failed.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        target = max(timestamp_ms, NO_TIMESTAMP + 1)
        while True:
            self._check_open()
            for segment in self._segments:
                try:
                    found = segment.first_at_time(target)
                except FileNotFoundError as missing:
                    self._check_removed(segment, missing)
                    break
                if found is not None:
                    return found
            else:
                return None

    def skip_to_time(self, offset: int, timestamp_ms: int) -> int:
        """Return the first offset, from ``offset`` on, where a record not earlier than ``timestamp_ms`` may lie.

        Time indexes tell it; of the segments that lie before, no record is read. It is ``next_offset`` when there is no
        such record.

        Raises:
            CorruptLog: an index and its segment do not agree.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        while True:
            self._check_open()
            segments = self._segments
            at = max(0, bisect_right(segments, offset, key=lambda s: s.base_offset) - 1)
            for segment in segments[at:]:
                try:
                    number = (
                        segment.index.number_of_time(timestamp_ms) if segment.max_timestamp >= timestamp_ms else None
                    )
                    if number is not None and number < len(segment.index):
                        return max(offset, segment.index.stretch(number)[1])
                except FileNotFoundError as missing:
                    self._check_removed(segment, missing)
                    break
            else:
                return max(offset, self.next_offset)

    def first_matching(self, expression: Expression, start: int = 0) -> int | None:
        """Return the offset of the first record, in log order, that a filter is true of.

        Its bounds on ``offset`` and its lower bounds on ``publish_time`` are looked up in the indexes, and no record
        that they exclude is read; the others are decoded in columns until one matches.

        Args:
            expression: the filter; ``spark_streams.filters.parse`` makes one of text.
            start: where to begin, inclusive.

        Returns:
            None when no record matches that is there at the time of this call.

        Raises:
            FilterError: the filter looks at what messages cannot have.
            CorruptLog: a check failed.
            PartitionClosed: the log was closed, or the stream deleted.

        """
        return first_matching(self, expression, start)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after each append, in the appending thread; it must be quick.

        What it raises is logged, not passed on: the records are stored by then.
        """
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Undo ``add_listener``."""
        self._listeners.remove(listener)

    def add_observer(self, observer: Observer) -> None:
        """Have ``observer`` called after each append of values in an Arrow ``LargeBinaryArray``, before the listeners.

        It is given the values and the batches that hold them, header and bytes, which saves reading them back. Appends
        of another kind it is not told of: it may use what it is told, and must not count on it. It is called in the
        appending thread, with appends of other threads beside it; what it raises is logged.
        """
        self._observers.append(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Undo ``add_observer``."""
        self._observers.remove(observer)

    def sync(self) -> None:
        """Force what has been appended to the disk; nothing to do when the partition is closed."""
        with self._lock:
            if not self._closed:
                self._sync()

    def _sync(self) -> None:
        active = self._segments[-1]
        if active.end == self._synced_end:
            return
        active.sync()
        self._synced_end = active.end
        self._write_point(active.end)
        self._point.sync()

    def enforce_retention(self) -> int:
        """Remove the segments that retention no longer keeps; return how many, 0 when the partition is closed."""
        with self._lock:
            if self._closed or self._keeping:
                return 0
            now = self._clock()
            doomed = expired_segments(self._segments, self.config, now)
            # The closed ones first: on a full disk the roll has no room before they are gone.
            closed = len(self._segments) - 1
            self._remove(min(doomed, closed))
            if doomed > closed:
                self._roll()
                self._remove(1)
            return doomed

    def _remove(self, count: int) -> None:
        """Remove the oldest segments, which are closed."""
        gone, self._segments = self._segments[:count], self._segments[count:]
        for segment in gone:
            segment.unlink()
        if gone:
            sync_directory(self._folder)
            logger.info("%s/%s: retention removed %d segments", self.stream, self.id, count)

    def close(self) -> None:
        """Force everything to the disk and close; closing twice is harmless.

        Raises:
            OSError: the system refused; the partition is closed all the same.

        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._sync()
                self._segments[-1].stamp()
            finally:
                self._let_go()

    def discard(self) -> None:
        """Close without forcing anything to the disk: the stream is being deleted."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._let_go()

    def _let_go(self) -> None:
        for segment in self._segments:
            segment.let_go()
        self._point.close()
