"""Plays the scenarios on a small file system that is really full; to be run in a mount namespace of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from tests.faults.full_disk.scenarios import SCENARIOS, named

SIZE = "4m"


class SmallDisk:
    """The mounted file system."""

    def __init__(self, root: Path) -> None:
        self._filler = root / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4_096))

    def free(self) -> None:
        self._filler.unlink()


def main(root: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(root)], check=True)
    for fsync in ("interval", "always"):
        for scenario in SCENARIOS:
            with named(scenario):
                scenario(SmallDisk(root), root / f"{scenario.__name__}-{fsync}", fsync)
            print(scenario.__name__, fsync, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
