"""The sparse index of one segment: by offset and by time.

An entry covers a stretch of the segment of at least ``interval_bytes``: the offset of its first record, the byte
position of its first batch, and the largest timestamp from the segment's beginning to the stretch's end. That running
maximum never falls, so a binary search by time is right also when timestamps are out of order: the first record not
earlier than a target lies in the first stretch whose maximum reaches it. (A binary search on the records' own
timestamps would not be.)

As a file, big-endian: magic ``SSIX`` u32, CRC-32C u32 of the rest, entries u64, then three i64 arrays: offsets,
positions, maxima. When the file is missing or fails its check, the segment makes it again.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path

import google_crc32c
import numpy as np

from spark_streams.log.format.record_batch import NO_TIMESTAMP
from spark_streams.log.storage.files import write_atomically

_MAGIC = 0x53534958
_HEAD = struct.Struct(">IIQ")


class IndexInvalid(Exception):
    """An index file is missing, does not pass its check or does not belong to its segment."""


class SegmentIndex:
    """Offsets, positions and running maxima of one segment's stretches, in memory."""

    def __init__(self, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._maxima = array("q")

    def __len__(self) -> int:
        return len(self._maxima)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of the segment, in ms; ``NO_TIMESTAMP`` when no record has one."""
        return self._maxima[-1] if self._maxima else NO_TIMESTAMP

    def add(self, first_offset: int, position: int, max_timestamp: int) -> None:
        """Add the batch at ``position``; the caller adds batches in the order of the segment.

        Args:
            first_offset: the batch's base offset.
            position: where it starts in the segment, in bytes.
            max_timestamp: its largest timestamp, in ms; ``NO_TIMESTAMP`` when no record has one.
        """
        if not self._positions or position - self._positions[-1] >= self._interval_bytes:
            # Readers search offsets and maxima while this runs: the positions, which they need next, come first.
            self._positions.append(position)
            self._offsets.append(first_offset)
            # A new stretch starts with the maximum so far, so that the maxima never fall.
            self._maxima.append(max(max_timestamp, self.max_timestamp))
        else:
            self._maxima[-1] = max(self._maxima[-1], max_timestamp)

    def stretch_of(self, offset: int) -> tuple[int, int]:
        """Return byte position and first offset of the stretch that holds ``offset``, which must be in the segment."""
        return self.stretch(max(bisect_right(self._offsets, offset) - 1, 0))

    def stretch_of_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return byte position and first offset of the stretch with the first record not earlier than a time, in ms.

        None: there is no such record.
        """
        number = bisect_left(self._maxima, timestamp_ms)
        return self.stretch(number) if number < len(self) else None

    def stretch(self, number: int) -> tuple[int, int]:
        """Return byte position and first offset of a stretch."""
        return self._positions[number], self._offsets[number]

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        body = struct.pack(">Q", len(self._offsets)) + b"".join(
            np.asarray(column, np.int64).astype(">i8").tobytes()
            for column in (self._offsets, self._positions, self._maxima)
        )
        write_atomically(path, struct.pack(">II", _MAGIC, google_crc32c.value(body)) + body)

    @classmethod
    def load(cls, path: Path, *, interval_bytes: int, base_offset: int, segment_bytes: int) -> SegmentIndex:
        """Read the file of a segment that is ``segment_bytes`` long.

        Raises:
            IndexInvalid: the file is missing or fails a check; the index must be made again.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError as missing:
            raise IndexInvalid(f"{path} is missing") from missing
        if len(content) < _HEAD.size:
            raise IndexInvalid(f"{path} is cut short")
        magic, crc, entries = _HEAD.unpack_from(content)
        if magic != _MAGIC or google_crc32c.value(content[8:]) != crc or len(content) != _HEAD.size + 24 * entries:
            raise IndexInvalid(f"{path} does not pass its check")
        columns = np.frombuffer(content, ">i8", 3 * entries, _HEAD.size).astype(np.int64).reshape(3, entries)
        offsets, positions, maxima = columns
        if entries and (offsets[0] != base_offset or positions[0] != 0 or positions[-1] >= segment_bytes):
            raise IndexInvalid(f"{path} belongs to another segment")
        if bool(entries) != bool(segment_bytes) or (np.diff(columns) < 0).any():
            raise IndexInvalid(f"{path} is out of order")
        index = cls(interval_bytes)
        index._offsets.frombytes(offsets.tobytes())
        index._positions.frombytes(positions.tobytes())
        index._maxima.frombytes(maxima.tobytes())
        return index
