"""CPU time by kind of process: the JVM, Python (driver, daemon, workers), and the peer that is read or written."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def _usage(pid: int) -> tuple[int, float, float] | None:
    """Return parent, own CPU seconds and those of children that ended and were waited for; None of no process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(words[1]), (int(words[11]) + int(words[12])) / _TICK, (int(words[13]) + int(words[14])) / _TICK


def usages() -> dict[int, tuple[int, float, float]]:
    each = ((int(name), _usage(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: usage for pid, usage in each if usage is not None}


def below(root: int, seen: dict[int, tuple[int, float, float]]) -> set[int]:
    found = {root} & seen.keys()
    while more := {pid for pid, (parent, _, _) in seen.items() if parent in found} - found:
        found |= more
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_spark(pid: int) -> bool:
    return b"org.apache.spark.deploy.SparkSubmit" in _command(pid)


def of_peer(pids: Iterable[int]) -> float:
    """Return the CPU seconds that a peer's processes and those below them have used."""
    seen = usages()
    return sum(seen[pid][1] for root in pids for pid in below(root, seen))


def exactly(pid: int) -> float:
    """Return the CPU seconds of one process, in nanoseconds where ``/proc`` counts in hundredths of a second.

    It asks the clock that Linux has for each process: clock_getcpuclockid(3), whose number is made like this.
    """
    return time.clock_gettime((~pid << 3) | 2)


class SparkWatch:
    """The CPU seconds that this process's Spark uses while the context is open: its JVM's, and Python's.

    Python is this driver, the daemons and the workers. What has ended by the end is counted in two ways, of which the
    greater is right: its parent's waited time, which lacks those whose daemon ended first, and what a thread saw last
    of each, which lacks what went on after that. The thread's own time is left out.
    """

    def __enter__(self) -> SparkWatch:
        self._closing = threading.Event()
        self._seen: dict[int, float] = {}
        self._own_s = 0.0
        self._begun = self._sample()
        self._first = dict(self._seen)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()
        ended = self._sample()
        driver = ended["driver"] - self._begun["driver"] - self._own_s
        watched = sum(last - self._first.get(pid, 0.0) for pid, last in self._seen.items())
        self.used = {
            "JVM": ended["JVM"] - self._begun["JVM"],
            "Python": driver + max(ended["Python"] - self._begun["Python"], watched),
        }

    def _watch(self) -> None:
        while not self._closing.wait(0.25):
            self._sample()
        self._own_s = time.thread_time()

    def _sample(self) -> dict[str, float]:
        seen = usages()
        found = {"JVM": 0.0, "Python": 0.0, "driver": seen[os.getpid()][1]}
        for gateway in gateways(seen):
            for pid in below(gateway, seen):
                _, own, ended = seen[pid]
                found["JVM" if pid == gateway else "Python"] += own
                found["Python"] += ended  # all that the JVM starts is Python
                if pid != gateway:
                    self._seen[pid] = own
        return found


def below_spark() -> list[int]:
    """Return what the JVM of this process's Spark has started and what has not ended: Python's daemons."""
    seen = usages()
    jvms = gateways(seen)
    return [pid for pid, (parent, _, _) in seen.items() if parent in jvms and _runs(pid)]


MARK = "SPARK_STREAMS_BENCH"
"""A variable of Spark's processes that tells which run's they are."""


def servers() -> list[int]:
    """Return, where no daemon is left, what forked them for a JVM that runs on (``spark_streams/fork_server.py``)."""
    return [pid for pid in usages() if b"spark-streams-python" in _command(pid) and _is_of_this_run(pid)]


def _is_of_this_run(pid: int) -> bool:
    try:
        return f"{MARK}={os.getpid()}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _runs(pid: int) -> bool:
    return bool(_command(pid))  # what has ended, and was not waited for, has none


def gateways(seen: dict[int, tuple[int, float, float]]) -> set[int]:
    return {pid for pid, (parent, _, _) in seen.items() if parent == os.getpid() and _is_spark(pid)}
