"""A file of the spool: the events of a partition as columns, followed by an index of its blocks and checkpoints.

::

    for each block of events           an Arrow record batch (IPC message) with columns value and key
    the blocks, the checkpoints        where each block is, with its checksum; an Arrow record batch of the checkpoints
    sizes and checksum of the two, ``_MAGIC``

The driver has read the feed's lines to plan micro-batches, so tasks need not read them again.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from spark_streams.errors import SpoolLost

_EVENTS: Final = pa.schema([("value", pa.binary()), ("key", pa.string())])
_CHECKPOINTS: Final = pa.schema([("events", pa.int64()), ("cursor", pa.string())])
_BLOCK: Final = np.dtype([("at", "<i8"), ("bytes", "<i8"), ("events", "<i8"), ("checksum", "<u4")])
_TRAILER: Final = struct.Struct("<QQI8s")
_MAGIC: Final = b"\x00events1"


class Checkpoints(NamedTuple):
    """Checkpoints of a file, in order: for each, the bytes of lines and the events up to it, and its cursor."""

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


class PageRange(NamedTuple):
    """Events of one file of the spool: from number ``start``, inclusive, to ``stop``, exclusive."""

    file: str
    start: int
    stop: int


def sync(path: str) -> None:
    """Synchronise a file, or a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def faults() -> Iterator[None]:
    """Turn the errors of a file system into ``SpoolLost``."""
    try:
        yield
    except (OSError, pa.ArrowException) as fault:
        raise SpoolLost(f"spool: {fault}; is there room, and may the driver write there?") from fault


class PageFile:
    """A file of the spool while it is written.

    Args:
        file_system: the file system of the spool.
        path: the file's path there.
    """

    def __init__(self, file_system: pafs.FileSystem, path: str) -> None:
        self.size = 0
        """Number of bytes that are written."""
        self.events = 0
        """Number of events that are written."""
        self._blocks: list[tuple[int, int, int, int]] = []
        self._path = path
        self._local = isinstance(file_system, pafs.LocalFileSystem)
        with faults():
            self._stream = file_system.open_output_stream(path, compression=None)

    def write(self, block: bytes | pa.Buffer) -> None:
        """Append bytes.

        Raises:
            SpoolLost: they cannot be written.
        """
        with faults():
            self._stream.write(block)
        self.size += len(block)

    def close(self) -> None:
        """Finish the file, so that tasks can read it.

        Raises:
            SpoolLost: the file cannot be finished.
        """
        with faults():
            self._stream.close()
            if self._local:
                sync(self._path)

    def add(self, values: pa.BinaryArray, keys: pa.StringArray) -> None:
        """Append a block of events, if there are any.

        Raises:
            SpoolLost: it cannot be written.
        """
        if not len(values):
            return
        block = pa.RecordBatch.from_arrays([values, keys], schema=_EVENTS).serialize()
        self._blocks.append((self.size, block.size, len(values), google_crc32c.value(block)))
        self.write(block)
        self.events += len(values)

    def finish(self, checkpoints: Checkpoints | None) -> None:
        """Close the file, so that tasks can read it; without checkpoints no task will.

        Raises:
            SpoolLost: it cannot be finished.
        """
        if checkpoints is not None:
            columns = [pa.array(checkpoints.events), checkpoints.cursors]
            blocks = np.array(self._blocks, _BLOCK).tobytes()
            cursors = pa.RecordBatch.from_arrays(columns, schema=_CHECKPOINTS).serialize().to_pybytes()
            checksum = google_crc32c.value(blocks + cursors)
            self.write(blocks + cursors + _TRAILER.pack(len(blocks), len(cursors), checksum, _MAGIC))
        self.close()


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
