"""The command, in this process where what it says is asked, and in a process of its own, as people run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, EventHubsConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.wire.amqp.columns.encode import encode_columns
from tests.cli.peers import opened

COMMAND = [sys.executable, "-m", "spark_streams.cli"]


@dataclass
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Doors:
    """Where a log is served."""

    doors: dict[str, str]

    @property
    def url(self) -> str:
        """The url of its AMQP door, with the default credentials."""
        return self.doors["amqp"].replace("//", "//guest:guest@")


@dataclass
class Served(Doors):
    """A running ``log serve``."""

    process: subprocess.Popen[str]
    temporary: bool

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=120)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run ``spark-streams`` with these words in an empty folder, in this process: a start of another costs a second."""
    monkeypatch.chdir(tmp_path)

    def run_it(*words: Any, stdin: str | bytes = b"", **environment: str) -> Ran:
        given = tmp_path.with_name(f"{tmp_path.name}-stdin")
        given.write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        with given.open("rb") as file:
            done = opened.run(*map(str, words), stdin=file, **environment)
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run_it


@pytest.fixture
def run_process(tmp_path: Path) -> Callable[..., Ran]:
    """As ``run``, in a process of its own: once for each command."""

    def run_it(*words: Any, stdin: str = "", **environment: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
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
            stack.callback(process.wait, 120)
            stack.callback(process.terminate)
            assert process.stdout is not None
            doors = json.loads(process.stdout.readline())
            temporary = doors.pop("temporary", False)
            return Served(doors, process, temporary)

        yield start


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start ``log serve`` in the folder of ``run``."""
    with serving(tmp_path) as start:
        yield start


@dataclass
class ServedHere(Doors):
    """A log that this process serves, as ``log serve`` does unless it is told otherwise."""

    log: ReferenceLog

    def publish(self, stream: str, *partitions: Sequence[str]) -> None:
        """Append values to the first partitions of a stream."""
        for partition, values in zip(self.log.stream(stream).partitions.values(), partitions, strict=False):
            partition.append(encode_columns({"value": pa.array([value.encode() for value in values])}))


@contextmanager
def served_here(folder: Path, **streams: int) -> Iterator[ServedHere]:
    """Serve the log in a folder at all its doors, with these new streams of so many partitions."""
    with ReferenceLog(folder) as log:
        for name, partitions in streams.items():
            log.create_stream(name, partitions)
        doors = (AmqpConfig(port=0), RabbitConfig(port=0), FeedConfig(port=0), EventHubsConfig(port=0))
        with ServerThread(log, *doors) as server:
            yield ServedHere(server.urls, log)


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Doors]:
    """A served log with a stream ``orders`` of two partitions."""
    with served_here(tmp_path / "orders", orders=2) as served:
        yield served
