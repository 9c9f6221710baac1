"""``broker.py run`` where no RabbitMQ can be started: one line says why, and the command runs all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("broker.py")
COMMAND = "import os, sys; print(os.environ.get('RABBITMQ_STREAM_URL')); sys.exit(7)"


def run(*more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_STREAM_")}
    command = [sys.executable, str(SCRIPT), "run", *more, "--", sys.executable, "-c", COMMAND]
    done = subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 7, "the command's own status"
    return done


def test_without_a_broker_one_line_says_why(tmp_path: Path) -> None:
    done = run("--root", str(tmp_path))
    assert done.stdout == "None\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("spark-streams: no tests on a real RabbitMQ: ")
    assert str(tmp_path) in line, "why"
    assert not list(tmp_path.rglob("broker.json")), "nothing runs"


def test_a_broker_that_is_there_is_taken_as_it_is() -> None:
    url = "rabbitmq-stream://guest:guest@127.0.0.1:1"
    done = run(RABBITMQ_STREAM_URL=url)
    assert (done.stdout, done.stderr) == (f"{url}\n", "")
