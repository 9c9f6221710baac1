"""Which process runs which module: nothing is left over, and only two processes start a Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import scheduling
from tests.scheduling import SPARKS, ByModule

SPARK = [f"tests/e2e/test_{n}.py" for n in range(5)]
OTHERS = [f"tests/log/test_{n}.py" for n in range(9)]
ITEMS = [f"{module}::test_{n}" for module in (*OTHERS, *SPARK) for n in range(4)]


class Process:
    """A worker of pytest-xdist: what it was given, and whether it was told to end."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.given: list[str] = []
        self.done = 0
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += [ITEMS[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def ran(processes: list[Process]) -> None:
    """Run everything, a test of each process in turn; the last test that one has been given waits, as in xdist."""
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * len(processes), option=SimpleNamespace(loadscopereorder=True)
    )
    scheduler = ByModule(config, None)
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, ITEMS)
    scheduler.schedule()
    moved = True
    while moved:
        moved = False
        for process in processes:
            ready = len(process.given) - process.done - (0 if process.shutting_down else 1)
            if ready > 0:
                scheduler.mark_test_complete(process, ITEMS.index(process.given[process.done]))
                process.done += 1
                moved = True


@pytest.mark.parametrize("count", [1, 2, 4, 30])
def test_every_test_runs_once_and_only_some_processes_start_a_spark(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "starts_spark", SPARK.__contains__)
    processes = [Process(number) for number in range(count)]
    ran(processes)
    assert sorted(test for process in processes for test in process.given[: process.done]) == sorted(ITEMS)
    with_spark = [p for p in processes if any(test.startswith("tests/e2e/") for test in p.given)]
    assert len(with_spark) == min(count, SPARKS)
    for module in (*OTHERS, *SPARK):
        assert len([p for p in processes if any(test.startswith(module) for test in p.given)]) == 1


def test_the_modules_of_spark_are_known_by_their_mark() -> None:
    assert scheduling.starts_spark("tests/e2e/test_settings.py")
    assert not scheduling.starts_spark("tests/spark/test_splitting.py")
