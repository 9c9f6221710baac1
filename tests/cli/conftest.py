"""The command, run as people run it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "spark_streams.cli"]


@dataclass
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Served:
    """A running ``log serve``."""

    process: subprocess.Popen[str]
    doors: dict[str, str]

    @property
    def url(self) -> str:
        """Its url, with the default credentials."""
        return self.doors["amqp"].replace("//", "//guest:guest@")

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=20)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Run ``spark-streams`` with these words in an empty folder."""

    def run_it(*words: Any, stdin: str | None = None, **environment: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run_it


@contextmanager
def serving(folder: Path) -> Iterator[Callable[..., Served]]:
    """Give a function that starts ``log serve`` in a folder, on a free port, with more words; all are ended at last."""
    with ExitStack() as stack:

        def start(*words: Any) -> Served:
            port = () if "--amqp" in words else ("--amqp", "0")
            process = subprocess.Popen(
                [*COMMAND, "log", "serve", *port, *map(str, words)], stdout=subprocess.PIPE, text=True, cwd=folder
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
            assert process.stdout is not None
            return Served(process, json.loads(process.stdout.readline()))

        yield start


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start ``log serve`` in the folder of ``run``."""
    with serving(tmp_path) as start:
        yield start


@pytest.fixture
def orders(serve: Callable[..., Served]) -> Served:
    """A served log with a stream ``orders`` of two partitions."""
    return serve("--stream", "orders:2")
