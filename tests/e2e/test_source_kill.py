"""kill -9 of the whole query, JVM and workers, in the middle of a batch: every event exactly once in a file sink."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).with_name("source_query.py")
START_S = 120


class QueryProcess:
    """One life of the query: its own session, and so its own process group."""

    def __init__(self, folder: Path, options: dict[str, str], *, drain: bool) -> None:
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self.report = folder / "report.json"
        given = {
            "options": options,
            "out": str(self.out),
            "checkpoint": str(self.checkpoint),
            "report": str(self.report),
            "drain": drain,
        }
        self.files_before = self.files()
        self.output = (folder / "output.txt").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(given)],
            stdout=self.output,
            stderr=self.output,
            start_new_session=True,
        )

    def newest(self, kind: str) -> int:
        return max((int(p.name) for p in (self.checkpoint / kind).glob("[0-9]*")), default=-1)

    def files(self) -> set[Path]:
        return set(self.out.glob("part-*"))

    def wait_for_the_middle_of_a_batch(self, commits: int) -> None:
        """Wait until this process, not the one before, has committed so many batches and written a part of the next."""
        first = self.newest("commits") + commits
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the query ended by itself: see output.txt"
            if self.newest("commits") < first:
                self.files_before = self.files()
            elif self.in_the_middle() and self.files() - self.files_before:
                return
            time.sleep(0.01)
        raise AssertionError("no batch began in time")

    def in_the_middle(self) -> bool:
        return self.newest("offsets") > self.newest("commits")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.output.close()


def killed_and_restarted(server: Any, folder: Path, kills: int, rate_limits: bool) -> None:
    server.log.create_stream("orders", 3)
    expected: list[list[str]] = []

    def produce(count: int) -> None:
        for partition, held in sorted(server.log.stream("orders").partitions.items()):
            texts = [f"{partition}-{held.next_offset + n}" for n in range(count)]
            held.append([b"\x00\x53\x75\xa0" + bytes([len(t)]) + t.encode() for t in texts])
            expected.extend([partition, f"{int(t.split('-')[1]):020d}", t] for t in texts)

    url = server.urls["amqp"].replace("//", "//guest:guest@")
    options = {"url": url, "stream": "orders", "startingOffsets": "earliest", "minPartitions": "4"}
    if rate_limits:
        options["maxOffsetsPerTrigger"] = "100"
    most = 3 if rate_limits else 2  # without limits a life has two batches: the one cut short and the rest
    chance = random.Random(kills)
    in_the_middle = 0
    for kill in range(kills):
        produce(300)
        query = QueryProcess(folder, options, drain=False)
        try:
            query.wait_for_the_middle_of_a_batch(commits=kill % most)
            time.sleep(chance.random() * 0.4)
        finally:
            query.kill()
        in_the_middle += query.in_the_middle()
    produce(50)
    last = QueryProcess(folder, options, drain=True)
    try:
        assert last.process.wait(START_S) == 0, (folder / "output.txt").read_text()[-4000:]
    finally:
        last.kill()
    rows = json.loads(last.report.read_text())
    assert len(rows) == len(expected)
    assert sorted(rows) == sorted(expected)
    assert in_the_middle, "no kill found a batch in the middle"


@pytest.mark.timeout(400)
def test_killed_twice(log_server: Any, tmp_path: Path, rate_limits: bool) -> None:
    killed_and_restarted(log_server, tmp_path, 2, rate_limits)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_ten_times(log_server: Any, tmp_path: Path, rate_limits: bool) -> None:
    killed_and_restarted(log_server, tmp_path, 10, rate_limits)
