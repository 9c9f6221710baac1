"""The end of a file of the spool: where events and cursors are in its lines, and checksums of these lines.

The driver has found them to plan micro-batches, so tasks need not search again::

    lines                                        as the feed sent them
    for each block of them                       where it is in the file, its checksum, its places
    size and checksum of the blocks' entries, ``_MAGIC``

Only blocks that the driver has read in bulk have an entry; tasks parse the other lines. Nothing here is needed to read
the lines: of a file without this end, all lines are parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import google_crc32c
import pyarrow as pa

from spark_streams.client.feed import Dialect, LineBlocks, LinePlaces, Lines, lines_at, parse_lines
from spark_streams.errors import SpoolLost
from spark_streams.spark.feed.spool import PageRange

READ_BYTES: Final = 1 << 20
_MAGIC: Final = b"\x00places1"
"""The last bytes of a file; lines end with a newline."""
_ENTRY: Final = struct.Struct("<QQII")
_TRAILER: Final = struct.Struct("<QI8s")


class IndexedBlock(NamedTuple):
    """Lines from byte ``start`` of a file, inclusive, to ``stop``, exclusive, with their CRC-32C and their places."""

    start: int
    stop: int
    checksum: int
    places: memoryview


@dataclass
class PageIndex:
    """The blocks of one file whose places are known, in order."""

    _parts: list[bytes] = field(default_factory=list)

    def add(self, start: int, block: bytes, places: LinePlaces) -> None:
        """Add a block of lines.

        Args:
            start: where it is in the file.
            block: the lines.
            places: where events and cursors are in the block.
        """
        stored = places.to_bytes()
        checksum = google_crc32c.value(block)
        self._parts += [_ENTRY.pack(start, start + len(block), checksum, len(stored)), stored]

    def to_bytes(self) -> bytes:
        """Return the end of the file."""
        entries = b"".join(self._parts)
        return entries + _TRAILER.pack(len(entries), google_crc32c.value(entries), _MAGIC)


def read_index(file: pa.NativeFile) -> list[IndexedBlock]:
    """Return the indexed blocks of a file, in order; none for a file without an index.

    Raises:
        SpoolLost: the index is damaged.
    """
    size = file.size()
    if size < _TRAILER.size:
        return []
    length, checksum, magic = _TRAILER.unpack(file.read_at(_TRAILER.size, size - _TRAILER.size))
    if magic != _MAGIC:
        return []
    first = size - _TRAILER.size - length
    entries = file.read_at(length, first) if first >= 0 else b""
    if len(entries) != length or google_crc32c.value(entries) != checksum:
        raise SpoolLost("its index is damaged: it differs from its checksum")
    stored = memoryview(entries)
    found: list[IndexedBlock] = []
    at = 0
    while at < length:
        start, stop, checksum, count = _ENTRY.unpack_from(stored, at)
        at += _ENTRY.size
        found.append(IndexedBlock(start, stop, checksum, stored[at : at + count]))
        at += count
    return found


def read_lines(
    file: pa.NativeFile, page: PageRange, dialect: Dialect, partition: int, max_line_bytes: int
) -> Iterator[Lines]:
    """Yield the events and cursors of a page, in order; its blocks end where they ended when they were written.

    Raises:
        OSError: the file is shorter than the page.
        SpoolLost: the lines, or their index, are damaged.
        RemoteProtocolError: a line is malformed.
    """
    at = page.start
    for block in read_index(file):
        first, stop = max(block.start, at), min(block.stop, page.stop)
        if first >= stop:
            continue
        for piece in _blocks(file, at, first, max_line_bytes):
            yield parse_lines(piece, dialect, partition)
        lines = _read(file, block.start, block.stop)
        if google_crc32c.value(lines) != block.checksum:
            raise SpoolLost(f"its bytes {block.start} to {block.stop} are damaged: they differ from their checksum")
        wanted = memoryview(lines)[first - block.start : stop - block.start]
        places = LinePlaces.from_bytes(block.places).between(first - block.start, stop - block.start)
        # The lines tell what is wrong with an event, in the words of the line that has it.
        yield lines_at(wanted, places) or parse_lines(wanted, dialect, partition)
        at = stop
    for piece in _blocks(file, at, page.stop, max_line_bytes):
        yield parse_lines(piece, dialect, partition)


def _blocks(file: pa.NativeFile, at: int, stop: int, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines between two bytes of a file in blocks of whole lines."""
    lines = LineBlocks(max_line_bytes)
    while at < stop:
        piece = _read(file, at, min(at + READ_BYTES, stop))
        at += len(piece)
        yield from lines.feed(piece)


def _read(file: pa.NativeFile, start: int, stop: int) -> bytes:
    """Return the bytes between two places of a file."""
    piece: bytes = file.read_at(stop - start, start)
    if len(piece) < stop - start:
        raise OSError("it ended early")
    return piece
