"""File primitives of the log: whole reads and writes, atomic replacement, forced writes, errors of a full disk."""

from __future__ import annotations

import errno
import logging
import os
import weakref
from pathlib import Path
from typing import Final

logger: Final = logging.getLogger("spark_streams.log")
"""Logs what people are told about the log and its files."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
READ_AHEAD_BYTES = 1 << 20
HEADERS_AHEAD_BYTES = 16 << 10
"""Bytes to read at once for batch headers: of many batches of a few small records, or the start of one large batch."""


class OpenFile:
    """An open file that closes when the last reference to this object goes.

    Nothing else closes it. So no descriptor is closed while a reader uses it, and the descriptor's number never belongs
    to another file while a write to this one is still to come.

    Args:
        path: the file; a new one may be read and written by those who may do so in its folder.
        flags: of ``os.open``.

    Raises:
        OSError: the system refused.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = os.open(path, flags, path.parent.stat().st_mode & 0o666)
        weakref.finalize(self, os.close, self.fd)


class ReadAhead:
    """A buffered part of a file, for reads at rising positions.

    Args:
        file: the file.
        end: where reads end, exclusive.
        size: how many bytes one system call reads; more where the caller wants more at once.

    Attributes:
        end: where reads end, exclusive.
    """

    def __init__(self, file: OpenFile, end: int, size: int = READ_AHEAD_BYTES) -> None:
        self._file = file
        self.end = end
        self._size = size
        self._start = 0
        self._content = b""

    def bytes_at(self, position: int, size: int) -> tuple[bytes, int]:
        """Return a buffer and the index of ``position`` in it; ``size`` bytes follow there, fewer only at the end."""
        at = position - self._start
        if at < 0 or at + size > len(self._content):
            count = min(max(size, self._size), self.end - position)
            self._start, self._content, at = position, read_exactly(self._file.fd, count, position), 0
        return self._content, at

    def view_at(self, position: int, size: int) -> memoryview:
        """Return ``size`` bytes at ``position``; fewer only at the end."""
        content, at = self.bytes_at(position, size)
        return memoryview(content)[at : at + size]


def make_directory(path: Path) -> None:
    """Create a folder where there is none, with the rights of its parent folder."""
    path.mkdir(path.parent.stat().st_mode & 0o777, exist_ok=True)


def sync_directory(path: Path) -> None:
    """Force a folder's entries (creations, renames, removals) to the disk."""
    file = OpenFile(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(file.fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by ``content``: after a crash either the old or the new content is there."""
    temporary = path.with_name(path.name + ".new")
    file = OpenFile(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(file.fd, content, 0)
        os.fsync(file.fd)
    except OSError:
        del file
        os.unlink(temporary)  # half a file would use space on a full disk
        raise
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_all(fd: int, content: bytes | memoryview, position: int) -> None:
    """Write all of ``content`` at ``position``.

    Raises:
        OSError: the system refused; some of it may have been written.
    """
    view = memoryview(content)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def read_exactly(fd: int, size: int, position: int) -> bytes:
    """Read ``size`` bytes at ``position``; fewer only where the file ends."""
    content = os.pread(fd, size, position)
    while 0 < len(content) < size and (more := os.pread(fd, size - len(content), position + len(content))):
        content += more
    return content


def is_full(fault: BaseException) -> bool:
    """Return whether an error means a full disk or quota: the same call can succeed when there is room."""
    return isinstance(fault, OSError) and fault.errno in _FULL
