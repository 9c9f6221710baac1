"""kill -9 of a whole streaming copy at random moments, again and again: every row is there once, and only once.

docs/adr/0010-rabbitmq-exactly-once.md has the argument.
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

import pytest

from tests.e2e.rabbitmq.broker import Broker, body, numbers

pytestmark = pytest.mark.spark

SCRIPT = Path(__file__).with_name("copy_query.py")
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


def stored(broker: Broker, name: str) -> int:
    return sum(len(broker.read(f"{name}-{i}")) for i in range(PARTITIONS))


SUB_ENTRIES = {"subEntrySize": "20", "compression": "gzip"}


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("kills", "more"),
    [
        pytest.param(2, {}, id="2 kills"),
        pytest.param(20, {}, id="20 kills", marks=pytest.mark.slow),
        pytest.param(5, SUB_ENTRIES, id="5 kills, sub-entry batches", marks=pytest.mark.slow),
    ],
)
def test_every_row_is_there_once(broker: Broker, tmp_path: Path, kills: int, more: dict[str, str]) -> None:
    broker.needs(0x1D)  # CreateSuperStream
    orders, copies = broker.create_super(PARTITIONS, "orders"), broker.create_super(PARTITIONS, "copies")
    expected: list[str] = []
    for i in range(PARTITIONS):
        texts = numbers(0, ROWS, f"{i}-")
        broker.publish(f"{orders}-{i}", [body(text) for text in texts])
        expected += texts
    output = tmp_path / "output.txt"
    given: dict[str, object] = {
        "source": {
            "url": broker.url,
            "superStream": orders,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "3000",
        },
        "sink": {"url": broker.url, "superStream": copies, **more},
        "checkpoint": str(tmp_path / "checkpoint"),
        "drain": False,
    }
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    for _ in range(kills):
        before = stored(broker, copies)
        with life(given, output) as running:
            deadline = time.monotonic() + START_S
            while stored(broker, copies) == before and before < len(expected):
                assert running.poll() is None, output.read_text()[-4000:]
                assert time.monotonic() < deadline, output.read_text()[-4000:]
                time.sleep(0.05)
            time.sleep(chance.uniform(0, 1.5))
    cut_short = stored(broker, copies)
    given["drain"] = True
    with life(given, output) as last:
        assert last.wait(START_S) == 0, output.read_text()[-4000:]

    found = collections.Counter(text for i in range(PARTITIONS) for text in broker.bodies(f"{copies}-{i}"))
    doubled = {text: count for text, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} rows are there more than once, such as {next(iter(doubled.items()))}"
    missing = set(expected) - set(found)
    assert not missing, f"{len(missing)} rows are not there, such as {next(iter(missing))}"
    assert set(found) == set(expected)
    assert kills > 5 or cut_short < len(expected), "the kills came before the end"
