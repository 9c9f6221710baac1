"""kill -9 of a copy from a feed that never answers the same twice: every event is in the files once, and only once.

Other order, other pages and other cursors at each read: without the spool, a micro-batch that is run again would have
other rows than the part of it that was written. docs/adr/0016-feeds-are-spooled.md has the argument.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.clients.feed.scripted import BadFeed, Part, numbered

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).with_name("copy_to_files.py")
START_S = 120
EVENTS_A_KILL = 1_500
"""Of each partition: more than the lives that are killed can write."""


@contextlib.contextmanager
def life(given: dict[str, object], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One life of the copy; it ends with kill -9 of all its processes."""
    with output.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(given)], stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "kills", [pytest.param(2, id="2 kills"), pytest.param(10, id="10 kills", marks=pytest.mark.slow)]
)
def test_every_event_is_there_once(spark: SparkSession, tmp_path: Path, kills: int, rate_limits: bool) -> None:
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    parts = {p: Part(numbered(p * 100_000, p * 100_000 + kills * EVENTS_A_KILL)) for p in range(2)}
    offsets, commits = tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "commits"
    output = tmp_path / "output.txt"
    interrupted = 0
    with BadFeed(parts, page=lambda: chance.randint(1, 400), every=50) as feed:
        feed.shuffled = True
        feed.same_cursors = False
        feed.unknown_lines = True
        given: dict[str, Any] = {
            "source": {
                "url": f"{feed.url}/orders",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "400",
                "pollInterval": "50",
                "spoolLocation": str(tmp_path / "spool"),
            },
            "target": str(tmp_path / "files"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "drain": False,
        }

        def newest(folder: Path) -> int:
            return max((int(each.name) for each in folder.glob("[0-9]*")), default=-1)

        for _ in range(kills):
            before = newest(offsets)
            with life(given, output) as running:
                deadline = time.monotonic() + START_S
                while newest(offsets) <= before:
                    assert running.poll() is None, output.read_text()[-4000:]
                    assert time.monotonic() < deadline, output.read_text()[-4000:]
                    time.sleep(0.02)
                time.sleep(chance.uniform(0, 0.8))
            interrupted += newest(offsets) > newest(commits)
        given["drain"] = True
        with life(given, output) as last:
            assert last.wait(START_S) == 0, output.read_text()[-4000:]
    found = collections.Counter(row.value for row in spark.read.parquet(given["target"]).collect())
    expected = {each.decode() for part in parts.values() for each in part.events}
    doubled = {text: count for text, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} events are there more than once, such as {next(iter(doubled.items()))}"
    missing = expected - set(found)
    assert not missing, f"{len(missing)} events are not there, such as {next(iter(missing))}"
    assert set(found) == expected
    assert interrupted or kills < 5, "no kill came in the middle of a micro-batch"
    assert "are lost, they are fetched again" not in output.read_text()
