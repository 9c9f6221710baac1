"""Lives of ``copy_program.py``: started, killed with all its processes, started again."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from tests.e2e import copy_program

PROGRAM = Path(copy_program.__file__)
START_S = 300
"""How long any of its steps may take: a guard against hanging."""


class Copy:
    """One copy of a job.

    Args:
        given: its ``source``, ``select`` and ``sink``.
        checkpoint: where it notes what is done.
    """

    def __init__(self, given: Mapping[str, Any], checkpoint: Path) -> None:
        self.given = {**given, "checkpoint": str(checkpoint)}
        self._checkpoint = checkpoint

    def newest(self, kind: str) -> int:
        """The newest micro-batch of ``offsets`` or ``commits``, -1 where there is none."""
        return max((int(each.name) for each in (self._checkpoint / kind).glob("[0-9]*")), default=-1)

    def in_the_middle(self) -> bool:
        """Whether a micro-batch is planned and not done."""
        return self.newest("offsets") > self.newest("commits")


class Job:
    """A program of copies, over its lives.

    Args:
        folder: where checkpoints and what it says go.
        copies: name to ``source``, ``select`` and ``sink``.
        rows: of a step.
        pause: seconds between two steps.
        in_sink: whether sinks, which have all rows at once then, make the steps, or something before them.
        cores: how many tasks may run at a time.
    """

    def __init__(
        self,
        folder: Path,
        copies: Mapping[str, Mapping[str, Any]],
        *,
        rows: int = 50,
        pause: float = 0.02,
        in_sink: bool = False,
        cores: int = 2,
    ) -> None:
        self.output = folder / "output.txt"
        self.copies = {name: Copy(given, folder / f"checkpoint-{name}") for name, given in copies.items()}
        self._held = folder / "held"
        self._given = {
            "copies": {name: copy.given for name, copy in self.copies.items()},
            "rows": rows,
            "pause": pause,
            "in_sink": in_sink,
            "hold": None,
            "held": str(self._held),
            "cores": cores,
            "drain": False,
        }
        self._running: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def life(self, *, drain: bool = False, hold: int | None = None) -> Iterator[None]:
        """One life; it ends with kill -9 of all its processes. Its tasks stop when they have done ``hold`` rows."""
        shutil.rmtree(self._held, ignore_errors=True)
        self._held.mkdir()
        command = [sys.executable, str(PROGRAM), json.dumps(self._given | {"drain": drain, "hold": hold})]
        with self.output.open("ab") as file:
            running = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
            self._running = running
            try:
                yield
            finally:
                # Spark's Python daemon, and with it the workers, is in a process group of its own.
                others = _below(running.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                for each in others:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                running.wait(120)
                _wait_for_the_end(others)

    def lose_spark(self) -> None:
        """Kill the JVM alone, in mid-task, and return when the Python workers have ended by themselves.

        Their daemons, which would end them at once, are held: on a machine that is busy they come late, too.
        """
        assert self._running is not None
        (java,) = [each for each in _below(self._running.pid) if _name(each) == "java"]
        parents, workers = self._workers()
        for parent in parents:
            parent.suspend()
        java.kill()
        try:
            _wait_for_the_end(workers)
        finally:
            for parent in parents:
                parent.kill()

    def wait(self, condition: Callable[[], bool], pause_s: float = 0.05) -> None:
        """Return when a condition holds; fails when this life ends before."""
        assert self._running is not None
        deadline = time.monotonic() + START_S
        while not condition():
            assert self._running.poll() is None, self.said()
            assert time.monotonic() < deadline, f"{self._reached()}\n{self.said()}"
            time.sleep(pause_s)

    def _reached(self) -> str:
        """How far each copy is."""
        reached = {name: (copy.newest("offsets"), copy.newest("commits")) for name, copy in self.copies.items()}
        held = sorted(each.name for each in self._held.iterdir())
        return f"newest micro-batch planned and done: {reached}; tasks that hold: {held}"

    def holds(self, name: str) -> bool:
        """Whether a task of a copy has done the rows that it may do in this life."""
        return any(self._held.glob(f"{name}-*"))

    def keeps(self, name: str) -> bool:
        """Whether a task of a copy has had the connection of the task before it, in this life."""
        return (self._held / f"kept-{name}").exists()

    def lose_a_worker(self, chance: random.Random) -> None:
        """Kill one of the Python workers, whichever it is."""
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):  # that one has just ended by itself
                return chance.choice(self._workers()[1]).kill()

    def _workers(self) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Return the daemons of Python workers, and the server that forks them, and their workers."""
        assert self._running is not None
        (java,) = [each for each in _below(self._running.pid) if _name(each) == "java"]
        # Daemons, and the server that forks them (spark_streams/fork_server.py).
        parents = [each for each in _below(java.pid) if _runs(each) and _below(each.pid)]
        workers = [each for parent in parents for each in _below(parent.pid) if _runs(each) and not _below(each.pid)]
        assert workers
        return parents, workers

    def drain(self, spark: Any = None) -> None:
        """Live until all that is there now is done: in a process of its own, or in a Spark that runs already.

        Before 4.2 Spark runs one micro-batch then: the one that was cut short, if there is one, takes another life.
        """
        cut_short = any(copy.in_the_middle() for copy in self.copies.values())
        for _ in range(2 if cut_short and not HAS_ADMISSION_CONTROL else 1):
            if spark is not None:
                for query in copy_program.start(spark, self._given | {"drain": True}):
                    assert query.awaitTermination(START_S), query.lastProgress
                continue
            with self.life(drain=True):
                assert self._running is not None
                assert self._running.wait(START_S) == 0, self.said()

    def said(self) -> str:
        """The last words of its lives."""
        return self.output.read_text(errors="replace")[-4_000:]


def check_once(rows: Iterable[Any], expected: set[Any]) -> None:
    """Check that each row that was to come has come, once, and no other."""
    found = collections.Counter(rows)
    doubled = {row: count for row, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} rows are there more than once, such as {next(iter(doubled.items()))}"
    missing = expected - found.keys()
    assert not missing, f"{len(missing)} rows are not there, such as {next(iter(missing))}"
    assert found.keys() == expected


def _below(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that they have; none of one that has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _name(process: psutil.Process) -> str:
    """Return a process's name, nothing of one that has ended."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _wait_for_the_end(processes: list[psutil.Process]) -> None:
    """Return when they run no more; nobody may be there to reap them."""
    deadline = time.monotonic() + START_S
    while any(map(_runs, processes)):
        assert time.monotonic() < deadline, processes
        time.sleep(0.05)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
