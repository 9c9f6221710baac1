"""Cuts out of a chunk the records that a filtered subscription wants.

Any client gets them as runs, each a chunk of its own; a client that reports that it accepts selections gets them as one
selection. A run has the offset of its first record as its id and its own counts, sizes and CRC, so a client sees it as
an ordinary chunk. The records of a short gap between two runs are sent too where they take fewer bytes than another
chunk does.

Spec: docs/specifications.md, S-31 to S-34, S-93.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_streams.server.rabbitmq.chunk_cache import Chunk
from spark_streams.wire.columnar.byte_view import Mask, Positions
from spark_streams.wire.rabbitmq.chunk import HEADER_BYTES, ChunkHeader, checksum, encode_selection

CHUNK_BYTES: Final = HEADER_BYTES + 9
"""Bytes of a chunk besides its entries: its header, and the head of a Deliver frame (version 1) before it."""

NO_ENDS: Final = memoryview(b"")
"""The ``ends`` of a part: a part needs none, since no part is cut from a part."""


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
    begins, stops = _edges(chunk)
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
            whole.kind, count, count, whole.timestamp_ms, whole.epoch, offset, checksum(data), stop - begin,
            whole.trailer_bytes, whole.bloom_bytes,
        )  # fmt: skip
        part = chunk._replace(
            first_offset=offset, next_offset=offset + count, header=header.encode(), data=data, ends=NO_ENDS
        )
        runs.append(part)
    return runs


def selection_of(chunk: Chunk, wanted: Mask) -> Chunk:
    """Return the wanted records of a chunk as one selection; the chunk itself when that is smaller.

    Args:
        chunk: of plain entries.
        wanted: of each of its records; at least one is.
    """
    if wanted.all():
        return chunk
    begins, stops = _edges(chunk)
    whole = ChunkHeader.decode(chunk.header, 0, HEADER_BYTES)
    encoded = encode_selection(whole, chunk.data, begins + 4, stops, np.flatnonzero(wanted))
    if len(encoded) >= chunk.size:
        return chunk
    return chunk._replace(header=encoded[:HEADER_BYTES], data=memoryview(encoded)[HEADER_BYTES:], ends=NO_ENDS)


def _edges(chunk: Chunk) -> tuple[Positions, Positions]:
    """Return where each entry begins in the data, its length first, and where it ends (exclusive)."""
    stops = np.frombuffer(chunk.ends, np.uint32).astype(np.int64)
    return np.concatenate(([0], stops[:-1])), stops
