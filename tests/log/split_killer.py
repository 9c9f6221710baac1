"""Kill a split before its first file operation, its second, and so on; check each time what the next start finds.

Run as ``split_killer.py LOG COPY close|history``; prints how many ended in the old state and how many in the new one.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from spark_streams.log import ReferenceLog

OPERATIONS = (
    "open",
    "mkdir",
    "pwrite",
    "write",
    "fsync",
    "fdatasync",
    "ftruncate",
    "replace",
    "rename",
    "unlink",
    "rmdir",
    "utime",
)


def values(log: ReferenceLog) -> list[int]:
    found = []
    for partition in log.stream("s").partitions.values():
        offset = partition.first_offset
        while (records := partition.read(offset)) is not None:
            found += [int(records.value(row)) for row in range(len(records))]
            offset = int(records.offsets[-1]) + 1
    return sorted(found)


def split_and_die(copy: Path, history: bool, at: int) -> None:
    """Split in this process and kill it before file operation number ``at``; leave with 0 when there is none."""
    log = ReferenceLog(copy)
    done = 0

    def counted(real: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if done == at:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        return real(*args, **kwargs)

    for name in OPERATIONS:
        setattr(os, name, functools.partial(counted, getattr(os, name)))
    log.split_partition("s", "0", history=history)
    os._exit(0)


def main(original: Path, copy: Path, history: bool) -> None:
    """Kill until a split gets through."""
    outcomes = {"old": 0, "new": 0}
    new = ["1", "2", "3"] if history else ["0", "1", "2", "3"]
    at = 0
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original, copy)
        child = os.fork()
        if not child:
            split_and_die(copy, history, at)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0, status
            break
        with ReferenceLog(copy) as log:
            stream = log.stream("s")
            names = list(stream.partitions)
            assert names in (["0", "1"], new), names
            assert values(log) == list(range(60)), at
            outcomes["new" if names == new else "old"] += 1
            if names == ["0", "1"]:
                stream.partitions["0"].append([b"60"])
                log.split_partition("s", "0", history=history)
            else:
                stream.partitions[stream.home(b"k")].append([b"60"], [b"k"])
            assert list(stream.partitions) == new
            known = {*new, "stream.json"} | ({"splits"} if history else set())
            assert {path.name for path in stream.folder.iterdir()} == known, at
            assert values(log) == list(range(61)), at
            if history:
                assert sum(stream.translate(name, "0", 60) for name in ("2", "3")) == 60
        with ReferenceLog(copy) as log:
            assert values(log) == list(range(61)), at
        at += 1
    print(json.dumps({"killed": at, **outcomes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "history")
