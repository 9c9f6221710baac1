"""Chunks as they are stored, with all four sections; delivered ones have two of them (chunk.py).

::

    header(48) bloom filter data trailer      the header says how large each is; the CRC is of the data alone
    data of a tracking chunk                  one plain entry: tracking blocks
    trailer                                   tracking blocks

Spec: docs/specifications.md, S-51 to S-53; osiris_log.erl.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.rabbit.chunk import (
    HEADER_BYTES,
    ChunkHeader,
    ChunkRecords,
    ChunkType,
    check_data,
    decode_data,
)
from spark_streams.wire.rabbit.compression import Readable
from spark_streams.wire.rabbit.entries import read_entries
from spark_streams.wire.rabbit.tracking import Tracking, decode_tracking, encode_tracking

__all__ = ["StoredChunk", "decode_stored_chunk", "encode_stored_chunk", "encode_tracking_chunk"]


@dataclass(frozen=True)
class StoredChunk:
    """A stored chunk's sections.

    Args:
        header: of the chunk.
        bloom: its filter; empty when no record has a filter value.
        records: of a user chunk; none in others.
        tracking: of a tracking chunk: what its entry holds.
        trailer: of a user chunk.
        end: byte after the chunk, exclusive: where the next one begins.
    """

    header: ChunkHeader
    bloom: bytes
    records: ChunkRecords
    tracking: tuple[Tracking, ...]
    trailer: tuple[Tracking, ...]
    end: int


def decode_stored_chunk(buffer: Readable, start: int, end: int, *, check_crc: bool = True) -> StoredChunk:
    """Read the chunk that begins at ``start``.

    Args:
        buffer: the bytes.
        start: of the chunk, inclusive.
        end: where it ends at the latest, exclusive.
        check_crc: whether to verify the data section's CRC.

    Raises:
        RemoteProtocolError: whatever is wrong with the bytes.
    """
    header = ChunkHeader.decode(buffer, start, end)
    bloom_at = start + HEADER_BYTES
    data_at = bloom_at + header.bloom_bytes
    trailer_at = data_at + header.data_bytes
    stop = trailer_at + header.trailer_bytes
    if stop > end:
        raise RemoteProtocolError(f"a stored chunk of {stop - start} bytes: {end - start} are there")
    if check_crc:
        check_data(header, buffer, data_at)
    records = decode_data(header, buffer, data_at)
    tracking: list[Tracking] = []
    if header.kind in (ChunkType.TRACKING_DELTA, ChunkType.TRACKING_SNAPSHOT):
        entry = read_entries(buffer, data_at, trailer_at, 1)
        if entry.starts.size != 1 or entry.stop != trailer_at:
            raise RemoteProtocolError(
                f"a tracking chunk of {header.data_bytes} bytes of data: expected one plain entry"
            )
        block = memoryview(buffer)[data_at + 4 : trailer_at]
        tracking = decode_tracking(block, snapshot=header.kind == ChunkType.TRACKING_SNAPSHOT)
    trailer = decode_tracking(memoryview(buffer)[trailer_at:stop])
    return StoredChunk(header, bytes(buffer[bloom_at:data_at]), records, tuple(tracking), tuple(trailer), stop)


def encode_stored_chunk(chunk: bytes, bloom: bytes = b"", trailer: Collection[Tracking] = ()) -> bytes:
    """Return a chunk as it is stored.

    Args:
        chunk: as it is delivered: header and data.
        bloom: its filter, at most 255 bytes.
        trailer: what is to be remembered of publishers and consumers.

    Raises:
        LocalProtocolError: a section that is too large.
    """
    header = ChunkHeader.decode(chunk, 0, len(chunk))
    tail = encode_tracking(trailer)
    head = replace(header, bloom_bytes=len(bloom), trailer_bytes=len(tail)).encode()
    return b"".join((head, bloom, memoryview(chunk)[HEADER_BYTES : HEADER_BYTES + header.data_bytes], tail))


def encode_tracking_chunk(
    kind: ChunkType, tracking: Collection[Tracking], *, offset: int, timestamp_ms: int, epoch: int = 1
) -> bytes:
    """Return a tracking chunk, which uses up one offset.

    Args:
        kind: delta or snapshot.
        tracking: the blocks; in a snapshot a sequence has a chunk id.
        offset: that it uses up: the chunk's id.
        timestamp_ms: since the epoch.
        epoch: of the leader.

    Raises:
        LocalProtocolError: a user chunk, or a block that cannot be written.
    """
    if kind == ChunkType.USER:
        raise LocalProtocolError("a tracking chunk of type 0: expected 1 or 2")
    block = encode_tracking(tracking, snapshot=kind == ChunkType.TRACKING_SNAPSHOT)
    data = struct.pack(">I", len(block)) + block
    return ChunkHeader(kind, 1, 1, timestamp_ms, epoch, offset, zlib.crc32(data), len(data)).encode() + data
