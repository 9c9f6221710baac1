"""Files that are there whole or not at all, and reads and writes that do not stop half way."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["read_exactly", "sync_directory", "write_all", "write_atomically"]


def sync_directory(path: Path) -> None:
    """Force a folder's entries (creations, renames, removals) to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by ``content``: after a crash either the old or the new content is there."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, content, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_all(fd: int, content: bytes, position: int) -> None:
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
    if len(content) == size or not content:
        return content
    parts = [content]
    got = len(content)
    while got < size:
        more = os.pread(fd, size - got, position + got)
        if not more:
            break
        parts.append(more)
        got += len(more)
    return b"".join(parts)
