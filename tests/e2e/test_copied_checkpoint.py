"""A checkpoint is copied, as for a second environment: what the query and its copies read and write then.

docs/delivery.md says it: each reads every event once, whatever the others do; to a sink they are one query, and Spark
lets only one of them run in an application. Rounds are chosen by a seed: which of them goes on, whether its micro-batch
fails in the midst, and when another copy is made.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from spark_streams.testing import KeptQuery, LogStream, StreamFactory, eventually
from tests.e2e.by_day import FORMATS
from tests.e2e.stored import stored

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1_800)]

WAIT_S = 240
PARTITIONS = 2
ROUNDS = 12
MOST = 4
"""Queries that have a copy of one checkpoint."""
SOURCES = [name for name in FORMATS if name != "feedapi" or HAS_ADMISSION_CONTROL]


class Reading(KeptQuery):
    """A query that reads, and fails in the midst of a micro-batch when it is told to.

    Args:
        folder: of its checkpoint.
        spool: where it keeps pages of a feed.
    """

    def __init__(self, folder: Path, spool: Path) -> None:
        super().__init__(folder, timeout_s=WAIT_S)
        self.folder, self.spool = folder, spool
        self.fails = False

    def copy(self, folder: Path, spool: Path) -> Reading:
        """Return another with a copy of the checkpoint, and of the spool unless it is the same one."""
        shutil.copytree(self.checkpoint, folder / "checkpoint")
        if spool != self.spool and self.spool.exists():
            shutil.copytree(self.spool, spool)
        made = Reading(folder, spool)
        made.batches = dict(self.batches)
        return made

    def load(self, spark: SparkSession, stream: LogStream, name: str) -> DataFrame:
        spool = {"spoolLocation": str(self.spool)} if name == "feedapi" else {}
        given = stream.options(name, startingOffsets="earliest", requestTimeout="120000", **spool)
        return spark.readStream.format(name).options(**given).load().select("value")

    def _keep(self, frame: DataFrame, number: int) -> None:
        super()._keep(frame, number)
        if self.fails:
            raise ValueError("as it was told")

    def numbers(self) -> list[int]:
        return [int(bytes(row.value)) for row in self.rows]


def append(stream: LogStream, first: int, count: int) -> int:
    """Append the numbers from ``first`` on; return the next."""
    stream.produce({"value": str(n), "partition": str(n % PARTITIONS)} for n in range(first, first + count))
    return first + count


@pytest.mark.parametrize("name", SOURCES)
def test_each_reads_every_event_once(
    spark: SparkSession, reference_log: StreamFactory, name: str, tmp_path: Path, chance: random.Random
) -> None:
    orders = reference_log.create("orders", PARTITIONS)
    queries, count, failed = [Reading(tmp_path / "0", tmp_path / "spool-0")], 0, 0
    for number in range(1, ROUNDS + 1):
        count = append(orders, count, chance.randrange(1, 60))
        query = chance.choice(queries)
        query.fails = chance.random() < 0.4
        try:
            query.drain(query.load(spark, orders, name))
        except PySparkException as fault:
            assert query.fails and "as it was told" in str(fault)
            failed += 1
        query.fails = False
        if len(queries) < MOST and (number > ROUNDS - MOST or chance.random() < 0.4):
            origin = chance.choice([each for each in queries if each.checkpoint.exists()])
            queries.append(origin.copy(tmp_path / str(number), tmp_path / f"spool-{number}"))
    count = append(orders, count, 10)
    for query in queries:
        for _ in range(1 if HAS_ADMISSION_CONTROL else 2):  # before 4.2 one run repeats what was cut short, and no more
            query.drain(query.load(spark, orders, name))
        assert Counter(query.numbers()) == Counter(range(count)), f"{query}, {failed} failed rounds"


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="streams of feeds need Spark 4.2")
def test_in_one_spool_they_fail_and_read_nothing_wrong(
    spark: SparkSession, reference_log: StreamFactory, tmp_path: Path, chance: random.Random
) -> None:
    """Each removes from the spool what it does not know, so one that is to repeat a micro-batch fails."""
    orders, spool = reference_log.create("orders", PARTITIONS), tmp_path / "spool"
    first = Reading(tmp_path / "0", spool)
    count = append(orders, 0, 20)
    first.drain(first.load(spark, orders, "feedapi"))
    queries = [first, first.copy(tmp_path / "1", spool)]
    lost: set[Reading] = set()
    while not lost:
        count = append(orders, count, chance.randrange(1, 60))
        for query in chance.sample(queries, 2):
            query.fails = chance.random() < 0.7
            try:
                query.drain(query.load(spark, orders, "feedapi"))
            except PySparkException as fault:
                if "as it was told" not in str(fault):
                    assert "PositionLost" in str(fault) and "has another query a copy of this checkpoint?" in str(fault)
                    lost.add(query)
            found = Counter(query.numbers())
            assert max(found.values()) == 1 and found.keys() <= set(range(count))
            if not query.fails and query not in lost:
                assert found.keys() == set(range(count))


@pytest.mark.parametrize("name", FORMATS)
def test_to_a_sink_they_are_one_query(
    spark: SparkSession, reference_log: StreamFactory, name: str, tmp_path: Path
) -> None:
    orders = reference_log.create("orders", PARTITIONS)
    target, other = reference_log.create("target"), reference_log.create("other")

    def write(checkpoint: str, to: LogStream) -> None:
        given = orders.options("amqp-events", startingOffsets="earliest")
        frame = spark.readStream.format("amqp-events").options(**given).load().select("value").coalesce(1)
        writer = frame.writeStream.format(name).options(**to.options(name))
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)

    def numbers(of: LogStream) -> Counter[int]:
        return Counter(int(event.body) for event in stored(of))

    once = Counter(range(20))
    append(orders, 0, 10)
    write("original", target)
    for copy in ("moved", "elsewhere"):
        shutil.copytree(tmp_path / "original", tmp_path / copy)
    append(orders, 10, 10)
    write("moved", target)
    assert numbers(target) == once, "a checkpoint that has moved goes on"
    write("elsewhere", other)
    assert numbers(other) == Counter(range(10, 20)), "and one for another target, from where it was copied"
    # The original does what its copy has done: the same micro-batch, with the same rows.
    write("original", target)
    twice = once + Counter(range(10, 20))
    assert numbers(target) == (twice if name == "amqp-events" else once)
    if name == "amqp-events":
        texts = {event.message.id: event.body for event in stored(target)}
        assert len(texts) == 20, "under the same ids"
    # Then each has other rows in a micro-batch of one number.
    append(orders, 20, 5)
    write("moved", target)
    append(orders, 25, 5)
    before = numbers(target)
    if name == "amqp-events":
        write("original", target)
        ids: dict[str, set[bytes]] = {}
        for event in stored(target):
            ids.setdefault(event.message.id, set()).add(event.body)
        assert max(map(len, ids.values())) == 2, "nothing notices: one id has two rows"
        return
    with pytest.raises(PySparkException, match="rows-differ"):
        write("original", target)
    assert numbers(target) == before, "nothing of it is stored"


def test_spark_ends_the_one_that_runs_when_another_starts_in_its_application(
    spark: SparkSession, reference_log: StreamFactory, tmp_path: Path
) -> None:
    orders = reference_log.create("orders", PARTITIONS)
    count = append(orders, 0, 10)
    original = Reading(tmp_path / "original", tmp_path / "spool")
    original.start(original.load(spark, orders, "amqp-events"))
    original.wait_for_rows(count)
    copy = original.copy(tmp_path / "copy", tmp_path / "spool")
    with original, copy:
        running: Any = copy.start(copy.load(spark, orders, "amqp-events"))
        eventually(lambda: not original.running.isActive, "Spark ends the original", WAIT_S, query=running)
        assert original.running.exception() is None, "without an error"
        assert running.id == original.running.id
        count = append(orders, count, 10)
        copy.wait_for_rows(count)
        assert Counter(copy.numbers()) == Counter(range(count))
        assert len(original.rows) == 10
