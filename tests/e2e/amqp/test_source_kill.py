"""kill -9 of the whole query, JVM and workers, in the middle of a batch: every event exactly once in a file sink."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams.testing import LogStream, StreamFactory
from tests.e2e.lives import Job

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

PARTITIONS = 3


def killed_and_restarted(spark: SparkSession, orders: LogStream, folder: Path, kills: int, rate_limits: bool) -> None:
    expected: list[tuple[str, str, str]] = []

    def produce(low: int, count: int) -> None:
        for partition in map(str, range(PARTITIONS)):
            texts = [f"{partition}-{n}" for n in range(low, low + count)]
            orders.produce({"value": text, "partition": partition} for text in texts)
            expected.extend((partition, f"{n:020d}", text) for n, text in enumerate(texts, low))

    options = orders.options("amqp-events", startingOffsets="earliest", minPartitions="4")
    if rate_limits:
        options["maxOffsetsPerTrigger"] = "100"
    out = folder / "out"
    given = {
        "source": {"format": "amqp-events", "options": options},
        "select": ["partition", "offset", "value"],
        "sink": {"format": "parquet", "options": {"path": str(out)}},
    }
    job = Job(folder, {"orders": given}, rows=1_000, pause=0.25)
    copy = job.copies["orders"]
    chance = random.Random(kills)
    in_the_middle = 0
    for kill in range(kills):
        produce(300 * kill, 300)
        # Without limits a life has one batch, after the one that was cut short, if there is such.
        most = 3 if rate_limits else 1 + copy.in_the_middle()
        first, before = copy.newest("commits") + kill % most, files(out)

        def is_in_the_middle_of_a_batch(first: int = first) -> bool:
            """Whether this life has committed so many batches and written a part of the next."""
            nonlocal before
            if copy.newest("commits") < first:
                before = files(out)
                return False
            return copy.in_the_middle() and bool(files(out) - before)

        with job.life():
            job.wait(is_in_the_middle_of_a_batch, 0.01)
            time.sleep(chance.random() * 0.4)
        in_the_middle += copy.in_the_middle()
    produce(300 * kills, 50)
    job.drain()
    rows = [(row.partition, row.offset, bytes(row.value).decode()) for row in spark.read.parquet(str(out)).collect()]
    assert len(rows) == len(expected)
    assert sorted(rows) == sorted(expected)
    assert in_the_middle, "no kill found a batch in the middle"


def files(folder: Path) -> set[Path]:
    return set(folder.glob("part-*"))


@pytest.mark.timeout(1_200)
def test_killed_twice(spark: SparkSession, reference_log: StreamFactory, tmp_path: Path, rate_limits: bool) -> None:
    killed_and_restarted(spark, reference_log.create("orders", PARTITIONS), tmp_path, 2, rate_limits)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_killed_ten_times(spark: SparkSession, reference_log: StreamFactory, tmp_path: Path, rate_limits: bool) -> None:
    killed_and_restarted(spark, reference_log.create("orders", PARTITIONS), tmp_path, 10, rate_limits)
