"""One segment: a file of whole record batches, its sparse index beside it.

A segment is named by the offset of its first record, 20 digits, ``.log`` and ``.index``. Batches follow each other
without gaps. Closed segments never change; their CRCs are checked whenever they are read.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_streams.errors import CorruptLog
from spark_streams.log.files import read_exactly, write_all
from spark_streams.log.index import IndexInvalid, SegmentIndex, remove_if_there
from spark_streams.log.offsets import format_offset
from spark_streams.log.record_batch import HEADER_BYTES, BatchFault, BatchHeader, parse_header, verify
from spark_streams.log.records import Records, decode_batches
from spark_streams.log.timestamps import LEGACY_NO_TIMESTAMP, NO_TIMESTAMP

__all__ = ["LOG_SUFFIX", "Segment"]

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
SCAN_BYTES = 1 << 20
"""How much is read at a time when a segment is scanned."""


def batch_max_timestamp(header: BatchHeader) -> int:
    """Return a batch's maximum as instants compare, in ms: ``NO_TIMESTAMP`` when no record has one."""
    none = not header.extended and header.max_timestamp == LEGACY_NO_TIMESTAMP
    return NO_TIMESTAMP if none else header.max_timestamp


def check_place(header: BatchHeader, offset: int, bytes_left: int) -> None:
    """Check what the CRC does not cover, as the log itself sets it: base offset, leader epoch, and the length.

    Raises:
        BatchFault: the check that failed.

    """
    if header.base_offset != offset:
        raise BatchFault(f"the batch says offset {header.base_offset}, expected {offset}")
    if header.leader_epoch:
        raise BatchFault(f"the batch says leader epoch {header.leader_epoch}, expected 0")
    if header.size > bytes_left:
        raise BatchFault(f"the batch says {header.size} bytes, {bytes_left} are there")


class Segment:
    """The open file of one segment; ``end`` is how many of its bytes are whole batches that readers may see."""

    def __init__(self, folder: Path, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.path = folder / (format_offset(base_offset) + LOG_SUFFIX)
        self.index_path = self.path.with_suffix(INDEX_SUFFIX)
        self.end = 0
        self.first_append_ms: int | None = None
        self.last_append_ms: int | None = None
        self.interval_bytes = interval_bytes
        self.index = SegmentIndex(interval_bytes)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        # Readers may still hold a segment that retention has unlinked: the file lives until the last one lets go.
        self._close = weakref.finalize(self, os.close, self.fd)

    def close(self) -> None:
        """Close the file."""
        self._close()

    def file_bytes(self) -> int:
        """Return the file's length in bytes."""
        return os.fstat(self.fd).st_size

    def append(self, batches: bytes, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Write whole batches at the end.

        Args:
            batches: their bytes, one after the other.
            headers: the header of each.
            now_ms: the time of the append.

        Raises:
            OSError: the system refused; the file is cut back to where it was.

        """
        try:
            write_all(self.fd, batches, self.end)
        except OSError:
            os.ftruncate(self.fd, self.end)
            raise
        for header in headers:
            self.take(header)
        self.last_append_ms = now_ms
        if self.first_append_ms is None:
            self.first_append_ms = now_ms

    def sync(self) -> None:
        """Force the bytes to the disk."""
        os.fdatasync(self.fd)

    def cut(self, end: int, next_offset: int) -> None:
        """Take back the batches past the byte position ``end``: an append that could not be acknowledged.

        The maximum timestamp of the stretch they lay in may stay too high, which costs a lookup a scan and no more.
        """
        os.ftruncate(self.fd, end)
        self.end = end
        self.next_offset = next_offset
        self.index.cut(end)

    def take(self, header: BatchHeader) -> None:
        """Make the batch that lies at ``end`` visible."""
        self.index.add(header.base_offset, self.end, batch_max_timestamp(header))
        self.end += header.size
        self.next_offset = header.next_offset

    def seal(self) -> None:
        """Force the bytes to the disk and write the index; called once, when the segment is rolled."""
        os.fsync(self.fd)
        self.stamp()
        self.index.write(self.index_path)

    def stamp(self) -> None:
        """Make the file's own time that of the last append: retention by age goes by it after the next start."""
        if self.last_append_ms is not None:
            os.utime(self.path, ns=(self.last_append_ms * 1_000_000, self.last_append_ms * 1_000_000))

    def open_closed(self, next_offset: int) -> None:
        """Open a segment that is followed by another, which starts at ``next_offset``: nothing is scanned.

        Raises:
            CorruptLog: its index had to be made anew and the batches do not lead up to ``next_offset``.

        """
        self.end = self.file_bytes()
        self.next_offset = next_offset
        self.last_append_ms = self.first_append_ms = int(os.fstat(self.fd).st_mtime_ns // 1_000_000)
        try:
            self.index = SegmentIndex.load(
                self.index_path,
                interval_bytes=self.interval_bytes,
                base_offset=self.base_offset,
                segment_bytes=self.end,
            )
        except IndexInvalid:
            index = SegmentIndex(self.interval_bytes)
            expected = self.base_offset
            for position, header in self.headers(0, expected):
                index.add(header.base_offset, position, batch_max_timestamp(header))
                expected = header.next_offset
            if expected != next_offset:
                raise CorruptLog(
                    str(self.path), self.end, f"ends before offset {expected}, the next segment starts at {next_offset}"
                ) from None
            self.index = index
            index.write(self.index_path)

    def unlink(self) -> None:
        """Remove the files; those who read them now can finish."""
        remove_if_there(self.index_path)
        remove_if_there(self.path)

    def headers(self, position: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Walk the batch headers from ``position``, the start of the batch with base offset ``offset``, to ``end``.

        Raises:
            CorruptLog: what is there is no batch of this segment. (CRCs are not checked here.)

        """
        end = self.end
        while position < end:
            try:
                header = parse_header(read_exactly(self.fd, HEADER_BYTES, position))
                check_place(header, offset, end - position)
            except BatchFault as fault:
                raise CorruptLog(str(self.path), position, str(fault)) from fault
            yield position, header
            position += header.size
            offset = header.next_offset

    def locate(self, offset: int) -> tuple[int, int]:
        """Return byte position and base offset of the batch that holds ``offset``, which must be in this segment."""
        for position, header in self.headers(*self.index.stretch_of(offset)):
            if header.next_offset > offset:
                return position, header.base_offset
        raise CorruptLog(str(self.path), self.end, f"offset {offset} is missing")

    def read(self, position: int, offset: int, max_bytes: int) -> Records:
        """Read whole batches from ``position``, where the batch with base offset ``offset`` starts, and check them.

        At least one batch is read, and no more than fit into ``max_bytes``.

        Raises:
            CorruptLog: a check failed; nothing is served.

        """
        end = self.end
        block = read_exactly(self.fd, min(max(max_bytes, HEADER_BYTES), end - position), position)
        batches: list[tuple[int, BatchHeader]] = []
        at = 0
        try:
            while at < len(block):
                if batches and len(block) - at < HEADER_BYTES:
                    break
                header = parse_header(block, at)
                check_place(header, offset, end - position - at)
                if at + header.size > len(block):
                    if batches:
                        break
                    block = read_exactly(self.fd, header.size, position)
                verify(block, at, header)
                batches.append((at, header))
                at += header.size
                offset = header.next_offset
            return decode_batches(block, batches)
        except BatchFault as fault:
            raise CorruptLog(str(self.path), position + at, str(fault)) from fault

    def first_at_time(self, timestamp_ms: int, not_before: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record not earlier than ``timestamp_ms``.

        Only records from the offset ``not_before`` on count; None when there is none.
        """
        stretch = self.index.stretch_of_time(timestamp_ms)
        if stretch is None:
            return None
        for at, header in self.headers(*stretch):
            highest = batch_max_timestamp(header)
            if highest == NO_TIMESTAMP or highest < timestamp_ms or header.next_offset <= not_before:
                continue
            records = self.read(at, header.base_offset, header.size)
            matching = (records.timestamps >= timestamp_ms) & (records.timestamps != NO_TIMESTAMP)
            matching &= records.offsets >= not_before
            if matching.any():
                row = int(matching.argmax())
                return int(records.offsets[row]), int(records.timestamps[row])
        return None
