"""A file of the spool: the events of a partition as columns, and behind them where its blocks and checkpoints are.

::

    for each block of events           an Arrow record batch (IPC message) with columns value and key
    the blocks, the checkpoints        where each block is, with its checksum; an Arrow record batch of the checkpoints
    sizes and checksum of the two, ``_MAGIC``

The driver has read the feed's lines to plan micro-batches, so tasks need not read them again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.errors import SpoolLost
from spark_streams.spark.feed.spool import PageRange, PageWriter

_EVENTS: Final = pa.schema([("value", pa.binary()), ("key", pa.string())])
_CHECKPOINTS: Final = pa.schema([("events", pa.int64()), ("cursor", pa.string())])
_BLOCK: Final = np.dtype([("at", "<i8"), ("bytes", "<i8"), ("events", "<i8"), ("checksum", "<u4")])
_TRAILER: Final = struct.Struct("<QQI8s")
_MAGIC: Final = b"\x00events1"


class Checkpoints(NamedTuple):
    """Checkpoints of a file, in order: the bytes of its lines and the events up to each, and its cursor."""

    ends: npt.NDArray[np.int64]
    events: npt.NDArray[np.int64]
    cursors: pa.StringArray

    @classmethod
    def joined(cls, blocks: Sequence[Checkpoints]) -> Checkpoints:
        """Return the checkpoints of a file's blocks, in order."""
        ends, events, cursors = zip(*blocks, strict=True)
        return cls(np.concatenate(ends), np.concatenate(events), pa.concat_arrays(cursors))


class Events(NamedTuple):
    """Events of a file; ``covered`` has the number of them up to each of the file's checkpoints, 0 or less before."""

    values: pa.BinaryArray
    keys: pa.StringArray
    covered: npt.NDArray[np.int64]
    cursors: pa.StringArray


class PageFile:
    """A file while it is written.

    Args:
        writer: writes its bytes.
    """

    def __init__(self, writer: PageWriter) -> None:
        self._writer = writer
        self._blocks: list[tuple[int, int, int, int]] = []
        self.events = 0
        """Number of events that are written."""

    @property
    def size(self) -> int:
        """Number of bytes that are written."""
        return self._writer.size

    def add(self, values: pa.BinaryArray, keys: pa.StringArray | None) -> None:
        """Append a block of events, if there are any.

        Raises:
            SpoolLost: it cannot be written.
        """
        if not len(values):
            return
        keys = pa.nulls(len(values), pa.string()) if keys is None else keys
        block = pa.RecordBatch.from_arrays([values, keys], schema=_EVENTS).serialize()
        self._blocks.append((self.size, block.size, len(values), google_crc32c.value(block)))
        self._writer.write(block)
        self.events += len(values)

    def finish(self, checkpoints: Checkpoints | None) -> None:
        """Close the file, so that tasks can read it; without checkpoints nobody will.

        Raises:
            SpoolLost: it cannot be finished.
        """
        if checkpoints is not None:
            columns = [pa.array(checkpoints.events), checkpoints.cursors]
            blocks = np.array(self._blocks, _BLOCK).tobytes()
            cursors = pa.RecordBatch.from_arrays(columns, schema=_CHECKPOINTS).serialize().to_pybytes()
            checksum = google_crc32c.value(blocks + cursors)
            self._writer.write(blocks + cursors + _TRAILER.pack(len(blocks), len(cursors), checksum, _MAGIC))
        self._writer.close()


def read_events(file: pa.NativeFile, page: PageRange) -> Iterator[Events]:
    """Yield the events of a page, in order and in blocks as they were written.

    Raises:
        OSError: the file cannot be read.
        SpoolLost: the file was cut, or is damaged.
    """
    tail = file.size() - _TRAILER.size
    trailer = _read(file, tail, _TRAILER.size) if tail >= 0 else b""
    if not trailer.endswith(_MAGIC):
        raise SpoolLost(f"its end is missing after {file.size()} bytes: the file was cut")
    sizes, cursors_size, checksum, _ = _TRAILER.unpack(trailer)
    index = _read(file, tail - sizes - cursors_size, sizes + cursors_size)
    if google_crc32c.value(index) != checksum:
        raise SpoolLost("its index is damaged: it differs from its checksum")
    checkpoints = pa.ipc.read_record_batch(pa.py_buffer(index[sizes:]), _CHECKPOINTS)
    covered = np.asarray(checkpoints.column("events"))
    first = 0
    for at, size, count, checksum in np.frombuffer(index[:sizes], _BLOCK).tolist():
        start, stop = max(page.start - first, 0), min(page.stop - first, count)
        if start < stop:
            block = _read(file, at, size)
            if google_crc32c.value(block) != checksum:
                raise SpoolLost(f"its events {first} to {first + count} are damaged: they differ from their checksum")
            events = pa.ipc.read_record_batch(pa.py_buffer(block), _EVENTS).slice(start, stop - start)
            values, keys = events.columns
            yield Events(values, keys, covered - first - start, checkpoints.column("cursor"))
        first += count
    if first < page.stop:
        raise SpoolLost(f"it has {first} events, {page.stop} were planned: it is another file")


def _read(file: pa.NativeFile, start: int, size: int) -> bytes:
    """Return the bytes at a place of a file."""
    piece: bytes = file.read_at(size, start) if start >= 0 else b""
    if len(piece) < size:
        raise SpoolLost(f"it ends before byte {start + size}: the file was cut")
    return piece
