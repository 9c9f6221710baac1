"""Imports the modules that Spark's Python processes are forked with (``fork_server.py``), and detects changed files.

An upgrade under a running JVM leaves old modules in processes that have imported them, and new modules in files. The
two do not fit together in one process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Final

PRELOADED: Final = (
    *("pyarrow.compute", "ssl", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read"),
    *("spark_streams.spark.formats", "spark_streams.spark.source.reader", "spark_streams.spark.sink.writer"),
    *("spark_streams.filters.row_columns", "spark_streams.wire.amqp.columns.decode", "spark_streams.client.tcp"),
    "encodings.idna",  # for names of hosts
)
"""The modules that the server imports: nearly all that the modules which Spark runs import, and the common ones of all
formats. None may start threads that do not survive a fork. The other modules which Spark runs are left out, as some
code looks for one of them to learn which step it is in (``spark/pushdown/spark_filters.py`` does).
"""
THREADS: Final = "OMP_NUM_THREADS"
_RENEWED: Final = ("spark_streams", "pyspark")
"""Packages that can be imported again in a process; NumPy and PyArrow cannot."""


def preload() -> dict[str, int]:
    """Import the modules that all processes need, and exclude them from garbage collection.

    Returns:
        File of each loaded module to its last change, in nanoseconds since the epoch; empty where a file has changed
        meanwhile, so that old and new modules may have been loaded.
    """
    import gc
    import importlib
    import time
    import warnings

    began_ns = time.time_ns()
    gc.disable()  # modules are no garbage, and searching them would take a fifth of the time
    # PyArrow's allocator has a thread, which it starts again after a fork; Python cannot know that it does.
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    os.environ[THREADS] = "1"
    for module in PRELOADED:
        with contextlib.suppress(ImportError):  # a process that needs it reports what is missing
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    specs = [getattr(module, "__spec__", None) for module in sys.modules.values()]
    loaded = _changes({getattr(spec.loader, "archive", spec.origin) for spec in specs if spec and spec.has_location})
    return loaded if max(loaded.values()) < began_ns else {}


def has_changed(loaded: dict[str, int]) -> bool:
    """Whether a file has changed since it was loaded, so that modules imported from now on may not fit the rest."""
    return loaded != _changes(loaded)


def reseed() -> None:
    """Reseed NumPy's random numbers in a forked process if they are loaded, as NumPy 1 does; Python reseeds its own."""
    if random := sys.modules.get("numpy.random"):
        random.seed()


def renew(loaded: dict[str, int]) -> None:
    """Bring a worker that a daemon has forked to the state of one that imports all its modules itself.

    Where a file has changed, the modules that can be imported again are dropped. In processes that the worker forks
    this does nothing, as they already have objects of these modules.
    """
    if loaded:
        reseed()
        changed = has_changed(loaded)
        loaded.clear()
        for name in [name for name in sys.modules if changed and name.partition(".")[0] in _RENEWED]:
            del sys.modules[name]


def _changes(files: Iterable[str]) -> dict[str, int]:
    """Return when each file was changed: its ctime in ns, as installers set mtime freely; 0 for a file that is gone."""
    changes = dict.fromkeys(files, 0)
    for file in changes:
        with contextlib.suppress(OSError):
            changes[file] = os.stat(file).st_ctime_ns
    return changes
