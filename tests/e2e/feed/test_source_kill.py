"""kill -9 of a copy from a feed that never answers the same twice: every event is in the files once, and only once.

Other order, other pages and other cursors at each read: without the spool, a micro-batch that is run again would have
other rows than the part of it that was written. docs/adr/0016-feeds-are-spooled.md has the argument. The feed
is scripted: the log's is too well behaved.
"""

from __future__ import annotations

import collections
import os
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.feed.scripted import BadFeed, Part, numbered
from tests.e2e.lives import Job

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

EVENTS_A_KILL = 1_500
"""Of each partition: more than the lives that are killed can write."""


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "kills", [pytest.param(2, id="2 kills"), pytest.param(10, id="10 kills", marks=pytest.mark.nightly)]
)
def test_every_event_is_there_once(spark: SparkSession, tmp_path: Path, kills: int, rate_limits: bool) -> None:
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    parts = {p: Part(numbered(p * 100_000, p * 100_000 + kills * EVENTS_A_KILL)) for p in range(2)}
    interrupted = 0
    with BadFeed(parts, page=lambda: chance.randint(1, 400), every=50) as feed:
        feed.shuffled = True
        feed.same_cursors = False
        feed.unknown_lines = True
        source = {
            "url": f"{feed.url}/orders",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "400",
            "pollInterval": "50",
            "spoolLocation": str(tmp_path / "spool"),
        }
        given = {
            "source": {"format": "feedapi", "options": source},
            "select": ["partition", "cast(value AS STRING) AS value"],
            "sink": {"format": "parquet", "options": {"path": str(tmp_path / "files")}},
        }
        job = Job(tmp_path, {"orders": given}, rows=100, pause=0.05)
        copy = job.copies["orders"]
        for _ in range(kills):
            before = copy.newest("offsets")
            with job.life():
                job.wait(lambda before=before: copy.newest("offsets") > before, 0.02)
                time.sleep(chance.uniform(0, 0.8))
            interrupted += copy.in_the_middle()
        job.drain()
    found = collections.Counter(row.value for row in spark.read.parquet(str(tmp_path / "files")).collect())
    expected = {each.decode() for part in parts.values() for each in part.events}
    doubled = {text: count for text, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} events are there more than once, such as {next(iter(doubled.items()))}"
    missing = expected - set(found)
    assert not missing, f"{len(missing)} events are not there, such as {next(iter(missing))}"
    assert set(found) == expected
    assert interrupted or kills < 5, "no kill came in the middle of a micro-batch"
    assert "are lost, they are fetched again" not in job.output.read_text()
