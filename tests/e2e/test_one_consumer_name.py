"""Two queries with one consumer name, or in one consumer group, run beside each other, as a mistake or on purpose.

Never does each read a part: a checkpoint says where a query goes on, and no broker's group. The name is for tools that
show lag, and for exclusion where that is asked for: then one waits or fails with words that name the group, and has
every event once when it is started again.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.testing import KeptQuery, eventually
from tests.e2e.places import HUB, REAL, Place

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1_800)]

WAIT_S = 240
PARTITIONS = 2
ROUNDS = 8
LARGE, WIDTH = 6_000, 10_000
"""Events, and bytes of each, that a task has not read whole while nobody takes its rows."""


class Beside:
    """Two queries of one stream, each of which is started again when it has failed.

    Args:
        spark: the session.
        place: what they read.
        folder: for their checkpoints.
        options: of each.
    """

    def __init__(self, spark: SparkSession, place: Place, folder: Path, *options: dict[str, str]) -> None:
        self._spark, self._place = spark, place
        self.options = options
        self.queries = [KeptQuery(folder / str(n), timeout_s=WAIT_S) for n in range(len(options))]
        self.failures: list[list[str]] = [[] for _ in options]
        self.appended: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

    def load(self, number: int) -> DataFrame:
        return self._place.load(self._spark, startingOffsets="earliest", **self.options[number])

    def start(self, number: int) -> None:
        self.queries[number].start(self.load(number))

    def append(self, chance: random.Random) -> None:
        for partition, numbers in self.appended.items():
            count = chance.randrange(1, 200)
            self._place.append(partition, len(numbers), len(numbers) + count)
            numbers += range(len(numbers), len(numbers) + count)

    def look(self) -> None:
        """Start those again that have failed, and note why they did."""
        for number, query in enumerate(self.queries):
            if not query.running.isActive:
                fault = query.running.exception()
                assert fault is not None
                (why,) = re.findall(r"^spark_streams\.errors\.(.*)$", str(fault), re.M)[:1] or [str(fault)]
                self.failures[number].append(why)
                self.start(number)

    def end(self) -> None:
        """Stop them; let each come to the end alone; and check that it has every event once."""
        for query in self.queries:
            with contextlib.suppress(PySparkException):
                query.stop()
        for number, query in enumerate(self.queries):
            query.drain(self.load(number))
            query.drain(self.load(number))  # before Spark 4.2 the first may only repeat what was cut short
            assert self._place.numbers(query.rows) == self.appended


def beside(
    spark: SparkSession, create: Callable[[int], Place], folder: Path, chance: random.Random, *options: dict[str, str]
) -> Beside:
    """Have two queries read a stream that grows, and return how they have fared."""
    both = Beside(spark, create(PARTITIONS), folder, *options)
    both.append(chance)
    for number in range(len(options)):
        both.start(number)
    for _ in range(ROUNDS):
        time.sleep(chance.uniform(0, 1.0))  # a load's rhythm: nothing is waited for
        both.append(chance)
        both.look()
    return both


NAMES = {"consumerName": "billing", "storeOffsets": "true"}
ACTIVE = {"consumerName": "billing", "singleActiveConsumer": "true"}
GROUP = {"consumerGroup": "billing"}
ONE, TWO = {**GROUP, "epoch": "1"}, {**GROUP, "epoch": "2"}


class Case(NamedTuple):
    """Options of two queries, and what each says when the second comes while the first one reads; None: it reads on."""

    first: dict[str, str]
    second: dict[str, str]
    of_first: str | None = None
    of_second: str | None = None


STOLEN = "OwnershipLost: .*consumer group 'billing'"
CASES: dict[tuple[str, str], Case] = {
    ("rabbitmq-stream", "a name"): Case(NAMES, NAMES),
    (REAL, "a name"): Case(NAMES, NAMES),
    ("rabbitmq-stream", "single active"): Case(ACTIVE, ACTIVE, None, "another consumer of 'billing' is the active one"),
    (REAL, "single active"): Case(ACTIVE, ACTIVE, None, "another consumer of 'billing' is the active one"),
    ("amqp-events", "a group"): Case(GROUP, GROUP, None, "is taken in consumer group 'billing'"),
    (HUB, "a group"): Case(GROUP, GROUP),
    ("amqp-events", "one epoch"): Case(ONE, ONE, None, "is taken in consumer group 'billing' with epoch 1"),
    (HUB, "one epoch"): Case(ONE, ONE, STOLEN, None),
    ("amqp-events", "a higher epoch"): Case(ONE, TWO, STOLEN, None),
    (HUB, "a higher epoch"): Case(ONE, TWO, STOLEN, None),
}
EACH = pytest.mark.parametrize(
    ("create", "case"),
    [
        pytest.param(place, case, id=f"{place}-{name}", marks=[pytest.mark.rabbitmq] if place == REAL else [])
        for (place, name), case in CASES.items()
    ],
    indirect=["create"],
)


@EACH
def test_each_has_every_event_once(
    spark: SparkSession, create: Callable[[int], Place], case: Case, tmp_path: Path, chance: random.Random
) -> None:
    both = beside(spark, create, tmp_path, chance, case.first, case.second)
    both.end()
    for said, failures in zip((case.of_first, case.of_second), both.failures, strict=True):
        # Where the place is taken turn by turn, whichever came late is told so.
        assert all(re.search(said or case.of_first or case.of_second or "$^", failure) for failure in failures), (
            failures
        )


@EACH
def test_the_second_comes_while_the_first_one_reads(
    spark: SparkSession, create: Callable[[int], Place], case: Case, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")  # else Spark holds all of it
    place = create(1)
    place.append(0, 0, LARGE, WIDTH)
    held, go_on = tmp_path / "held", tmp_path / "go-on"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            held.touch()
            while not go_on.exists():
                time.sleep(0.05)
            yield batch

    first, second = (KeptQuery(tmp_path / str(n), timeout_s=WAIT_S) for n in range(2))
    given = {"startingOffsets": "earliest", "requestTimeout": "6000"}
    with first, second:
        frame = place.load(spark, **given, **case.first)
        first.start(frame.mapInArrow(hold, frame.schema))
        eventually(held.exists, "a task holds", WAIT_S, query=first.running)
        second.start(place.load(spark, **given, **case.second))
        check(second, place, case.of_second)
        go_on.touch()
        check(first, place, case.of_first)
    for query, options in ((first, case.first), (second, case.second)):
        query.drain(place.load(spark, **given, **options))
        assert place.numbers(query.rows) == {0: list(range(LARGE))}


def check(query: KeptQuery, place: Place, said: str | None) -> None:
    """Have a query read all of it, or fail with what is to be said."""
    if said is None:
        query.wait_for_rows(LARGE)
        return
    with pytest.raises(PySparkException, match=said):
        query.wait_for_rows(LARGE)
    assert not query.committed(), "none of it is done"
