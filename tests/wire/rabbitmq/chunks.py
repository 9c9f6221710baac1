"""Chunks for tests: written as they are delivered, and read as a broker stores them.

::

    stored                     header(48) bloom filter data trailer: the header says how large each is
    data of a tracking chunk   one plain entry: tracking blocks
    trailer                    tracking blocks
    block                      type(u8) id length(u8) id value
        0  sequence     value: last publishing id(u64);  in a snapshot: chunk id(u64) last publishing id(u64)
        1  offset       value: stored offset(u64)
        2  timestamp    value: ms since the epoch(i64)
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_streams.wire.columnar.interleave import Ranges, interleave
from spark_streams.wire.rabbitmq.chunk import HEADER_BYTES, ChunkHeader, ChunkRecords, ChunkType, decode_chunk

SEQUENCE, OFFSET = 0, 1


class Tracking(NamedTuple):
    """One block: what a broker remembers of a publisher or consumer; ``chunk_id`` of a sequence in a snapshot."""

    type: int
    reference: bytes
    value: int
    chunk_id: int | None = None


class StoredChunk(NamedTuple):
    """A stored chunk's sections; ``end`` is where the next one begins."""

    header: ChunkHeader
    bloom: bytes
    records: ChunkRecords
    tracking: tuple[Tracking, ...]
    trailer: tuple[Tracking, ...]
    end: int


def encode_chunk(
    buffer: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    *,
    first_offset: int = 0,
    timestamp_ms: int = 0,
    epoch: int = 1,
) -> bytes:
    """Return a user chunk as it is delivered: header and data, of messages that lie anywhere in ``buffer``."""
    count = starts.size
    heads = (ends - starts).astype(">u4").view(np.uint8).reshape(-1, 4)
    data = interleave(heads, Ranges(buffer, starts, ends))
    header = ChunkHeader(0, count, count, timestamp_ms, epoch, first_offset, zlib.crc32(data), len(data))
    return b"".join((header.encode(), data))


def decode_stored_chunk(raw: bytes, start: int) -> StoredChunk:
    """Read the chunk that begins at ``start``."""
    header = ChunkHeader.decode(raw, start, len(raw))
    bloom_at = start + HEADER_BYTES
    data_at = bloom_at + header.bloom_bytes
    trailer_at = data_at + header.data_bytes
    end = trailer_at + header.trailer_bytes
    assert end <= len(raw)
    as_delivered = raw[start:bloom_at] + raw[data_at:trailer_at]
    records = decode_chunk(as_delivered, 0, len(as_delivered))
    tracking: tuple[Tracking, ...] = ()
    if header.kind in (ChunkType.TRACKING_DELTA, ChunkType.TRACKING_SNAPSHOT):
        (length,) = struct.unpack_from(">I", raw, data_at)
        assert length == header.data_bytes - 4
        tracking = decode_tracking(raw[data_at + 4 : trailer_at], snapshot=header.kind == ChunkType.TRACKING_SNAPSHOT)
    return StoredChunk(header, raw[bloom_at:data_at], records, tracking, decode_tracking(raw[trailer_at:end]), end)


def decode_tracking(block: bytes, *, snapshot: bool = False) -> tuple[Tracking, ...]:
    """Read the blocks that stand behind one another."""
    found = []
    at = 0
    while at < len(block):
        kind, length = struct.unpack_from(">BB", block, at)
        name = block[at + 2 : at + 2 + length]
        layout = ">QQ" if snapshot and kind == SEQUENCE else {SEQUENCE: ">Q", OFFSET: ">Q", 2: ">q"}[kind]
        *chunk_id, value = struct.unpack_from(layout, block, at + 2 + length)
        found.append(Tracking(kind, name, value, *chunk_id))
        at += 2 + length + struct.calcsize(layout)
    return tuple(found)
