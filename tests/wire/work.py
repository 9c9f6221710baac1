"""What a decoder does, counted: no clock, so the same on every machine.

``steps`` are the lines of Python that were executed, in whatever module; a turn of a loop is one at least. ``touched``
are bytes: those that Python, NumPy and Arrow allocated, of each few lines the most at once, and those of the objects
that methods of C look through (``text.count``). A NumPy call over everything in each turn shows there, where it is one
step. What a regular expression does shows nowhere: ``test_linear_work`` has a rule for them.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

_LOOK_THROUGH = frozenset(
    {"all", "any", "argmax", "argmin", "copy", "count", "cumsum", "decode", "encode", "index", "max", "min", "nonzero"}
    | {"replace", "sort", "split", "splitlines", "sum", "tobytes", "tolist"}
)
"""The methods of texts, bytes, lists and arrays that look at all of them."""

_LOOKS = 5
"""After so many lines memory is looked at: after each one it would take most of the time."""


class Work(NamedTuple):
    """What was done.

    Args:
        steps: the lines that were executed.
        touched: bytes that were allocated or looked through.
        entered: the functions that were called.
    """

    steps: int
    touched: int
    entered: frozenset[CodeType]


def work_of(do: Callable[[], object]) -> Work:
    """Return the work of a call."""
    steps = touched = 0
    entered: set[CodeType] = set()
    before = arrow_before = 0

    def look() -> None:
        nonlocal touched, before, arrow_before
        now, peak = tracemalloc.get_traced_memory()
        arrow = pa.total_allocated_bytes()
        touched += max(0, peak - before) + max(0, arrow - arrow_before)
        tracemalloc.reset_peak()
        before, arrow_before = now, arrow

    def traced(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if not steps % _LOOKS:
                look()
        elif event == "call":
            entered.add(frame.f_code)
        return traced

    def called(frame: FrameType, event: str, function: Any) -> None:
        nonlocal touched
        if event == "c_call" and function.__name__ in _LOOK_THROUGH:
            whole = function.__self__
            if isinstance(whole, np.ndarray):
                touched += whole.nbytes
            elif isinstance(whole, (str, bytes, bytearray)):
                touched += len(whole)
            elif isinstance(whole, (list, tuple)):
                touched += 8 * len(whole)

    others = sys.gettrace(), sys.getprofile()
    tracemalloc.start()
    arrow_before = pa.total_allocated_bytes()
    before, _ = tracemalloc.get_traced_memory()
    sys.setprofile(called)
    sys.settrace(traced)
    try:
        do()
    finally:
        sys.settrace(others[0])
        sys.setprofile(others[1])
        look()
        tracemalloc.stop()
    return Work(steps, touched, frozenset(entered))
