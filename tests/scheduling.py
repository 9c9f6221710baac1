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
OWN_BROKER = ("tests/real_rabbitmq/restarts/",)
"""Tests that kill a RabbitMQ of their own: in one process, as its start takes seconds."""


@cache
def starts_spark(module: str) -> bool:
    """Whether any test of a module is marked so; only the processes below collect tests and know their marks."""
    return "mark.spark" in (ROOT / module).read_text()


class ByModule(LoadFileScheduling):
    """Gives a module to a process as soon as one is free; those of Spark first, and those only to some."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._sparks: list[Any] = []

    def _split_scope(self, nodeid: str) -> str:
        return OWN_BROKER[0] if nodeid.startswith(OWN_BROKER) else str(super()._split_scope(nodeid))

    def _next_scope(self, node: Any) -> str | None:
        """Return what the process should do next, None when what is left is not for it."""
        self._sparks = [each for each in self._sparks if each in self.assigned_work]
        if node not in self._sparks and len(self._sparks) < SPARKS:
            self._sparks.append(node)
        modules = [scope for scope in self.workqueue if scope.endswith(".py")]
        if node in self._sparks and (of_spark := [scope for scope in modules if starts_spark(scope)]):
            return of_spark[0]
        return next((scope for scope in self.workqueue if not (scope in modules and starts_spark(scope))), None)

    def _assign_work_unit(self, node: Any) -> None:
        if (scope := self._next_scope(node)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if not node.shutting_down and self.workqueue and self._next_scope(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)
