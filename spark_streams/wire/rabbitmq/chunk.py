"""Encode and decode Osiris chunks, the unit in which RabbitMQ stores and delivers the records of a stream.

::

    header, 48 bytes
        0  magic(4 bits, 5) version(4 bits, 0)    byte 0 is 0x50
        1  type(u8)            0 user, 1 tracking delta, 2 tracking snapshot; 128 selection (ours)
        2  entries(u16)        a sub-batch counts once
        4  records(u32)        a sub-batch's records count one by one: the offsets that the chunk uses up
        8  timestamp(i64)      ms since the epoch, of all its records
       16  epoch(u64)          of the leader
       24  first offset(u64)   the chunk's id
       32  CRC(u32)            CRC-32 (zlib's) of the data section
       36  data bytes(u32)
       40  trailer bytes(u32)
       44  bloom bytes(u8)
       45  reserved(3 bytes)
    delivered: header, data; the sizes of bloom and trailer may be nonzero although neither is sent
    stored:    header, bloom, data, trailer

    data of a user chunk: entries of two kinds, told apart by their first bit
        plain       0(bit) length(31 bits) message
        sub-batch   1(bit) compression(3 bits) 0(4 bits) records(u16) plain bytes(u32) stored bytes(u32) body

    data of a selection: some records of a user chunk
        indexes     u32 for each entry, rising: how many offsets it comes after the first one
        entries     plain, as many as the header says; the header's records are the offsets of the whole user chunk

Offsets are implicit: the first record has the chunk's id, each record after it one more. A selection, a type that
brokers do not have, holds its offsets: the embedded log sends it to clients that accept it (``SELECTIONS``).

Spec: docs/specifications.md, S-31 to S-37, S-41 to S-44; osiris_log.erl.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.columnar.byte_view import Positions, Readable
from spark_streams.wire.columnar.interleave import Ranges, heads, interleave
from spark_streams.wire.rabbitmq.entries import read_entries
from spark_streams.wire.rabbitmq.sub_batches import MAX_PLAIN_BYTES, RecordSpans, SubBatch

# A reader checks every byte. ISA-L does it with the processor's instructions, some twenty times as fast as zlib, which
# was a tenth of a reader's time; its wheels are for the machines that most people have, and elsewhere zlib does it.
try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

HEADER_BYTES: Final = 48
MAX_OFFSET: Final = 2**63 - 1
"""The highest offset: offsets are uint64 on the wire; Spark's longs, and so this project, end here (S-37)."""
MAX_INFLATED_BYTES: Final = 512 << 20
"""The most bytes to which the sub-batches of one chunk may inflate together: eight of the largest."""

_MAGIC: Final = 0x50
_HEADER: Final = struct.Struct(">BBHIqQQIIIB3x")


class ChunkType(IntEnum):
    """The types of chunks; only user chunks, and selections of them, hold records that readers see."""

    USER = 0
    TRACKING_DELTA = 1
    TRACKING_SNAPSHOT = 2
    SELECTION = 128


_KNOWN: Final = frozenset(map(int, ChunkType))
SELECTIONS: Final = "x-opt-selections"
"""The property of a subscription that is ``true`` if the client accepts selections; brokers ignore it."""


def checksum(data: Readable) -> int:
    """Return the CRC-32 of a data section, zlib's (S-33)."""
    return crc32(data)


@dataclass(frozen=True)
class ChunkHeader:
    """The header of a chunk: its first 48 bytes.

    Args:
        kind: a ``ChunkType``; ``decode`` refuses other numbers.
        entries: number of entries in the data section; a sub-batch counts once.
        records: number of offsets that the chunk uses up.
        timestamp_ms: ms since the epoch; may be negative.
        epoch: the leader's epoch.
        first_offset: the offset of its first record: the chunk's id.
        crc: CRC-32 of the data section.
        data_bytes: size of the data section.
        trailer_bytes: size of the trailer where the chunk is stored.
        bloom_bytes: size of the bloom filter where the chunk is stored.
    """

    kind: int
    entries: int
    records: int
    timestamp_ms: int
    epoch: int
    first_offset: int
    crc: int
    data_bytes: int
    trailer_bytes: int = 0
    bloom_bytes: int = 0

    @property
    def next_offset(self) -> int:
        """One more than the last offset that the chunk uses up."""
        return self.first_offset + self.records

    def encode(self) -> bytes:
        """Return the 48 bytes.

        Raises:
            LocalProtocolError: a number does not fit its field.
        """
        try:
            # The fields are in the order of the header, and nothing else is kept.
            return _HEADER.pack(_MAGIC, *vars(self).values())
        except struct.error as fault:
            raise LocalProtocolError(f"{self}: {fault}") from fault

    @classmethod
    def decode(cls, buffer: Readable, at: int, end: int) -> ChunkHeader:
        """Read the header at ``at``.

        Raises:
            RemoteProtocolError: fewer than 48 bytes are before ``end``, they are no chunk, the version is not 0, the
                type is unknown, or offsets are above 2^63-1.
        """
        if end - at < HEADER_BYTES:
            raise RemoteProtocolError(f"a chunk's header of {HEADER_BYTES} bytes: {max(end - at, 0)} are there")
        magic, *fields = _HEADER.unpack_from(buffer, at)
        if magic != _MAGIC:
            raise RemoteProtocolError(f"a chunk that begins with 0x{magic:02x}: expected 0x50 (magic 5, version 0)")
        header = cls(*fields)
        if header.next_offset - 1 > MAX_OFFSET:
            raise RemoteProtocolError(f"a chunk at offset {header.first_offset}: expected offsets up to {MAX_OFFSET}")
        if header.kind not in _KNOWN:
            raise RemoteProtocolError(
                f"the chunk at offset {header.first_offset} has type {header.kind}: expected 0 (messages), or 1 or 2 "
                f"(tracking). It may hold messages in its {header.records} offsets, so it is not passed over: a later "
                "spark-streams may know the type; a query with another checkpointLocation goes on behind it, with "
                f"'startingOffsets' at {header.next_offset}"
            )
        return header


@dataclass(frozen=True)
class ChunkRecords:
    """The records of a chunk; a tracking chunk has none.

    Args:
        header: the chunk's header.
        offsets: the records' offsets.
        buffer: holds the messages: the chunk itself or, with compressed sub-batches, a new one.
        starts: first byte of each message, inclusive.
        ends: byte after each message.
    """

    header: ChunkHeader
    offsets: Positions
    buffer: Readable
    starts: Positions
    ends: Positions


def decode_chunk(buffer: Readable, start: int, end: int, *, check_crc: bool = True) -> ChunkRecords:
    """Read a chunk in its delivered form: the header, directly followed by the data section.

    Args:
        buffer: the bytes.
        start: first byte of the chunk, inclusive.
        end: end of the frame, exclusive; bytes between the data section and it are ignored.
        check_crc: whether to verify the data section's CRC.

    Raises:
        RemoteProtocolError: the bytes are wrong in any way, or its sub-batches inflate to more than
            ``MAX_INFLATED_BYTES``, one of them to more than ``MAX_PLAIN_BYTES``; the message names the chunk's offset.
    """
    header = ChunkHeader.decode(buffer, start, end)
    try:
        return _decode_data(header, buffer, start + HEADER_BYTES, end, check_crc)
    except RemoteProtocolError as fault:
        fault.args = (f"the chunk at offset {header.first_offset}: {fault}",)
        raise


def _decode_data(header: ChunkHeader, buffer: Readable, start: int, end: int, check_crc: bool) -> ChunkRecords:
    if header.data_bytes > end - start:
        raise RemoteProtocolError(f"a chunk with {header.data_bytes} bytes of data: {end - start} are there")
    if check_crc:
        _check_data(header, buffer, start)
    if header.kind == ChunkType.SELECTION:
        return _decode_selection(header, buffer, start)
    if header.kind != ChunkType.USER:
        nothing = np.empty(0, np.int64)
        return ChunkRecords(header, nothing, buffer, nothing, nothing)
    spans = RecordSpans(buffer, MAX_PLAIN_BYTES, MAX_INFLATED_BYTES)
    left, end = header.entries, start + header.data_bytes
    while left:
        entries = read_entries(buffer, start, end, left)
        spans.add(entries)
        start, left = entries.stop, left - entries.starts.size
        if left:
            batch = SubBatch.read(buffer, start, end)
            spans.add_sub_batch(batch)
            start, left = batch.end, left - 1
    if start != end:
        raise RemoteProtocolError(f"a chunk with {end - start} bytes after its {header.entries} entries")
    if spans.records != header.records:
        raise RemoteProtocolError(f"a chunk of {spans.records} records: expected {header.records}, as its head says")
    offsets = np.arange(header.first_offset, header.first_offset + spans.records, dtype=np.int64)
    return ChunkRecords(header, offsets, *spans.collected())


def _check_data(header: ChunkHeader, buffer: Readable, start: int) -> None:
    """Verify the CRC of the data section, which begins at ``start`` and is complete.

    Raises:
        RemoteProtocolError: it does not match; retriable, as the bytes may have been damaged in transit.
    """
    found = checksum(memoryview(buffer)[start : start + header.data_bytes])
    if found != header.crc:
        fault = RemoteProtocolError(f"its data has CRC-32 {found:08x}, expected {header.crc:08x}")
        fault.retriable = fault.costly = True
        raise fault


def _decode_selection(header: ChunkHeader, buffer: Readable, start: int) -> ChunkRecords:
    count, end = header.entries, start + header.data_bytes
    entries_at = start + 4 * count
    if not count or entries_at > end:
        raise RemoteProtocolError(f"a selection of {count} entries in {header.data_bytes} bytes: expected one or more")
    indexes = np.frombuffer(buffer, ">u4", count, start).astype(np.int64)
    entries = read_entries(buffer, entries_at, end, count)
    if entries.starts.size != count or entries.stop != end:
        raise RemoteProtocolError(f"a selection of {header.data_bytes} bytes: expected {count} plain entries")
    if (np.diff(indexes) <= 0).any() or indexes[-1] >= header.records:
        raise RemoteProtocolError(f"a selection of {header.records} offsets: expected indexes below it, that rise")
    return ChunkRecords(header, indexes + header.first_offset, buffer, entries.starts, entries.ends)


def encode_selection(
    whole: ChunkHeader, buffer: Readable, starts: Positions, ends: Positions, rows: Positions
) -> bytes:
    """Return some records of a user chunk as a selection in its delivered form: header and data section.

    Args:
        whole: the chunk's header.
        buffer: holds its messages.
        starts: first byte of each of its messages, inclusive.
        ends: byte after each of its messages.
        rows: the numbers of the selected messages; rising, at least one.
    """
    starts, ends = starts[rows], ends[rows]
    entries = interleave(heads(rows.size, (ends - starts, ">u4")), Ranges(buffer, starts, ends))
    data = b"".join((rows.astype(">u4").tobytes(), entries))
    header = replace(whole, kind=ChunkType.SELECTION, entries=rows.size, crc=checksum(data), data_bytes=len(data))
    return header.encode() + data
