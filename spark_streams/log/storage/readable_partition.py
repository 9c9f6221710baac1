"""Reads one partition: records and stored batches by offset and by time, while others append and retention removes.

A reader works on the list of segments that it took. When retention removes one of them before its file is open, the
reader begins again with the present list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from spark_streams.errors import CorruptLog, LogError
from spark_streams.log.format.record_batch import NO_TIMESTAMP
from spark_streams.log.format.records import Records
from spark_streams.log.storage.batch_walk import StoredBatch, last_of_segment, walk_segment
from spark_streams.log.storage.segment import Segment
from spark_streams.log.storage.segments import Segments, index_of_offset

T = TypeVar("T")


class PartitionClosed(LogError, OSError):
    """The log was closed, or the stream deleted, while the partition was still used."""


class ReadablePartition:
    """A partition as its readers see it; all methods may be called from any thread.

    Args:
        stream: the stream's name.
        partition_id: the partition's identifier.
        segments: its files.

    Attributes:
        gone: whether its stream was deleted, or the log closed.
        successors: the partitions that it was split into.
    """

    def __init__(self, stream: str, partition_id: str, segments: Segments) -> None:
        self.stream = stream
        self.id = partition_id
        self._files = segments
        self.gone = False
        self.successors: tuple[str, ...] = ()
        """Once set, appends are refused; the code that sets it holds the partition, or is its only user so far."""

    @property
    def _segments(self) -> list[Segment]:
        return self._files.listed

    def _check_open(self) -> None:
        if self.gone and self.successors:
            raise PartitionClosed(
                f"partition {self.id} of stream '{self.stream}' is gone: its history was redistributed onto partitions "
                f"{', '.join(self.successors)}"
            )
        if self.gone:
            raise PartitionClosed(
                f"partition {self.id} of stream '{self.stream}' is closed: the stream was deleted or the log closed"
            )

    @property
    def closed(self) -> bool:
        """Whether the partition was split, so that it takes no more records."""
        return bool(self.successors)

    @property
    def first_offset(self) -> int:
        """The first retained record's offset; equal to ``next_offset`` when there is none."""
        return self._files.listed[0].base_offset

    @property
    def next_offset(self) -> int:
        """1 + the last record's offset."""
        return self._files.listed[-1].next_offset

    @property
    def stored_bytes(self) -> int:
        """How many bytes the segments hold."""
        return sum(segment.end for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are, the active one included."""
        return len(self._segments)

    def appended_ms(self, offset: int) -> int:
        """Return a time, in ms, not before the append of a retained record: the one that retention by age compares."""
        segments = self._segments
        return segments[index_of_offset(segments, offset)].last_append_ms or 0

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
            CorruptLog: a check failed; no record is returned.
            PartitionClosed: the log was closed, or the stream deleted.
        """

        def read(segments: list[Segment]) -> Records | None:
            end = segments[-1].next_offset
            if offset >= end:
                if offset > end:
                    raise ValueError(f"offset {offset} lies beyond the next one, {end}")
                return None
            start = max(offset, segments[0].base_offset)
            records = segments[index_of_offset(segments, start)].read_from(start, max_bytes)
            skip = 0 if whole else start - int(records.offsets[0])
            return records.slice(skip) if skip else records

        return self._look_up(read)

    def batches(self, offset: int) -> Iterator[StoredBatch]:
        """Walk the stored batches from the one that holds ``offset`` to the last one at the time of this call.

        An offset below the first retained one starts there. The walk decodes no record and checks no CRC; a read of the
        records finds damage. It leaves out batches that retention removes meanwhile.

        Raises:
            ValueError: an offset beyond the end.
            CorruptLog: the bytes at a place are no batch.
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
            segment = segments[index_of_offset(segments, offset)]
            try:
                at_start = offset == segment.base_offset
                position, base = (0, offset) if at_start else segment.locate(offset)
                for batch in walk_segment(segment, position, base):
                    if batch.first_offset >= end:
                        return
                    yield batch
                    offset = batch.next_offset
            except FileNotFoundError as missing:
                self._check_removed(missing)

    def batch_with(self, offset: int) -> StoredBatch | None:
        """Return the stored batch that holds ``offset``; None when no batch holds it any more, or none holds it yet.

        Raises:
            CorruptLog: the bytes at a place are no batch.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        found = next(self.batches(offset), None) if self.first_offset <= offset < self.next_offset else None
        return found if found is not None and found.first_offset <= offset else None

    def last_batch(self) -> StoredBatch | None:
        """Return the last stored batch, None when none is retained; CRCs are not checked.

        Raises:
            CorruptLog: the bytes at a place are no batch.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        return self._look_up(
            lambda segments: next((last_of_segment(each) for each in reversed(segments) if each.end), None)
        )

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record, in log order, not earlier than ``timestamp_ms``.

        None: there is none. Records without a timestamp never match.

        Raises:
            CorruptLog: a check failed.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        target = max(timestamp_ms, NO_TIMESTAMP + 1)
        return self._look_up(
            lambda segments: next((found for each in segments if (found := each.first_at_time(target))), None)
        )

    def skip_to_time(self, offset: int, timestamp_ms: int) -> int:
        """Return the first offset, from ``offset`` on, where a record not earlier than ``timestamp_ms`` may lie.

        The time indexes answer; no record of the segments before that offset is read. Without such a record the result
        is ``next_offset``.

        Raises:
            CorruptLog: an index and its segment do not agree.
            PartitionClosed: the log was closed, or the stream deleted.
        """

        def skip(segments: list[Segment]) -> int:
            for segment in segments[index_of_offset(segments, offset) :]:
                stretch = segment.stretch_of_time(timestamp_ms)
                if stretch is not None:
                    return max(offset, stretch[1])
            return max(offset, self.next_offset)

        return self._look_up(skip)

    def _look_up(self, search: Callable[[list[Segment]], T]) -> T:
        """Return the result of ``search`` in the segments; search again when retention removes one meanwhile."""
        while True:
            self._check_open()
            try:
                return search(self._segments)
            except FileNotFoundError as missing:
                self._check_removed(missing)

    def _check_removed(self, missing: FileNotFoundError) -> None:
        """Check that retention removed the segment whose file is missing.

        Raises:
            CorruptLog: the segment is still listed: its file was lost.
            PartitionClosed: the log was closed, or the stream deleted.
        """
        self._check_open()
        if any(str(segment.path) == str(missing.filename) for segment in self._segments):
            raise CorruptLog(str(missing.filename), 0, "the file is missing") from missing
