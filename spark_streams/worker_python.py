"""The command ``spark-streams-python``: the Python of Spark's workers, which starts without compiling PySpark anew.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` in front of each worker's module path. The archive holds source only
and Python keeps no bytecode of what it imports from an archive, so each of the processes that a query needs compiles
PySpark again. The same PySpark is beside the archive as files, whose bytecode Python keeps: in processes that run a
module of PySpark, this command imports these files. It passes all other arguments unchanged to the Python that it
belongs to.

Spark puts the jar of its core on the module path, too: 6,000 entries, no Python among them. PySpark drops the finders'
caches in each new worker, and Python then reads all these entries again. The command leaves the jar out.

On Linux, the processes that plan a query and those that run its tasks in the driver are forked from one that has
imported PySpark (``fork_server.py``).

The setting ``spark.pyspark.python`` names the command; docs/spark-upstream.md says how much time it saves.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from spark_streams.fork_server import Program, forked

_ARCHIVE: Final = os.path.join("python", "lib", "pyspark.zip")


def main() -> None:
    """Run the arguments as ``python`` would: ``-m pyspark.…`` in this process, all others by replacing this process."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m" or not arguments[1].startswith("pyspark."):
        os.execv(sys.executable, [sys.executable, *arguments])
    # As with -m, the current folder comes first, and argv begins with the module, which runpy replaces by its file.
    path = with_files(sys.path[1:])
    for entry in set(sys.path).difference(path):
        sys.path_importer_cache.pop(entry, None)  # else Python still reads it again whenever caches are dropped
    sys.path[:] = [os.getcwd(), *path]
    program = forked(Program(arguments[1:], path, dict(os.environ), os.getcwd()))
    import runpy

    sys.path[:] = [program.folder, *program.path]
    sys.argv[:] = program.arguments
    runpy.run_module(program.arguments[0], run_name="__main__", alter_sys=True)


def executable() -> str:
    """Return ``PYSPARK_PYTHON`` for workers of this Python: the command, or Python itself if the command is missing."""
    command = os.path.join(os.path.dirname(sys.executable), "spark-streams-python")
    return command if os.access(command, os.X_OK) else sys.executable


def with_files(path: list[str]) -> list[str]:
    """Return a module path in which the folder of PySpark's files replaces each archive that has one beside it.

    A downloaded Spark has the files in ``$SPARK_HOME/python/pyspark``; for an installed package ``SPARK_HOME`` is the
    package. The jar of Spark's core is left out.
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
