"""Memory of Spark's Python processes: workers, which run tasks, and what plans a stream's micro-batches."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path

from tests.bench.harness.cpu import below, gateways, servers, usages

_SAMPLES_S = 0.1
_SIZES = re.compile(rb"^(VmHWM|Pss):\s+(\d+) kB", re.MULTILINE)


class MemoryWatch:
    """The largest processes of each kind while the context is open, in MB.

    ``resident`` is what the kernel says a process had at most, with pages that it shares with the process that forked
    it. ``share`` is the greatest of samples in which each page counts once among those that have it (PSS). Processes
    that ran before count with all that they had before: ``Run.restart`` ends them.
    """

    def __enter__(self) -> MemoryWatch:
        self.resident: dict[str, float] = {}
        self.share: dict[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.wait(_SAMPLES_S):
            for pid, kind in _kinds().items():
                with contextlib.suppress(OSError):  # it has ended
                    status = Path(f"/proc/{pid}/status").read_bytes() + Path(f"/proc/{pid}/smaps_rollup").read_bytes()
                    sizes = {name: int(kb) * 1024 / 1e6 for name, kb in _SIZES.findall(status)}
                    self.resident[kind] = max(self.resident.get(kind, 0.0), sizes.get(b"VmHWM", 0.0))
                    self.share[kind] = max(self.share.get(kind, 0.0), sizes.get(b"Pss", 0.0))


def _kinds() -> dict[int, str]:
    """Return what each Python process of Spark is: ``worker`` or ``planner``; daemons and servers are neither.

    A daemon leads a process group, in which it forks workers. What plans a stream has neither children nor a daemon;
    what merely stands in for a forked process looks the same, and is smaller.
    """
    seen = usages()
    jvms = gateways(seen)
    pids = {pid for root in (*jvms, *servers()) for pid in below(root, seen)} - jvms
    parents = {seen[pid][0] for pid in pids}
    found = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if seen[pid][0] not in jvms and os.getpgid(pid) == seen[pid][0]:
                found[pid] = "worker"
            elif pid not in parents:
                found[pid] = "planner"
    return found
