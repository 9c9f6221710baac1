"""Reading a whole partition back, and processes that are killed while they append."""

from __future__ import annotations

import signal
import subprocess
import sys

from spark_streams.log import Partition


def all_values(partition: Partition) -> list[bytes]:
    """Return the values of all retained records, in log order."""
    out: list[bytes] = []
    offset = partition.first_offset
    while (records := partition.read(offset)) is not None:
        out += [records.value(row) for row in range(len(records))]
        offset = int(records.offsets[-1]) + 1
    return out


def acknowledged_before_kill_9(program: str, arguments: list[str], appends: int) -> int:
    """Run a program that prints the last offset of each append, kill it after some, and return the last offset."""
    child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        acknowledged = [int(child.stdout.readline()) for _ in range(appends)]
        child.send_signal(signal.SIGKILL)
        child.wait()
        rest = child.stdout.read().split("\n")
    return max([*acknowledged, *(int(line) for line in rest[:-1])])
