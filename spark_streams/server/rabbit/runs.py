"""Parts of a chunk: the runs of its records that a filtered subscription wants, each a chunk of its own.

A run has the offset of its first record as its id and its own counts, sizes and CRC, so to a client it is a chunk like
any. The records of a short gap between two runs are sent along where that takes fewer bytes than another chunk does.

Spec: notes, sections 3 and 9.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.server.rabbit.chunk_cache import Chunk
from spark_streams.wire.rabbit.chunk import HEADER_BYTES, ChunkHeader
from spark_streams.wire.rabbit.entries import read_entries

__all__ = ["CHUNK_BYTES", "runs_of"]

CHUNK_BYTES: Final = HEADER_BYTES + 9
"""What a chunk takes beside its entries: its header, and what a Deliver frame (version 1) has in front of it."""

Mask = NDArray[np.bool_]


def runs_of(chunk: Chunk, wanted: Mask) -> list[Chunk]:
    """Return the parts of a chunk that hold its wanted records, in their order.

    Args:
        chunk: of plain entries.
        wanted: of each of its records; at least one is.
    """
    if wanted.all():
        return [chunk]
    edges = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0))
    firsts, ends = edges[::2], edges[1::2]
    entries = read_entries(chunk.data, 0, len(chunk.data), len(wanted))
    stops = entries.ends
    begins = np.concatenate(([0], stops[:-1]))
    apart = begins[firsts[1:]] - stops[ends[:-1] - 1] > CHUNK_BYTES
    firsts = firsts[np.concatenate(([True], apart))]
    ends = ends[np.concatenate((apart, [True]))]
    whole = ChunkHeader.decode(chunk.header, 0, HEADER_BYTES)
    runs = []
    spans = zip(firsts.tolist(), ends.tolist(), begins[firsts].tolist(), stops[ends - 1].tolist(), strict=True)
    for first, end, begin, stop in spans:
        data = chunk.data[begin:stop]
        count, offset = end - first, chunk.first_offset + first
        header = ChunkHeader(
            whole.kind, count, count, whole.timestamp_ms, whole.epoch, offset, zlib.crc32(data), stop - begin
        )
        runs.append(Chunk(offset, offset + count, chunk.timestamp_ms, header.encode(), data))
    return runs
