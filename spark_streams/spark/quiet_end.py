"""Keeps a Python worker of Spark's quiet when Spark has closed its connection before the worker was done with it.

Spark closes the connection of a task as soon as it has the rows that it wants (``limit``, ``first``, ``isEmpty``), and
that of a process that plans once it has read the plan. The worker then fails to send the rest, and ends; its daemon
prints how (``pyspark/daemon.py``), a traceback that ends in ``BrokenPipeError`` and means nothing. Nothing of ours is
left to be said there: our own errors have gone to Spark before, or Spark did not want them.

Only what the daemon prints about its own ``flush`` is left out, and only where it prints it by ``traceback``: where
Spark tells it not to end such a worker (PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE), it has words of its own.
"""

from __future__ import annotations

import sys
import traceback
from types import ModuleType
from typing import Any, Final

_DAEMON: Final = "pyspark.daemon"


class _QuietTraceback(ModuleType):
    """The module ``traceback`` as the daemon sees it: it does not print that Spark has closed a connection."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    @staticmethod
    def print_exc(*arguments: Any, **named: Any) -> None:
        """Print the exception that is being handled, unless the flush of the worker's answer failed with it."""
        fault = sys.exc_info()[1]
        if not isinstance(fault, (BrokenPipeError, ConnectionResetError)) or not _of_the_daemon(fault):
            traceback.print_exc(*arguments, **named)


def end_quietly() -> None:
    """Make this process end without a traceback when Spark has gone first; it does nothing in no worker of a daemon."""
    daemon = sys.modules.get("__main__")
    named = getattr(getattr(daemon, "__spec__", None), "name", None)
    if named == _DAEMON and getattr(daemon, "traceback", None) is traceback:
        daemon.traceback = _QuietTraceback("traceback")  # type: ignore[union-attr]


def _of_the_daemon(fault: BaseException) -> bool:
    """Whether the daemon's own function raised it, and nothing that it called."""
    way = fault.__traceback__
    while way is not None and way.tb_next is not None:
        way = way.tb_next
    return way is not None and way.tb_frame.f_globals is vars(sys.modules["__main__"])
