"""Whether a task was given all of its rows.

Spark gives a task's rows to Python as an Arrow stream through a socket. When the JVM at its other end dies, or stops
the task, the stream breaks off; pyarrow takes a stream that breaks off between two batches for one that has ended. A
sink must not: the rows so far would pass for all rows of the task, under ids that belong to other windows or parts.
"""

from __future__ import annotations

import io
import select
import sys
from types import FrameType
from typing import Any

__all__ = ["broke_off"]


def broke_off() -> bool:
    """Return whether the rows ended because Spark has gone; asked by a task when there are no more rows.

    After the last row Spark sends the end of its own protocol and keeps the socket open until the task has answered, so
    a socket that is closed means that the rows are not complete. Where the socket is not found (Python workers without
    their daemon, as on Windows) the end is believed.
    """
    socket_file = _input()
    if socket_file is None:
        return False
    try:
        readable, _, _ = select.select([socket_file], [], [], 0)
        return bool(readable) and not socket_file.peek(1)
    except OSError:
        return True  # reset: the JVM was killed with bytes of ours unread


def _input() -> Any:
    """Return the file that ``pyspark.worker.main(infile, outfile)`` reads; None where there is none to ask."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") == "pyspark.worker":
            return _waitable(frame.f_locals.get("infile"))
        frame = frame.f_back
    return None


def _waitable(file: Any) -> Any:
    try:
        file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return None
    return file if hasattr(file, "peek") else None
