"""Programs on Node.js: the packages that they need, installed outside git as their lock files pin them."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

MADE = Path(__file__).parents[2] / ".make"
INSTALL_TIMEOUT_S = 600

needs_node = [
    pytest.mark.node,
    pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed: there is no node on the PATH"),
]
"""The marks of a module whose tests need Node.js."""


def installed(folder: Path, name: str) -> Path:
    """Install the packages of a folder's lock file, if they are not there, and return the folder's script beside them.

    Args:
        folder: has ``interop.js``, ``package.json`` and ``package-lock.json``.
        name: the folder's name outside git.
    """
    there = MADE / name
    there.mkdir(parents=True, exist_ok=True)
    lock_file = (folder / "package-lock.json").read_bytes()
    done = there / "node_modules" / "installed.json"
    with (there / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes share what is installed
        if not done.exists() or done.read_bytes() != lock_file:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(folder / file, there / file)
            install = ["npm", "ci", "--no-fund", "--no-audit"]
            ran = subprocess.run(install, cwd=there, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
            if ran.returncode:
                pytest.fail(f"{' '.join(install)} in {there} failed; it asks the npm registry: {ran.stderr}")
            done.write_bytes(lock_file)
        shutil.copy(folder / "interop.js", there / "interop.js")
    return there / "interop.js"
