"""Keeps encoded chunks outside of the process's memory: in files without a name, which are mapped to be read.

Chunks of all streams fill a file from its beginning to its end; when there are too many files the oldest is dropped
whole. The system keeps in memory what is read, and writes the rest to the disk when it needs the memory. The process
reads only files that it wrote itself: the files end with it. Chunks that are not in the cache are encoded again from
the log.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from spark_streams.log.storage.files import write_all
from spark_streams.server.counters import logger
from spark_streams.wire.rabbitmq.chunk import ChunkType

AREA_BYTES: Final = 64 << 20
AREA_CHUNKS: Final = 8_192
"""The most chunks in a file: each uses some 0.5 KB of memory, however small it is."""
AREAS: Final = 16
"""The most files: 1 GiB of chunks, or some 64 MB of memory for small ones."""

FREE_BYTES: Final = 1 << 30
"""The free space on the disk that is left to the log, in bytes: with less no file is made."""


class Chunk(NamedTuple):
    """One encoded chunk.

    Args:
        first_offset: its id, the offset of its first record.
        next_offset: 1 + its last record's offset.
        header: 48 bytes.
        data: the entries.
        ends: where in ``data`` each entry ends (exclusive); u32 for each, in the machine's byte order.
    """

    first_offset: int
    next_offset: int
    header: bytes
    data: memoryview
    ends: memoryview

    @property
    def records(self) -> int:
        """How many records it holds; of a selection (``chunk_parts.py``) those that are left."""
        return int.from_bytes(self.header[2:4] if self.header[1] == ChunkType.SELECTION else self.header[4:8], "big")

    @property
    def size(self) -> int:
        """Bytes of header and data."""
        return len(self.header) + len(self.data)


class CachedChunks:
    """Consecutive chunks that were encoded together.

    Args:
        forget: called, with the cache's lock held, when the cache drops the block.
        chunks: at least one; their ``data`` are parts of the block's ``data``, and their ``ends`` of its ``ends``, in
            their order and without gaps.
        data: the data of all chunks.
        ends: the ends of all chunks.

    Attributes:
        first: the first one's id.
        next: 1 + the last record's offset.
        area: the file that holds them; None if there is none.
    """

    __slots__ = ("area", "chunks", "data", "ends", "first", "forget", "next")

    def __init__(
        self, forget: Callable[[CachedChunks], None], chunks: list[Chunk], data: memoryview, ends: memoryview
    ) -> None:
        self.forget = forget
        self.chunks = chunks
        self.data = data
        self.ends = ends
        self.first = chunks[0].first_offset
        self.next = chunks[-1].next_offset
        self.area: Area | None = None


class Area:
    """A file without a name that is filled from its beginning to its end.

    It lives as long as any part of it is referenced, also by a socket that has not sent it yet.

    Args:
        folder: where it is made; None for the system's folder for temporary files.
        size: its size in bytes.

    Raises:
        OSError: the system refused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, size: int) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - it ends with the area
        os.ftruncate(self._file.fileno(), size)
        self._bytes = memoryview(mmap.mmap(self._file.fileno(), size, prot=mmap.PROT_READ))
        self._used = 0
        self._chunks = 0
        self.blocks: set[CachedChunks] = set()

    def takes(self, size: int, chunks: int) -> bool:
        """Return whether there is room for ``size`` more bytes and ``chunks`` more chunks."""
        return self._used + size <= len(self._bytes) and self._chunks + chunks <= AREA_CHUNKS

    def put(self, data: memoryview, chunks: int) -> memoryview:
        """Write bytes and return a view of them in the file; raise OSError when the system refuses."""
        # A write, not a store through the mapping: with a full disk a write raises, and a store gets a signal.
        write_all(self._file.fileno(), data, self._used)
        start, self._used = self._used, self._used + len(data)
        self._chunks += chunks
        return self._bytes[start : self._used]


class ChunkCache:
    """The encoded chunks of all partitions of a node; used by several threads, under ``lock``.

    Args:
        folder: where files may be made; None for the system's folder for temporary files.
        area_bytes: size of a file; a larger block is not kept.
        areas: the most files.

    Attributes:
        lock: owners hold it too, while they read or change the list of their blocks.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, area_bytes: int = AREA_BYTES, areas: int = AREAS
    ) -> None:
        self.lock = threading.RLock()
        self._folder = folder
        self._area_bytes = area_bytes
        self._most = areas
        self._areas: deque[Area] = deque()
        self._failing = False

    def add(self, block: CachedChunks) -> bool:
        """Keep a block and drop the oldest ones; return whether it is kept: its bytes lie in the cache then."""
        try:
            area = self._with_room(len(block.data) + len(block.ends), len(block.chunks))
            if area is None:
                return False
            kept, ends = area.put(block.data, len(block.chunks)), area.put(block.ends, 0)
        except OSError as fault:
            if not self._failing:
                logger.warning("chunks are not kept, but encoded each time that they are read: %s", fault)
            self._failing = True
            return False
        self._failing = False
        at = ends_at = 0
        for index, chunk in enumerate(block.chunks):
            end, ends_end = at + len(chunk.data), ends_at + len(chunk.ends)
            block.chunks[index] = chunk._replace(data=kept[at:end], ends=ends[ends_at:ends_end])
            at, ends_at = end, ends_end
        block.data, block.ends = kept, ends
        area.blocks.add(block)
        block.area = area
        return True

    def _with_room(self, size: int, chunks: int) -> Area | None:
        if size > self._area_bytes or chunks > AREA_CHUNKS:
            return None
        if self._areas and self._areas[-1].takes(size, chunks):
            return self._areas[-1]
        while len(self._areas) >= self._most:
            for block in self._areas.popleft().blocks:
                block.forget(block)
        if shutil.disk_usage(self._folder or tempfile.gettempdir()).free < FREE_BYTES:
            raise OSError(errno.ENOSPC, f"less than {FREE_BYTES >> 20} MiB are free on the disk")
        area = Area(self._folder, self._area_bytes)
        self._areas.append(area)
        return area

    def remove(self, block: CachedChunks) -> None:
        """Drop a block, and its file if it was the last block in it."""
        area = block.area
        if area is not None:
            area.blocks.discard(block)
            if not area.blocks:
                self._areas.remove(area)
