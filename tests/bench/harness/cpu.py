"""CPU time by kind of process: the JVM, Python (driver, daemon, workers), and the peer that is read or written."""

from __future__ import annotations

import os
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


def _all() -> dict[int, tuple[int, float, float]]:
    seen = ((int(name), _usage(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return {pid: usage for pid, usage in seen if usage is not None}


def _below(root: int, usages: dict[int, tuple[int, float, float]]) -> set[int]:
    found = {root} & usages.keys()
    while more := {pid for pid, (parent, _, _) in usages.items() if parent in found} - found:
        found |= more
    return found


def _is_spark(pid: int) -> bool:
    try:
        return b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def of_peer(pids: Iterable[int]) -> float:
    """Return the CPU seconds that a peer's processes and those below them have used."""
    usages = _all()
    return sum(usages[pid][1] for root in pids for pid in _below(root, usages))


def of_spark() -> dict[str, float]:
    """Return the CPU seconds of this process's Spark: its JVM, and Python: this driver, the daemon and workers.

    Workers that ended are counted too, as their parent has waited for them: all that the JVM starts is Python.
    """
    usages = _all()
    found = {"JVM": 0.0, "Python": usages[os.getpid()][1]}
    for gateway in _gateways(usages):
        for pid in _below(gateway, usages):
            _, own, ended = usages[pid]
            found["JVM" if pid == gateway else "Python"] += own
            found["Python"] += ended
    return found


def below_spark() -> list[int]:
    """Return the processes that the JVM of this process's Spark has started: Python's daemons."""
    usages = _all()
    gateways = _gateways(usages)
    return [pid for pid, (parent, _, _) in usages.items() if parent in gateways]


def _gateways(usages: dict[int, tuple[int, float, float]]) -> set[int]:
    return {pid for pid, (parent, _, _) in usages.items() if parent == os.getpid() and _is_spark(pid)}
