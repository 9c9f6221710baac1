"""A disk that is full when a test says so: what the system would refuse is refused where the log calls the system.

As on a real one a file grows by as many bytes as there is room for, and what lies inside a file can be overwritten.
What is removed gives its room back only when the test says so.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """The disk below a folder.

    Args:
        root: the folder.
        monkeypatch: of the test.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self._room: int | None = None
        self._pwrite, self._open, self._connect = os.pwrite, os.open, sqlite3.connect
        monkeypatch.setattr(os, "pwrite", self._writing)
        monkeypatch.setattr(os, "open", self._opening)
        monkeypatch.setattr(sqlite3, "connect", self._connecting)

    def fill(self, room: int = 0) -> None:
        """Leave room for so many bytes."""
        self._room = room

    def free(self) -> None:
        """Make room."""
        self._room = None

    @property
    def full(self) -> bool:
        """Whether nothing can be added."""
        return self._room == 0

    def _writing(self, fd: int, content: Any, position: int) -> int:
        if self._room is None or not os.readlink(f"/proc/self/fd/{fd}").startswith(self._root):
            return self._pwrite(fd, content, position)
        growth = max(0, position + len(content) - os.fstat(fd).st_size)
        missing = max(0, growth - self._room)
        self._room -= growth - missing
        if missing >= len(content):
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._pwrite(fd, memoryview(content)[: len(content) - missing], position)

    def _opening(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        new = flags & os.O_CREAT and str(path).startswith(self._root) and not os.path.exists(path)
        if new and self.full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return self._open(path, flags, mode, **more)

    def _connecting(self, path: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if disk.full and sql.startswith(("INSERT", "DELETE")):
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(sql, *values)

        return self._connect(path, *arguments, factory=Connection, **named)
