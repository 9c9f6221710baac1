"""The PyPI package ``zeroeventhub``, in an environment of its own outside git, as its constraints pin it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.foreign_programs import Driver
from tests.server.node_packages import INSTALL_TIMEOUT_S, MADE

HERE = Path(__file__).parent / "zeroeventhub"
CONSTRAINTS = HERE / "constraints.txt"


def environment() -> Path:
    """Make the environment, if it is not there, and return its folder; it takes half a minute."""
    if sys.version_info < (3, 11):
        pytest.skip("zeroeventhub needs Python 3.11")
    there = MADE / f"zeroeventhub-{sys.version_info.major}.{sys.version_info.minor}"
    there.mkdir(parents=True, exist_ok=True)
    done, recipe = there / "installed.txt", CONSTRAINTS.read_text()
    with (there / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes share what is installed
        if not done.exists() or done.read_text() != recipe:
            venv.create(there, with_pip=True)
            pip = [str(there / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            install = [*pip, "--requirement", str(CONSTRAINTS)]
            ran = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
            if ran.returncode:
                pytest.fail(f"{' '.join(install)} failed: {ran.stderr}")
            done.write_text(recipe)
    return there


@contextmanager
def running(folder: Path) -> Iterator[Driver]:
    """Run a program that does what it is told with the package; ``folder`` gets what it writes to stderr."""
    program = Driver([str(environment() / "bin" / "python"), str(HERE / "interop.py")], folder / "zeroeventhub.txt")
    try:
        yield program
    finally:
        program.stop()
