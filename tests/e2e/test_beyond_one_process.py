"""Spark Connect, and a cluster of two workers: nothing may depend on driver and executors sharing a process.

Of Spark Connect `make test` has test_connect.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("all_formats.py")


class Program:
    """A run of the program; what it says goes into files, as nobody may read a pipe in time.

    Args:
        kind: what it is told.
        folder: its own.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self._said, self._faults = folder / "stdout", folder / "stderr"
        with self._said.open("wb") as said, self._faults.open("wb") as faults:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), kind, str(folder)],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROGRAM.parents[2])},
                cwd=folder,
                stdout=said,
                stderr=faults,
            )

    def result(self) -> tuple[int, str, str]:
        """Wait for its end; return its code and what it said."""
        code = self.process.wait(580)
        return code, self._said.read_text(), self._faults.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Program]]:
    """A function that gives the run of a kind; those that are asked for are started at once, and wait for much."""
    items: list[Any] = [item for item in request.session.items if item.path == Path(__file__)]
    runs: dict[str, Program] = {}
    try:
        for kind in dict.fromkeys(item.callspec.params["kind"] for item in items):
            runs[kind] = Program(kind, tmp_path_factory.mktemp(kind))
        yield runs.__getitem__
    finally:
        for run in runs.values():
            run.end()


@pytest.mark.parametrize("kind", ["connect", "cluster"])
def test_all_formats(kind: str, program: Callable[[str], Program]) -> None:
    code, said, faults = program(kind).result()
    assert code == 0, faults[-6000:]
    assert [line for line in said.splitlines() if line.startswith("done: ")] == [
        "done: amqp-events",
        "done: rabbitmq-stream",
        "done: feedapi",
    ]
