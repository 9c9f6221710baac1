"""A worker of Spark's whose connection is closed early: PySpark's own daemon forks it, with and without our part."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.serializers import UTF8Deserializer, read_int, write_with_length

WORKER = """
import os, sys
def main(infile, outfile):
    what = sys.stdin and os.environ["WHAT"]
    if "quiet" in what:
        from spark_streams.spark.boundary import end_quietly
        end_quietly()
        end_quietly()
    if "plans" in what:
        from spark_streams.sources.amqp_events import AmqpEventsDataSource
        source = AmqpEventsDataSource({"url": "amqp://localhost", "stream": "orders"})
        source.reader(source.schema())
    if "defect" in what:
        raise ValueError("a slip")
    infile.read(1)  # until whoever is the JVM here has closed its end
    if "other" in what:
        raise BrokenPipeError("of something else")
    for _ in range(10_000):
        try:
            outfile.write(b"x" * 1_000)
        except BrokenPipeError:
            sys.exit(-1)
"""


def wait_for_the_end_of(worker: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise TimeoutError(f"worker {worker} does not end")


def said(tmp_path: Path, what: str) -> str:
    """What the daemon writes to stderr when the JVM closes the connection of its worker."""
    (tmp_path / "pyspark_worker_here.py").write_text(WORKER)
    environment = {
        **os.environ,
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "WHAT": what,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    environment.pop("PYTHON_UNIX_DOMAIN_ENABLED", None)
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_worker_here"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as daemon:
        assert daemon.stdout is not None and daemon.stderr is not None and daemon.stdin is not None
        with socket.create_connection(("127.0.0.1", read_int(daemon.stdout))) as jvm, jvm.makefile("rwb") as file:
            worker = read_int(file)
            write_with_length(b"secret", file)
            file.flush()
            assert UTF8Deserializer().loads(file) == "ok"
        wait_for_the_end_of(worker)
        daemon.stdin.close()
        return daemon.stderr.read().decode()


@pytest.mark.parametrize(("what", "words"), [("plans", ""), ("quiet, defect", "ValueError: a slip")])
def test_only_what_means_nothing_is_left_out(tmp_path: Path, what: str, words: str) -> None:
    text = said(tmp_path, what)
    assert "BrokenPipeError" not in text and "ConnectionResetError" not in text
    assert (words in text) if words else text == ""


def test_another_broken_pipe_is_printed(tmp_path: Path) -> None:
    assert "BrokenPipeError: of something else" in said(tmp_path, "quiet, other")


def test_spark_still_prints_it_without_our_part(tmp_path: Path) -> None:
    text = said(tmp_path, "loud")
    assert "BrokenPipeError" in text or "ConnectionResetError" in text
