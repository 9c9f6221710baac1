"""Checks whether the Python that a session starts has this package; ``register`` checks it before a query can fail.

Spark does not start the Python that runs the program. It starts ``PYSPARK_PYTHON``, or else the ``python3`` that it
finds on PATH: with a virtual environment that is not activated, as an IDE, cron and systemd use one, that is the
system's. There Spark finds none of the formats, and a query ends with ``No module named 'spark_streams'``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from typing import Any, Final

from spark_streams.errors import SparkStreamsError

_NEEDED: Final = ("spark_streams", "pyarrow", "numpy")
_PROBE: Final = f"import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, {_NEEDED})))"
_PROBE_TIMEOUT_S: Final = 60.0
"""A Python that takes longer is not checked."""


def check(spark: Any) -> None:
    """Say what to set when the Python of a session cannot import this package.

    Spark plans queries and runs tasks in it. Where all of that is on this machine, it is an error; with a cluster a
    warning, as executors may be prepared otherwise. Databricks, which starts Python in ways of its own, and Spark
    Connect, whose server starts it, are not checked.

    Raises:
        SparkStreamsError: the session runs on this machine, and nothing can work.
    """
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return
    context = getattr(spark, "sparkContext", None)  # with Spark Connect there is none
    if context is None:
        return
    fault = _fault(context)
    if fault is None:
        return
    if context.master.startswith("local"):
        raise SparkStreamsError(fault)
    warnings.warn(fault, RuntimeWarning, stacklevel=3)


def _fault(context: Any) -> str | None:
    """Return what is wrong with the Python that a context starts, and what to do; None when nothing is."""
    named = context.pythonExec
    found = shutil.which(named)
    if found is None:
        problem = "which is not a program that can be found here"
    elif _folder(found) == _folder(sys.executable) or _has_package(found, _environment(context)):
        return None
    else:
        problem = f"which is {found} here and does not have the package spark-streams with what it needs"
    here = sys.executable
    return (
        f"Spark starts '{named}' for what it runs in Python, {problem}; this program runs in {here}. "
        "Set PYSPARK_PYTHON before Spark starts: os.environ['PYSPARK_PYTHON'] = sys.executable in the program, "
        f"PYSPARK_PYTHON={here} in the environment of the job, or activate the virtual environment"
    )


def _folder(program: str) -> str:
    """Return where a program is: links are not followed, as a virtual environment's Python is one."""
    return os.path.dirname(os.path.abspath(program))


def _has_package(python: str, environment: dict[str, str]) -> bool:
    """Return whether a Python has the package and what it needs everywhere, or does not answer in time."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False
    return done.returncode == 0


def _environment(context: Any) -> dict[str, str]:
    """Return the environment in which Spark starts Python: with the files of ``--py-files`` and ``addPyFile``."""
    given = {**os.environ, **context.environment}
    paths = [context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    if context._python_includes:
        from pyspark import SparkFiles

        root = SparkFiles.getRootDirectory()
        paths += [root, *(os.path.join(root, each) for each in context._python_includes)]
    return {**given, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
