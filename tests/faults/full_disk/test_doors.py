"""The doors on a full disk: as the system's calls say it, and on a small file system where one can be made."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.full_disk.disk import Disk
from tests.faults.full_disk.scenarios import SCENARIOS, with_the_window

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("fsync", ["interval", "always"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_a_full_disk(
    scenario: Any, fsync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        scenario(Disk(tmp_path / "log", monkeypatch), tmp_path / "log", fsync)
    records = [record for record in caplog.records if not record.name.startswith("py4j")]  # of other tests' Spark
    traces = [record.getMessage() for record in records if record.exc_info]
    assert not traces
    # Each refused event is told its sender; the log does not repeat it for each.
    assert len([record for record in records if record.levelno >= logging.ERROR]) < 30


def own_mounts() -> list[str]:
    """Return what gives a process mounts of its own, as root or as anybody; nothing where that is not allowed."""
    tried = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
    for command in tried if shutil.which("unshare") else ():
        probe = [*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return command
    return []


@pytest.mark.nightly
def test_on_a_small_file_system(tmp_path: Path) -> None:
    command = own_mounts()
    if not command:
        pytest.skip("no mounts can be made here; test_on_a_full_disk does the same without")
    done = subprocess.run(
        [*command, sys.executable, "-m", "tests.faults.full_disk.on_tmpfs", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6_000:]
    assert done.stdout.split()[::2] == [scenario.__name__ for scenario in SCENARIOS] * 2
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_the_window_through_other_steps(
    fsync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: random.Random
) -> None:
    for number in range(5):
        folder = tmp_path / f"log-{number}"
        with monkeypatch.context() as patch:
            with_the_window(Disk(folder, patch), folder, fsync, chance, steps=60)
