"""Keeps short what happens between two tasks of a Python worker that Spark reuses; a micro-batch needs several.

Between two tasks PySpark does two things whose time grows with all that the worker has ever imported:

- its daemon collects garbage over every object of the process (``pyspark/daemon.py``, after each task);
- its worker, before Spark 4.3, drops the finders' caches, and a finder of a zip archive reads the archive's directory
  again at once, on Python 3.10 to 3.12 (``setup_spark_files`` in PySpark, ``zipimporter.invalidate_caches``).

Both are Spark's and a worker may be another's in its next task, so neither is left out: objects that are there after
the first task of ours are no longer searched for garbage, as they are modules, and an archive is read again when it has
changed. docs/spark-upstream.md has the measurement, and what Spark could do.
"""

from __future__ import annotations

import gc
import os
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
    if _eased or not os.environ.get("SPARK_REUSE_WORKER"):
        return
    _eased = True
    read: dict[str, _Stamp | None] = {}
    for path, finder in sys.path_importer_cache.items():
        if type(finder) is zipimport.zipimporter:
            if finder.archive not in read:
                read[finder.archive] = _stamp(finder.archive)
                finder.invalidate_caches()  # what Python remembers may be older than the archive
            sys.path_importer_cache[path] = _ArchiveFinder(path, read[finder.archive])
    # What is garbage now would stay for ever.
    gc.collect()
    gc.freeze()


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
        """Forget the directory if the archive is another one than when it was read."""
        now = _stamp(self.archive)  # first: a change while the directory is read is then seen next time
        if now is None or now != self._read:
            self._read = now
            super().invalidate_caches()


def _stamp(archive: str) -> _Stamp | None:
    """Return what differs after each change of a file, as every write sets its ctime; None without the file."""
    try:
        now = os.stat(archive)
    except OSError:
        return None
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
