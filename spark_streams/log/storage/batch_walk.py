"""A cheap walk over stored batches: their headers and their notes, no values.

A note is a record header of a batch's first record; a door keeps there data that must be stored or lost together with
the records. The walk reads the batch's own header, and the bytes before and after the first record's value.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from spark_streams.errors import CorruptLog
from spark_streams.log.format.record_batch import HEADER_BYTES, BatchHeader, Header, batch_max_timestamp
from spark_streams.log.format.records import decode_headers
from spark_streams.log.format.varint import MAX_VARINT_BYTES, decode_varint
from spark_streams.log.storage.files import HEADERS_AHEAD_BYTES, ReadAhead
from spark_streams.log.storage.segment import Segment

PREFIX_BYTES = 1 + 5 * MAX_VARINT_BYTES
"""The most bytes of a record before its key, and, not counting its key, before its value."""


class StoredBatch(NamedTuple):
    """One stored batch: the facts of its header and its first record.

    Args:
        first_offset: the first record's offset.
        next_offset: 1 + the last record's offset.
        max_timestamp: the largest timestamp of its records, in ms, or the append time; ``NO_TIMESTAMP``: none has one.
        append_time: whether ``max_timestamp`` is the time of the append, and every record's timestamp.
        notes: the record headers of the first record.
        crc: its CRC-32C, which covers all but its place in the log.
    """

    first_offset: int
    next_offset: int
    max_timestamp: int
    append_time: bool
    notes: tuple[Header, ...]
    crc: int

    @property
    def witness(self) -> str:
        """Identifies the batch among all that may be stored at its offsets, for example in a copy of the log.

        A batch with the same witness has the same records with the same times, but for one case in 2^32.
        """
        return f"{self.first_offset}#{self.crc:08x}"


def walk_segment(segment: Segment, position: int, offset: int) -> Iterator[StoredBatch]:
    """Walk the batches of one segment from ``position``, where the batch with base offset ``offset`` starts.

    Raises:
        CorruptLog: the bytes at a position are no batch of this segment; CRCs are not checked.
        FileNotFoundError: retention has removed the segment before the walk began.
    """
    ahead = ReadAhead(segment.file(), segment.end, HEADERS_AHEAD_BYTES)
    for place, header in segment.headers(position, offset, ahead):
        try:
            notes = _notes(ahead.bytes_at, place, header)
        except ValueError as fault:
            raise CorruptLog(str(segment.path), place, str(fault)) from fault
        yield StoredBatch(
            header.base_offset, header.next_offset, batch_max_timestamp(header), header.append_time, notes, header.crc
        )


def notes_of_batch(encoded: bytes, header: BatchHeader) -> tuple[Header, ...]:
    """Return the notes of one encoded batch.

    Raises:
        ValueError: its first record does not fit it.
    """
    return _notes(lambda position, size: (encoded, position), 0, header)


def last_of_segment(segment: Segment) -> StoredBatch | None:
    """Return the last batch of a segment; None when it has none.

    Raises:
        CorruptLog: the bytes at a position are no batch of this segment; CRCs are not checked.
        FileNotFoundError: retention has removed the segment.
    """
    held = segment.last_batch_place
    position, offset = held if held is not None else segment.index.stretch(len(segment.index) - 1)
    batches = deque(walk_segment(segment, position, offset), maxlen=1)
    return batches[0] if batches else None


def _notes(bytes_at: Callable[[int, int], tuple[bytes, int]], position: int, header: BatchHeader) -> tuple[Header, ...]:
    """Return the notes of the batch at ``position``; ``bytes_at`` reads as ``ReadAhead.bytes_at`` does."""
    stop = position + header.size
    start = position + HEADER_BYTES

    def prefix(place: int) -> tuple[bytes, int, int]:
        # ``place`` in the segment is ``at`` in the buffer; the difference turns one into the other.
        buffer, at = bytes_at(place, min(PREFIX_BYTES, stop - place))
        return buffer, at, place - at

    buffer, at, shift = prefix(start)
    length, at = decode_varint(buffer, at)
    record_end = at + shift + length
    if length < 0 or record_end > stop:
        raise ValueError("the first record runs past its batch")
    _, at = decode_varint(buffer, at + 1)
    _, at = decode_varint(buffer, at)
    for _ in ("key", "value"):
        size, at = decode_varint(buffer, at)
        after = at + shift + max(size, 0)
        if size < -1 or after >= record_end:
            raise ValueError("the first record's key or value runs past it")
        if after + 1 == record_end:
            return ()  # one byte is left: it can only mean that there are no headers
        buffer, at, shift = prefix(after)
    place = at + shift
    buffer, at = bytes_at(place, record_end - place)
    return tuple(decode_headers(buffer, at, at + record_end - place))
