"""One segment: a file of whole record batches, its sparse index beside it.

A segment is named by the offset of its first record, 20 digits, ``.log`` and ``.index``. Batches follow each other
without gaps. Closed segments never change; their CRCs are checked whenever they are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from spark_streams.errors import CorruptLog
from spark_streams.log.format.record_batch import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchFault,
    BatchHeader,
    batch_max_timestamp,
    check_place,
    parse_header,
    verify,
)
from spark_streams.log.format.records import Records, decode_batches
from spark_streams.log.storage.files import HEADERS_AHEAD_BYTES, OpenFile, ReadAhead, logger, read_exactly, write_all
from spark_streams.log.storage.segment_index import IndexInvalid, SegmentIndex
from spark_streams.offsets import format_offset

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
KEPT_INDEXES = 32
"""The most indexes of closed segments in memory, in all logs of the process: 0.4 MB each for 64 MiB segments."""


class _Visible(NamedTuple):
    """The part of a segment that readers may see."""

    end: int
    next_offset: int
    last_batch_place: tuple[int, int] | None


class Segment:
    """One segment.

    Args:
        folder: the partition's folder.
        base_offset: the offset of its first record.
        interval_bytes: about how many bytes of the segment one index entry covers.

    Attributes:
        sealed: whether it is closed, or its index is written already.
        first_append_ms, last_append_ms: times of its first and last append, in ms since the epoch; None before one.

    The active segment holds its file open and its index in memory. A closed one holds neither, so that a log of
    thousands of segments takes no more descriptors and memory than a short one: its file is opened for each read, and
    its index is read when it is needed; the few indexes that were used last are kept.
    """

    def __init__(self, folder: Path, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.path = folder / (format_offset(base_offset) + LOG_SUFFIX)
        self.index_path = self.path.with_suffix(INDEX_SUFFIX)
        self._visible = _Visible(0, base_offset, None)
        self.sealed = False
        self.first_append_ms: int | None = None
        self.last_append_ms: int | None = None
        self.interval_bytes = interval_bytes
        self._file: OpenFile | None = None
        self._index: SegmentIndex | None = None
        self._max_timestamp: int | None = None

    @property
    def end(self) -> int:
        """The end of the batches that readers may see, in bytes, exclusive."""
        return self._visible.end

    @property
    def next_offset(self) -> int:
        """The offset after that of the last record that readers may see."""
        return self._visible.next_offset

    @property
    def last_batch_place(self) -> tuple[int, int] | None:
        """Position and base offset of the last batch; None in a closed segment, whose index leads to it."""
        return self._visible.last_batch_place

    def open_active(self) -> None:
        """Open or create the file for appends; none of its batches is visible yet."""
        self._file = OpenFile(self.path, os.O_RDWR | os.O_CREAT)
        self._index = SegmentIndex(self.interval_bytes)

    def open_closed(self, next_offset: int) -> None:
        """Open a segment that is followed by one that starts at ``next_offset``; nothing is read."""
        status = self.path.stat()
        self.sealed = True
        self._visible = _Visible(status.st_size, next_offset, None)
        self.last_append_ms = self.first_append_ms = status.st_mtime_ns // 1_000_000

    def let_go(self) -> None:
        """Release file and index; readers that use them now can finish, later ones open them for themselves.

        The largest timestamp stays: a search by time passes over the segment without reading anything.
        """
        if self._index is not None:
            self._max_timestamp = self._index.max_timestamp
        self._file = self._index = None

    def file(self) -> OpenFile:
        """Return the open file; keep it while its descriptor is used.

        Raises:
            FileNotFoundError: retention has removed it.
        """
        held = self._file
        return OpenFile(self.path, os.O_RDONLY) if held is None else held

    @property
    def index(self) -> SegmentIndex:
        """The index.

        Raises:
            CorruptLog: the batches do not lead up to the next segment.
            FileNotFoundError: retention has removed the segment.
        """
        held = self._index
        return _index_of_closed(self) if held is None else held

    def write(self, batches: bytes) -> int:
        """Write whole batches past ``end``, where no reader sees them before ``publish``; return where they end.

        Raises:
            OSError: the system refused; call ``take_back``.
        """
        write_all(self.file().fd, batches, self.end)
        return self.end + len(batches)

    def take_back(self) -> None:
        """Cut off the bytes that ``write`` wrote and ``publish`` did not make visible."""
        try:
            os.ftruncate(self.file().fd, self.end)
        except OSError:
            # Harmless: no reader looks there, the next append overwrites it, and ``seal`` or recovery cuts the rest.
            logger.warning("%s: bytes past %d could not be cut off", self.path, self.end, exc_info=True)

    def publish(self, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Make written batches visible to readers; ``now_ms`` is the time of the append."""
        self.last_append_ms = now_ms
        if self.first_append_ms is None:
            self.first_append_ms = now_ms
        for header in headers:
            self.take(header)

    def take(self, header: BatchHeader) -> None:
        """Make the batch at the active segment's ``end`` visible, in one step: readers see all of it or none."""
        position = self.end
        self.index.add(header.base_offset, position, batch_max_timestamp(header))
        self._visible = _Visible(position + header.size, header.next_offset, (position, header.base_offset))

    def sync(self) -> None:
        """Force the bytes to the disk."""
        os.fdatasync(self.file().fd)

    def seal(self) -> None:
        """Force the bytes to the disk and write the index; no append may follow.

        Raises:
            OSError: the system refused; ``seal`` can be called again.
        """
        fd = self.file().fd
        if os.fstat(fd).st_size != self.end:
            os.ftruncate(fd, self.end)
        self.stamp()
        os.fsync(fd)
        self.index.write(self.index_path)
        self.sealed = True

    def stamp(self) -> None:
        """Set the file's modification time to that of the last append, for retention by age after the next start."""
        if self.last_append_ms is not None:
            os.utime(self.file().fd, ns=(self.last_append_ms * 1_000_000, self.last_append_ms * 1_000_000))

    def unlink(self) -> None:
        """Remove the files; readers that have them open can finish."""
        self.index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def headers(
        self, position: int, offset: int, ahead: ReadAhead, *, verified: bool = False
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Walk the batch headers from ``position``, the start of the batch with base offset ``offset``.

        Args:
            position: where to begin, in bytes.
            offset: the expected base offset there.
            ahead: reads the segment's file; the walk ends at its ``end``, after a whole batch.
            verified: whether to check each whole batch, its CRC included.

        Raises:
            CorruptLog: the bytes at a position are no batch of this segment.
        """
        while position < ahead.end:
            try:
                header = parse_header(*ahead.bytes_at(position, HEADER_BYTES))
                check_place(header, offset, ahead.end - position)
                if verified:
                    verify(ahead.view_at(position, header.size), 0, header)
            except BatchFault as fault:
                raise CorruptLog(str(self.path), position, str(fault)) from fault
            yield position, header
            position += header.size
            offset = header.next_offset

    def locate(self, offset: int, file: OpenFile | None = None) -> tuple[int, int]:
        """Return byte position and base offset of the batch that holds ``offset``, which must be in this segment.

        Raises:
            CorruptLog: the bytes at a position are no batch of this segment, or no batch holds the offset.
            FileNotFoundError: retention has removed the segment.
        """
        # One read for the bytes that an index entry covers: with many small batches, a read for each header would take
        # a hundred system calls, and Python's lock again after each.
        ahead = ReadAhead(file or self.file(), self.end, min(self.interval_bytes, HEADERS_AHEAD_BYTES))
        for position, header in self.headers(*self.index.stretch_of(offset), ahead):
            if header.next_offset > offset:
                return position, header.base_offset
        raise CorruptLog(str(self.path), self.end, f"offset {offset} is missing")

    def read_from(self, offset: int, max_bytes: int) -> Records:
        """Read whole batches from the one that holds ``offset`` on.

        At least one batch is read, and no more than fit into ``max_bytes``.

        Raises:
            CorruptLog: a check failed; no record is returned.
            FileNotFoundError: retention has removed the segment.
        """
        file = self.file()
        position, base = self.locate(offset, file)
        block, batches = self._checked(file, position, base, max_bytes)
        return self._decoded(block, batches, position)

    def _decoded(self, block: bytes, batches: list[tuple[int, BatchHeader]], position: int) -> Records:
        try:
            return decode_batches(block, batches)
        except BatchFault as fault:
            raise CorruptLog(str(self.path), position, str(fault)) from fault

    def _checked(
        self, file: OpenFile, position: int, offset: int, max_bytes: int
    ) -> tuple[bytes, list[tuple[int, BatchHeader]]]:
        """Read whole batches from ``position``, where the batch with base offset ``offset`` starts, and check them."""
        end = self.end
        block = read_exactly(file.fd, min(max(max_bytes, HEADER_BYTES), end - position), position)
        batches: list[tuple[int, BatchHeader]] = []
        at = 0
        try:
            while at < len(block) or not batches:
                if batches and len(block) - at < HEADER_BYTES:
                    break
                header = parse_header(block, at)
                check_place(header, offset, end - position - at)
                if at + header.size > len(block):
                    if batches:
                        break
                    block = read_exactly(file.fd, header.size, position)
                verify(block, at, header)
                batches.append((at, header))
                at += header.size
                offset = header.next_offset
        except BatchFault as fault:
            raise CorruptLog(str(self.path), position + at, str(fault)) from fault
        return block, batches

    def stretch_of_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return byte position and first offset of the stretch with the first record not earlier than a time.

        Args:
            timestamp_ms: the time, in ms since the epoch.

        Returns:
            None when the index has no such stretch.

        Raises:
            CorruptLog: the index and the segment do not agree.
            FileNotFoundError: retention has removed the segment.
        """
        if self._max_timestamp is not None and self._max_timestamp < timestamp_ms:
            return None
        index = self.index
        if self._index is None:  # a closed segment's maximum stays: no need to read the index for later times
            self._max_timestamp = index.max_timestamp
        return index.stretch_of_time(timestamp_ms)

    def first_at_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record not earlier than ``timestamp_ms``, or None.

        Every batch that the answer depends on is checked: a flipped bit in a header's maximum must not hide a record.

        Raises:
            CorruptLog: a check failed.
            FileNotFoundError: retention has removed the segment.
        """
        end = self.end
        stretch = self.stretch_of_time(timestamp_ms)
        if stretch is None:
            return None
        file = self.file()
        position, offset = stretch
        while position < end:
            block, batches = self._checked(file, position, offset, self.interval_bytes)
            candidates = [(at, h) for at, h in batches if batch_max_timestamp(h) >= timestamp_ms]
            if candidates:
                records = self._decoded(block, candidates, position)
                matching = (records.timestamps >= timestamp_ms) & (records.timestamps != NO_TIMESTAMP)
                if matching.any():
                    row = int(matching.argmax())
                    return int(records.offsets[row]), int(records.timestamps[row])
            last_at, last = batches[-1]
            position, offset = position + last_at + last.size, last.next_offset
        return None


@lru_cache(maxsize=KEPT_INDEXES)
def _index_of_closed(segment: Segment) -> SegmentIndex:
    try:
        index = SegmentIndex.load(
            segment.index_path,
            interval_bytes=segment.interval_bytes,
            base_offset=segment.base_offset,
            segment_bytes=segment.end,
        )
    except IndexInvalid as why:
        logger.warning("%s: it is made again", why)
        index = SegmentIndex(segment.interval_bytes)
        ahead = ReadAhead(segment.file(), segment.end)
        # Each batch is checked: a flipped bit must not get into the index.
        for position, header in segment.headers(0, segment.base_offset, ahead, verified=True):
            index.add(header.base_offset, position, batch_max_timestamp(header))
        try:
            index.write(segment.index_path)
        except OSError:
            # The index is in memory, so the read goes on; the next read that needs the file tries again.
            logger.warning("%s could not be written", segment.index_path, exc_info=True)
    expected = segment.base_offset
    if len(index):
        ahead = ReadAhead(segment.file(), segment.end, HEADERS_AHEAD_BYTES)
        for _, header in segment.headers(*index.stretch(len(index) - 1), ahead):
            expected = header.next_offset
    if expected != segment.next_offset:
        raise CorruptLog(
            str(segment.path),
            segment.end,
            f"ends before offset {expected}, the next segment starts at {segment.next_offset}",
        )
    return index
