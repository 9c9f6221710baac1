"""Spark Connect, and a cluster of two workers: nothing may depend on driver and executors sharing a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("all_formats.py")


@pytest.mark.parametrize("kind", ["connect", "cluster"])
def test_all_formats(kind: str, tmp_path: Path, rate_limits: bool) -> None:
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROGRAM.parents[2])}
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    assert [line for line in ran.stdout.splitlines() if line.startswith("done: ")] == [
        "done: amqp-events",
        "done: rabbitmq-stream",
        "done: feedapi",
    ]
