"""kill -9 of a whole streaming copy at random moments, again and again: every row is there once, and only once.

docs/adr/0015-feed-sink.md has the argument. The log that is written to is in this process: it is looked into after it
was served, and where nobody serves it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import FeedConfig, ServerThread
from spark_streams.testing import StreamFactory
from spark_streams.wire.columns import Block, decode_columns
from tests.e2e.lives import Copy

pytestmark = pytest.mark.spark

PARTITIONS = 3
ROWS = 6_000
"""Of each partition: more than a few lives of the copy can write, a micro-batch being of 3,000."""


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


@pytest.mark.usefixtures("streams_of_feeds")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("where", "kills"),
    [
        pytest.param("door", 1, id="door, once"),
        pytest.param("door", 10, id="door, ten times", marks=pytest.mark.nightly),
        pytest.param("folder", 2, id="folder, twice", marks=pytest.mark.nightly),
        pytest.param("folder", 10, id="folder, ten times", marks=pytest.mark.nightly),
    ],
)
def test_every_row_is_there_once(reference_log: StreamFactory, tmp_path: Path, kills: int, where: str) -> None:
    orders = reference_log.create("orders", PARTITIONS)
    expected = [f"{partition}-{n}" for partition in range(PARTITIONS) for n in range(ROWS)]
    orders.produce({"value": text, "partition": text[0]} for text in expected)
    with ReferenceLog(tmp_path / "copies") as log:
        log.create_stream("copies", PARTITIONS)
    with contextlib.ExitStack() as stack:
        served: ReferenceLog | None = None
        sink: dict[str, Any] = {"url": str(tmp_path / "copies"), "stream": "copies"}
        if where == "door":
            served = stack.enter_context(ReferenceLog(tmp_path / "copies"))
            sink = {"url": stack.enter_context(ServerThread(served, feed=FeedConfig(port=0))).feed_url + "/copies"}
        read = orders.options(
            "feedapi",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="3000",
            spoolLocation=str(tmp_path / "spool"),
        )
        copy = Copy(
            tmp_path,
            {
                "source": {"format": "feedapi", "options": read},
                "select": ["value", "cast(value AS STRING) AS key"],
                "sink": {"format": "feedapi", "options": sink},
            },
        )
        stored = _size_of(tmp_path / "copies", served)
        _kill_again_and_again(copy, kills, stored)
        if served is None:
            with ReferenceLog(tmp_path / "copies") as log:
                cut_short = len(values(log, "copies"))
        else:
            cut_short = len(values(served, "copies"))
        copy.drain()
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


def _kill_again_and_again(copy: Copy, kills: int, stored: Callable[[], int]) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    for _ in range(kills):
        before = stored()
        patience = time.monotonic() + 60 if before else float("inf")
        with copy.life():
            # Everything may be there already.
            copy.wait(lambda before=before, patience=patience: stored() != before or time.monotonic() > patience)
            time.sleep(chance.uniform(0, 1.5))
