"""kill -9 of whole streaming copies in all three formats, again and again: what docs/delivery.md promises of each.

RabbitMQ streams and feeds have every row once, and only once (docs/adr/0010-rabbitmq-exactly-once.md and
docs/adr/0015-feed-sink.md have the arguments); AMQP has every row, and repeated ones with the ids that they had. Every
other life is killed where tasks have done some of their rows and hold; the others are killed at random.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from spark_streams.testing import StreamFactory
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from tests.e2e.lives import Job, check_once
from tests.e2e.rabbitmq.broker import Broker, body
from tests.e2e.rabbitmq.conftest import broker as broker
from tests.e2e.stored import stored
from tests.real_rabbitmq.conftest import URL
from tests.real_rabbitmq.conftest import rabbitmq_url as rabbitmq_url

pytestmark = pytest.mark.spark

PARTITIONS = 2
ROWS = 2_000
"""Appended to each partition before each life."""
BATCH = PARTITIONS * ROWS
"""Rows of a micro-batch, of both partitions together, where Spark has limits."""
HOLD = 1_500
"""Rows that a task does before it holds: the RabbitMQ sink stores rows by the 1,024."""


class Target(ABC):
    """A copy, as Job takes it (``given``), and what it writes to."""

    given: dict[str, Any]

    @abstractmethod
    def append(self, values: list[list[str]]) -> None:
        """Append values to what is copied, partition by partition."""

    @abstractmethod
    def size(self) -> int:
        """How much is stored; it tells when more is."""

    @abstractmethod
    def check(self, expected: set[str]) -> None:
        """Compare what is stored with what was to be copied."""


def limited() -> dict[str, str]:
    """Options of a read from the beginning on.

    A micro-batch has a life's rows, so that one of its two tasks has more than ``HOLD``. At most alone would not do: a
    feed's takes what has come within a moment, which may be a page of each partition, and no task would ever hold.
    """
    limits = {"maxOffsetsPerTrigger": str(BATCH), "minOffsetsPerTrigger": str(BATCH)} if HAS_ADMISSION_CONTROL else {}
    return {"startingOffsets": "earliest"} | limits


class OfTheLog(Target):
    """Copies a stream of the log."""

    def __init__(self, streams: StreamFactory) -> None:
        self.orders = streams.create("orders", PARTITIONS)

    def append(self, values: list[list[str]]) -> None:
        for partition, texts in enumerate(values):
            self.orders.produce({"value": text, "partition": str(partition)} for text in texts)


class Amqp(OfTheLog):
    """Rows keep their partition; the log may have them more than once."""

    def __init__(self, streams: StreamFactory) -> None:
        super().__init__(streams)
        self.copies = streams.create("copies", PARTITIONS)
        self.given = {
            "source": {"format": "amqp-events", "options": self.orders.options("amqp-events", **limited())},
            "select": ["value", "partition"],
            "sink": {"format": "amqp-events", "options": self.copies.options("amqp-events")},
        }

    def size(self) -> int:
        return sum(int(last) + 1 for last in self.copies.ends().values())

    def check(self, expected: set[str]) -> None:
        by_id, found = collections.defaultdict(set), []
        for event in stored(self.copies):
            text = event.body.decode()
            by_id[event.message.id].add(text)
            found.append(text)
            assert text.startswith(f"{event.partition}-"), "rows keep their partition"
        assert set(found) == expected, "no row is lost"
        assert all(len(texts) == 1 for texts in by_id.values()), "one id never names two rows"
        assert len(by_id) == len(expected), "a repeated row has the id that it had"


class RabbitMq(Target):
    """On the broker of the test; by its keys every row goes to a partition."""

    def __init__(self, broker: Broker, more: dict[str, str]) -> None:
        broker.needs(0x1D)  # CreateSuperStream
        self.broker = broker
        self.orders, self.copies = (broker.create_super(PARTITIONS, name) for name in ("orders", "copies"))
        self.given = {
            "source": {
                "format": "rabbitmq-stream",
                "options": {"url": broker.url, "superStream": self.orders, **limited()},
            },
            "select": ["value", "cast(value AS STRING) AS key"],
            "sink": {"format": "rabbitmq-stream", "options": {"url": broker.url, "superStream": self.copies, **more}},
        }

    def size(self) -> int:
        return sum(chunk.records for i in range(PARTITIONS) for chunk in self.broker.chunks(f"{self.copies}-{i}"))

    def append(self, values: list[list[str]]) -> None:
        for partition, texts in enumerate(values):
            self.broker.publish(f"{self.orders}-{partition}", [body(text) for text in texts])

    def check(self, expected: set[str]) -> None:
        check_once([text for i in range(PARTITIONS) for text in self.broker.bodies(f"{self.copies}-{i}")], expected)


class Feed(OfTheLog):
    """A feed at the log's door, and its events in a log's folder, which nobody serves, or at its door."""

    def __init__(self, streams: StreamFactory, folder: Path, where: str) -> None:
        super().__init__(streams)
        options = self.orders.options("feedapi", spoolLocation=str(folder / "spool"), **limited())
        if where == "door":
            self.copies = streams.create("copies", PARTITIONS)
            sink = self.copies.options("feedapi")
        else:
            self.folder = folder / "copies"
            with ReferenceLog(self.folder) as log:
                log.create_stream("copies", PARTITIONS)
            sink = {"url": str(self.folder), "stream": "copies"}
        self.where = where
        self.given = {
            "source": {"format": "feedapi", "options": options},
            "select": ["value", "cast(value AS STRING) AS key"],
            "sink": {"format": "feedapi", "options": sink},
        }

    def size(self) -> int:
        if self.where == "door":
            return sum(int(last) + 1 for last in self.copies.ends().values())
        return sum(each.stat().st_size for each in (self.folder / "streams").rglob("*.log"))

    def check(self, expected: set[str]) -> None:
        check_once(self.copies.values() if self.where == "door" else list(self._in_the_folder()), expected)

    def _in_the_folder(self) -> Iterator[str]:
        with ReferenceLog(self.folder) as log:
            for partition in log.stream("copies").partitions.values():
                at = partition.first_offset
                while at < partition.next_offset:
                    records = partition.read(at)
                    block = MessageBlock(records.buffer, records.value_starts, records.value_ends)
                    yield from (v.decode() for v in decode_columns(block, ("value",))["value"].to_pylist())
                    at += len(records)


def append_to(targets: Mapping[str, Target], life: int, expected: set[str]) -> dict[str, int]:
    """Append a life's rows to the source of each, and to what is expected; return how much each has stored so far."""
    new = [[f"{partition}-{life}-{n}" for n in range(ROWS)] for partition in range(PARTITIONS)]
    expected.update(*new)
    before = {}
    for name, target in targets.items():
        target.append(new)
        before[name] = target.size()
    return before


SUB_ENTRIES = {"subEntrySize": "20", "compression": "gzip"}
NIGHTLY = pytest.mark.nightly
RABBITMQ = pytest.mark.rabbitmq


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("broker", "kills", "more", "where"),
    [
        pytest.param("rabbitmq", 1, {}, "door", id="a kill, rabbitmq", marks=RABBITMQ),
        # By day where there is no RabbitMQ.
        pytest.param("embedded", 1, {}, "folder", id="a kill", marks=NIGHTLY if URL in os.environ else ()),
        pytest.param("rabbitmq", 20, {}, "folder", id="20 kills, rabbitmq", marks=[RABBITMQ, NIGHTLY]),
        pytest.param("embedded", 20, {}, "door", id="20 kills", marks=NIGHTLY),
        pytest.param("rabbitmq", 6, SUB_ENTRIES, "door", id="sub-entry batches, rabbitmq", marks=[RABBITMQ, NIGHTLY]),
        pytest.param("embedded", 6, SUB_ENTRIES, "folder", id="sub-entry batches", marks=NIGHTLY),
    ],
    indirect=["broker"],
)
def test_every_row_is_there(
    spark: Any,
    reference_log: StreamFactory,
    broker: Broker,
    tmp_path: Path,
    chance: random.Random,
    kills: int,
    more: dict[str, str],
    where: str,
) -> None:
    targets = {"amqp": Amqp(reference_log), "rabbitmq": RabbitMq(broker, more)}
    if HAS_ADMISSION_CONTROL:  # which streams of feeds need
        targets["feed"] = Feed(reference_log, tmp_path, where)
    given = {name: target.given for name, target in targets.items()}
    job = Job(tmp_path, given, rows=100, in_sink=True, cores=len(targets) * PARTITIONS)
    expected: set[str] = set()
    for life in range(kills):
        before = append_to(targets, life, expected)
        holds = life % 2 == 0
        with job.life(hold=HOLD if holds else None):
            for name, target in targets.items():
                if holds:
                    job.wait(lambda name=name: job.holds(name), 0.2)
                if not holds or life == 0:  # later, what is stored may be what was
                    job.wait(lambda target=target, size=before[name]: target.size() != size, 0.2)
            time.sleep(0 if holds else chance.uniform(0, 1.5))
        assert not holds or all(copy.in_the_middle() for copy in job.copies.values())
    job.drain(spark)
    for target in targets.values():
        target.check(expected)
    assert targets["amqp"].size() > len(expected), "the batch that was cut short was written again"


KEPT_LIVES = 3
VICTIMS = ("all of it", "the JVM alone", "a Python worker")


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("broker", ["embedded", pytest.param("rabbitmq", marks=RABBITMQ)], indirect=True)
def test_while_connections_that_were_kept_are_in_use(
    spark: Any, reference_log: StreamFactory, broker: Broker, tmp_path: Path, chance: random.Random
) -> None:
    """A task gets the last one's connection (docs/adr/0045-processes-and-connections.md), and is killed with it."""
    targets: dict[str, Target] = {"amqp": Amqp(reference_log), "rabbitmq": RabbitMq(broker, {})}
    if HAS_ADMISSION_CONTROL:
        targets["feed"] = Feed(reference_log, tmp_path, "door")
    given = {name: target.given for name, target in targets.items()}
    job = Job(tmp_path, given, rows=100, in_sink=True, cores=len(targets) * PARTITIONS)
    expected: set[str] = set()
    numbers = itertools.count()

    def append() -> dict[str, int]:
        append_to(targets, next(numbers), expected)
        return {name: copy.newest("commits") for name, copy in job.copies.items()}

    for life in range(KEPT_LIVES):
        with job.life():
            while not all(job.keeps(name) for name in targets):  # as the second of two micro-batches may
                done = append()
                job.wait(lambda done=done: all(job.copies[name].newest("commits") > n for name, n in done.items()), 0.2)
            append()
            time.sleep(chance.uniform(0, 1.5))
            victim = VICTIMS[life % len(VICTIMS)]
            if victim == "the JVM alone":
                job.lose_spark()
            elif victim == "a Python worker":
                job.lose_a_worker(chance)
    append()
    job.drain(spark)
    for target in targets.values():
        target.check(expected)
