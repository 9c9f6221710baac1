"""The command ``spark-streams-python``: the Python of Spark's workers, which starts without compiling PySpark anew.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` in front of each worker's module path. The archive holds source only
and Python keeps no bytecode of what it imports from an archive, so each of the processes that a query needs compiles
PySpark again. The same PySpark stands beside the archive as files, whose bytecode is kept: this command takes these, in
processes that run a module of PySpark. All other arguments it passes to the Python that it belongs to, unchanged.

Spark puts the jar of its core there, too: 6,000 entries, no Python among them. PySpark drops the finders' caches in
each new worker, whereupon Python reads all these entries again. The command leaves the jar out.

On Linux, the processes that plan a query and that run its tasks in the driver are forked from one that has imported
PySpark (``fork_server.py``).

``spark.pyspark.python`` is the setting for it; docs/spark-upstream.md has the time that it saves.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from spark_streams.fork_server import Program, forked

_ARCHIVE: Final = os.path.join("python", "lib", "pyspark.zip")


def main() -> None:
    """Run the arguments as ``python`` would: ``-m`` with a module of PySpark here, others by replacing this process."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m" or not arguments[1].startswith("pyspark."):
        os.execv(sys.executable, [sys.executable, *arguments])
    # As -m does: the folder of the process comes first, and argv begins with the module, whose file runpy puts there.
    path = with_files(sys.path[1:])
    for entry in set(sys.path).difference(path):
        sys.path_importer_cache.pop(entry, None)  # else it is still read anew, whenever caches are dropped
    sys.path[:] = [os.getcwd(), *path]
    program = forked(Program(arguments[1:], path, dict(os.environ), os.getcwd()))
    import runpy

    sys.path[:] = [program.folder, *program.path]
    sys.argv[:] = program.arguments
    runpy.run_module(program.arguments[0], run_name="__main__", alter_sys=True)


def executable() -> str:
    """Return the value of ``PYSPARK_PYTHON`` for workers of this Python: the command, or Python itself without it."""
    command = os.path.join(os.path.dirname(sys.executable), "spark-streams-python")
    return command if os.access(command, os.X_OK) else sys.executable


def with_files(path: list[str]) -> list[str]:
    """Return a module path with the folder of PySpark's files for each of its archives that has one beside it.

    ``SPARK_HOME`` of a downloaded Spark has them in ``python/pyspark``; that of an installed package is the package.
    The jar of Spark's core is left out.
    """
    found: list[str] = []
    for entry in path:
        if os.path.basename(entry).startswith("spark-core_") and entry.endswith(".jar"):
            continue
        home = entry.removesuffix(_ARCHIVE)
        folders = () if home == entry else (os.path.join(home, "python"), os.path.dirname(os.path.dirname(home)))
        found.append(next((each for each in folders if _is_home(each, home)), entry))
    return found


def _is_home(folder: str, home: str) -> bool:
    return os.path.isfile(os.path.join(folder, "pyspark", "daemon.py")) and (
        folder == os.path.join(home, "python") or os.path.samefile(os.path.join(folder, "pyspark"), home)
    )
