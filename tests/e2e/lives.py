"""Lives of ``copy_program.py``: started, killed with all its processes, started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from spark_streams.spark.reader import HAS_ADMISSION_CONTROL

PROGRAM = Path(__file__).with_name("copy_program.py")
START_S = 300
"""How long any of its steps may take: a guard against hanging."""


class Copy:
    """A copy over its lives.

    Args:
        folder: where its checkpoint and what it says go.
        given: what the program takes, but for ``checkpoint`` and ``drain``.
    """

    def __init__(self, folder: Path, given: dict[str, Any]) -> None:
        self.checkpoint = folder / "checkpoint"
        self.output = folder / "output.txt"
        self._given = {"rows": 50, "pause": 0.02} | given | {"checkpoint": str(self.checkpoint)}
        self._running: subprocess.Popen[bytes] | None = None

    def newest(self, kind: str) -> int:
        """The newest micro-batch of ``offsets`` or ``commits``, -1 where there is none."""
        return max((int(each.name) for each in (self.checkpoint / kind).glob("[0-9]*")), default=-1)

    def in_the_middle(self) -> bool:
        """Whether a micro-batch is planned and not done."""
        return self.newest("offsets") > self.newest("commits")

    @contextlib.contextmanager
    def life(self, *, drain: bool = False) -> Iterator[None]:
        """One life; it ends with kill -9 of all its processes."""
        command = [sys.executable, str(PROGRAM), json.dumps(self._given | {"drain": drain})]
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
                running.wait(30)
                _wait_for_the_end(others)

    def lose_spark(self) -> None:
        """Kill the JVM alone, in mid-task, and return when the Python workers have ended by themselves.

        Their daemon, which would end them at once, is held: on a machine that is busy it comes late, too.
        """
        assert self._running is not None
        (java,) = [each for each in _below(self._running.pid) if each.name() == "java"]
        daemons = [each for each in java.children() if _runs(each) and "pyspark.daemon" in each.cmdline()]
        workers = [each for daemon in daemons for each in daemon.children()]
        assert workers
        for daemon in daemons:
            daemon.suspend()
        java.kill()
        try:
            _wait_for_the_end(workers)
        finally:
            for daemon in daemons:
                daemon.kill()

    def wait(self, condition: Callable[[], bool], pause_s: float = 0.05) -> None:
        """Return when a condition holds; fails when this life ends before."""
        assert self._running is not None
        deadline = time.monotonic() + START_S
        while not condition():
            assert self._running.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(pause_s)

    def drain(self) -> None:
        """Live until all that is there now is done.

        Before 4.2 Spark runs one micro-batch then: the one that was cut short, if there is one, takes another life.
        """
        for _ in range(2 if self.in_the_middle() and not HAS_ADMISSION_CONTROL else 1):
            with self.life(drain=True):
                assert self._running is not None
                assert self._running.wait(START_S) == 0, self.said()

    def said(self) -> str:
        """The last words of its lives."""
        return self.output.read_text(errors="replace")[-4_000:]


def _below(pid: int) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that they have; none of one that has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


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
