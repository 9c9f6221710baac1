"""kill -9 of a whole streaming copy at random moments, again and again: every row is there once, and only once.

docs/adr/0015-feed-sink.md has the argument.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.wire.columns import Block, decode_columns, encode_columns

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).with_name("copy_feed.py")
START_S = 120
PARTITIONS = 3
ROWS = 6_000
"""Of each partition: more than a few lives of the copy can write, a micro-batch being of 3,000."""


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


def values(log: ReferenceLog, name: str) -> list[str]:
    found: list[str] = []
    for partition in log.stream(name).partitions.values():
        at = partition.first_offset
        while at < partition.next_offset:
            records = partition.read(at)
            block = Block(records.buffer, records.value_starts, records.value_ends)
            found += [value.decode() for value in decode_columns(block, ("value",))["value"].to_pylist()]
            at += len(records)
    return found


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "kills", [pytest.param(2, id="2 kills"), pytest.param(10, id="10 kills", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("where", ["door", "folder"])
def test_every_row_is_there_once(tmp_path: Path, kills: int, where: str) -> None:
    expected: list[str] = []
    output = tmp_path / "output.txt"
    with ReferenceLog(tmp_path / "copies") as log:
        log.create_stream("copies", PARTITIONS)
    with contextlib.ExitStack() as stack:
        orders = stack.enter_context(ReferenceLog(tmp_path / "orders"))
        url = stack.enter_context(ServerThread(orders, feed=FeedConfig(port=0))).feed_url
        for i, partition in enumerate(orders.create_stream("orders", PARTITIONS).partitions.values()):
            texts = [f"{i}-{n}" for n in range(ROWS)]
            partition.append(encode_columns({"value": pa.array([text.encode() for text in texts])}))
            expected += texts
        served: ReferenceLog | None = None
        sink: dict[str, Any] = {"url": str(tmp_path / "copies"), "stream": "copies"}
        if where == "door":
            served = stack.enter_context(ReferenceLog(tmp_path / "copies"))
            sink = {"url": stack.enter_context(ServerThread(served, feed=FeedConfig(port=0))).feed_url + "/copies"}
        given: dict[str, object] = {
            "source": {
                "url": f"{url}/orders",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "3000",
                "spoolLocation": str(tmp_path / "spool"),
            },
            "sink": sink,
            "checkpoint": str(tmp_path / "checkpoint"),
            "drain": False,
        }
        stored = _size_of(tmp_path / "copies", served)
        _kill_again_and_again(given, output, kills, stored)
        if served is None:
            with ReferenceLog(tmp_path / "copies") as log:
                cut_short = len(values(log, "copies"))
        else:
            cut_short = len(values(served, "copies"))
        given["drain"] = True
        with life(given, output) as last:
            assert last.wait(START_S) == 0, output.read_text()[-4000:]
    with ReferenceLog(tmp_path / "copies") as log:
        found = collections.Counter(values(log, "copies"))
    doubled = {text: count for text, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} rows are there more than once, such as {next(iter(doubled.items()))}"
    missing = set(expected) - set(found)
    assert not missing, f"{len(missing)} rows are not there, such as {next(iter(missing))}"
    assert set(found) == set(expected)
    assert kills > 5 or 0 < cut_short < len(expected), "the kills came before the end"


def _size_of(folder: Path, served: ReferenceLog | None) -> Callable[[], int]:
    """Return what tells how much is stored, in any unit: a served log is asked, of another one the files are seen."""
    if served is not None:
        return lambda: sum(each.next_offset for each in served.stream("copies").partitions.values())
    return lambda: sum(each.stat().st_size for each in (folder / "streams").rglob("*.log"))


def _kill_again_and_again(given: dict[str, object], output: Path, kills: int, stored: Callable[[], int]) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    for _ in range(kills):
        before = stored()
        with life(given, output) as running:
            deadline = time.monotonic() + START_S
            while stored() == before:
                if time.monotonic() > deadline - START_S + 60 and before:
                    break  # everything is there already
                assert running.poll() is None, output.read_text()[-4000:]
                assert time.monotonic() < deadline, output.read_text()[-4000:]
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 1.5))
