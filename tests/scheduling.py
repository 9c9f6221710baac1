"""Which process of ``pytest -n`` runs which module: a module is in one process, and only two of them start a Spark.

A Spark costs seconds and two cores; most other tests wait for peers. So the first two processes take the modules of
Spark, with one session each, then help the others.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parents[1]
SPARKS = 2
"""How many processes start a Spark: as many as there are cores on the machine that CI has."""


@cache
def starts_spark(module: str) -> bool:
    """Whether any test of a module is marked so; only the processes below collect tests and know their marks."""
    return "mark.spark" in (ROOT / module).read_text()


class ByModule(LoadFileScheduling):
    """Gives a module to a process as soon as one is free; those of Spark first, and those only to some."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._sparks: list[Any] = []

    def _next_module(self, node: Any) -> str | None:
        """Return what the process should do next, None when what is left is not for it."""
        self._sparks = [each for each in self._sparks if each in self.assigned_work]
        if node not in self._sparks and len(self._sparks) < SPARKS:
            self._sparks.append(node)
        first = next((module for module in self.workqueue if not starts_spark(module)), None)
        if node in self._sparks:
            # Those of few tests first: they are the long ones, with lives of queries that are killed.
            return next((module for module in reversed(self.workqueue) if starts_spark(module)), first)
        return first

    def _assign_work_unit(self, node: Any) -> None:
        if (module := self._next_module(node)) is None:
            node.shutdown()
        else:
            self.workqueue.move_to_end(module, last=False)
            super()._assign_work_unit(node)
