"""Imports what Spark's Python processes are forked with (``fork_server.py``), and sees when its files change.

An upgrade under a living JVM leaves old modules in what has imported them, and new ones in files: both in one process
would not fit each other.
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
    "encodings.idna",  # of hosts' names
)
"""What the server imports: nearly all that the other modules that Spark runs import, and what all formats share.

None may start threads that do not bear a fork. The modules that Spark runs are left out themselves, as some code looks
for one of them to learn which step it is in (``spark/pushdown/spark_filters.py`` does).
"""
THREADS: Final = "OMP_NUM_THREADS"
_RENEWED: Final = ("spark_streams", "pyspark")
"""Packages that bear to be imported again in a process; NumPy and PyArrow do not."""


def preload() -> dict[str, int]:
    """Import what all processes need, and leave it out of their searches for garbage.

    Returns:
        for the file of each loaded module when it was last changed, in nanoseconds since the epoch; nothing where one
        changed meanwhile, so that old and new ones may have been loaded.
    """
    import gc
    import importlib
    import time
    import warnings

    began_ns = time.time_ns()
    gc.disable()  # modules are no garbage: a fifth of the time would go to searching them for some
    # PyArrow's allocator has a thread, which it starts again after a fork; Python cannot know that it does.
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
    os.environ[THREADS] = "1"
    for module in PRELOADED:
        with contextlib.suppress(ImportError):  # a process that needs it says what is missing
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    specs = [getattr(module, "__spec__", None) for module in sys.modules.values()]
    loaded = _changes({getattr(spec.loader, "archive", spec.origin) for spec in specs if spec and spec.has_location})
    return loaded if max(loaded.values()) < began_ns else {}


def has_changed(loaded: dict[str, int]) -> bool:
    """Whether a file is another one than when it was loaded: what is imported from now on need not fit the rest."""
    return loaded != _changes(loaded)


def reseed() -> None:
    """Give a forked process random numbers of its own: NumPy 1 loads them by itself, Python's do this themselves."""
    if random := sys.modules.get("numpy.random"):
        random.seed()


def renew(loaded: dict[str, int]) -> None:
    """Make a worker that a daemon has forked what it would be by itself, when it imports all that it needs.

    Where a file has changed, what can be imported again will be. In what the worker forks this does nothing: it has
    objects of these modules then.
    """
    if loaded:
        reseed()
        changed = has_changed(loaded)
        loaded.clear()
        for name in [name for name in sys.modules if changed and name.partition(".")[0] in _RENEWED]:
            del sys.modules[name]


def _changes(files: Iterable[str]) -> dict[str, int]:
    """Return when files were changed: their ctime, as installers set mtime as they like; 0 for those that are gone."""
    changes = dict.fromkeys(files, 0)
    for file in changes:
        with contextlib.suppress(OSError):
            changes[file] = os.stat(file).st_ctime_ns
    return changes
