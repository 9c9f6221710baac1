"""Shortens the work that Spark does around a task of a Python worker; a micro-batch has several tasks.

Between two tasks PySpark does two things whose time grows with all that the worker has ever imported:

- its daemon collects garbage over every object of the process (``pyspark/daemon.py``, after each task);
- its worker, before Spark 4.3, drops the finders' caches, and a finder of a zip archive reads the archive's directory
  again at once, on Python 3.10 to 3.12 (``setup_spark_files`` in PySpark, ``zipimporter.invalidate_caches``).

Both are Spark's, and a worker may run a task of another user next, so neither is left out: objects that exist after our
first task are no longer searched for garbage, as they belong to modules, and an archive is read again when it has
changed.

At the beginning of a task the worker waits some 40 ms for its rows, because the kernel holds them back at the JVM's
socket.

docs/spark-upstream.md has the measurements, and what Spark could do.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import zipimport
from typing import TypeAlias

_Stamp: TypeAlias = tuple[int, ...]

_eased = False


def ease_reuse() -> None:
    """Make the reuse of this worker cheap: call it at the end of a task; it does something in the first one only.

    In a process that is no reused worker of Spark's it does nothing.
    """
    global _eased
    if _eased or not is_reused():
        return
    _eased = True
    read: dict[str, _Stamp | None] = {}
    for path, finder in sys.path_importer_cache.items():
        if type(finder) is zipimport.zipimporter:
            if finder.archive not in read:
                read[finder.archive] = _stamp(finder.archive)
                finder.invalidate_caches()  # Python's cache may be older than the archive
            sys.path_importer_cache[path] = _ArchiveFinder(path, read[finder.archive])
    # Otherwise the present garbage would never be collected.
    gc.collect()
    gc.freeze()


def is_reused() -> bool:
    """Return whether this process is a worker of Spark's that takes another task after this one."""
    return bool(os.environ.get("SPARK_REUSE_WORKER"))


def acknowledge_at_once() -> None:
    """Make this process acknowledge at once what it gets from the JVM: call it in each task, before rows are read.

    The JVM writes a task's command and its rows apart. Its socket keeps the second until the first is acknowledged, as
    it is short of a segment (Nagle's algorithm, RFC 1122 §4.2.3.4), and the kernel on this side acknowledges late, in
    case there is an answer to send with it (§4.2.3.2). It does so again once the worker has answered. The option is set
    on all connections, as Spark does not give access to the one to the JVM; on another one it costs one more packet, at
    most. Elsewhere than on Linux it does nothing.
    """
    if sys.platform != "linux":
        return
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                # AF_UNIX with spark.python.unix.domain.socket.enabled, which has no such delay.
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:
            continue  # closed by another thread meanwhile


class _ArchiveFinder(zipimport.zipimporter):
    """Finds the modules of a zip archive, and reads its directory again only when the archive has changed.

    Args:
        path: the archive, or a folder in it.
        read: the archive's stamp from before its directory was read.
    """

    def __init__(self, path: str, read: _Stamp | None) -> None:
        super().__init__(path)
        self._read = read

    def invalidate_caches(self) -> None:
        """Forget the directory if the archive has changed since it was read."""
        now = _stamp(self.archive)  # first: a change while the directory is read is then seen next time
        if now is None or now != self._read:
            self._read = now
            super().invalidate_caches()


def _stamp(archive: str) -> _Stamp | None:
    """Return a stamp that each change of a file changes, as every write sets its ctime; None without the file."""
    try:
        now = os.stat(archive)
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
