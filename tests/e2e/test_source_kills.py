"""kill -9 of whole queries that read all three formats into files, again and again: every event is there, and once.

The feed is a scripted one that never answers the same twice: other order, other pages and other cursors at each read.
Without the spool, a micro-batch that is run again would have other rows than the part of it that was written
(docs/adr/0044-feeds-are-spooled.md). Every other life is killed where tasks have done some of their rows and hold; the
others are killed at random.
"""

from __future__ import annotations

import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from spark_streams.testing import StreamFactory
from tests.client.feed.scripted import BadFeed, Part, numbered
from tests.e2e.lives import Job, check_once
from tests.e2e.rabbitmq.broker import Broker
from tests.e2e.rabbitmq.conftest import Real

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

PARTITIONS = 2
ROWS = 1_200
"""Appended to each partition before each life."""
BATCH = 1_200
"""Rows of a micro-batch, of both partitions together, where Spark has limits."""
HOLD = 150
"""Rows that a task does before it holds."""


class Origin(ABC):
    """What is read, and by which options; ``expected`` are the rows that must come of it."""

    format: str
    options: dict[str, str]
    select: list[str]

    def __init__(self) -> None:
        self.options = {"startingOffsets": "earliest"}
        if HAS_ADMISSION_CONTROL:
            # At least, too: a feed's micro-batch takes what has come within a moment, in which no task may have HOLD.
            self.options |= {"maxOffsetsPerTrigger": str(BATCH), "minOffsetsPerTrigger": str(BATCH)}
        self.expected: list[tuple[Any, ...]] = []

    @abstractmethod
    def append(self, first: int) -> None:
        """Append the events ``first`` to ``first + ROWS - 1`` to each partition."""


class OfTheLog(Origin):
    """A stream of the log: rows have their offset."""

    select = ["partition", "offset", "cast(value AS STRING) AS value"]  # noqa: RUF012

    def __init__(self, streams: StreamFactory, format: str) -> None:
        super().__init__()
        self.format = format
        self.stream = streams.create("orders", PARTITIONS)
        self.options = self.stream.options(format, **self.options)
        if format == "amqp-events":
            self.options["minPartitions"] = "4"

    def append(self, first: int) -> None:
        for partition in range(PARTITIONS):
            texts = {n: f"{partition}-{n}" for n in range(first, first + ROWS)}
            self.stream.produce({"value": text, "partition": str(partition)} for text in texts.values())
            name = f"{self.stream.name}-{partition}" if self.format == "rabbitmq-stream" else str(partition)
            self.expected += [(name, f"{n:020d}", text) for n, text in texts.items()]


class OfAnEventHub(OfTheLog):
    """A stream of the log, read as an event hub."""

    def __init__(self, streams: StreamFactory) -> None:
        super().__init__(streams, "amqp-events")
        del self.options["url"]
        self.options |= {"connectionString": streams.event_hubs_connection_string, "stream": self.stream.name}


class OfRabbitMQ(Origin):
    """A super stream of a real RabbitMQ over AMQP 1.0, whose offsets have holes."""

    format = "amqp-events"
    select = ["partition", "offset", "cast(value AS STRING) AS value"]  # noqa: RUF012

    def __init__(self, broker: Broker, url: str) -> None:
        super().__init__()
        self.broker = broker
        self.name = broker.create_super(PARTITIONS)
        self.options |= {"url": url, "superStream": self.name, "minPartitions": "4"}
        self.next = dict.fromkeys(range(PARTITIONS), 0)
        self.holes = 0

    def append(self, first: int) -> None:
        for partition in range(PARTITIONS):
            stream = f"{self.name}-{partition}"
            texts = [f"{partition}-{n}" for n in range(first, first + ROWS)]
            self.broker.publish(stream, texts, each=100)
            offsets = range(self.next[partition], self.next[partition] + ROWS)
            self.expected += [(stream, f"{n:020d}", text) for n, text in zip(offsets, texts, strict=True)]
            self.broker.store(stream, "somebody", first)
            self.next[partition] += ROWS + 1
            self.holes += 1


class OfAFeed(Origin):
    """A feed that behaves as badly as it may."""

    format = "feedapi"
    select = ["partition", "cast(value AS STRING) AS value"]  # noqa: RUF012

    def __init__(self, feed: BadFeed, folder: Path) -> None:
        super().__init__()
        self.feed = feed
        self.options |= {"url": f"{feed.url}/orders", "pollInterval": "50", "spoolLocation": str(folder / "spool")}

    def append(self, first: int) -> None:
        for partition in range(PARTITIONS):
            events = numbered(partition * 1_000_000 + first, partition * 1_000_000 + first + ROWS)
            self.feed.add(partition, *events)
            self.expected += [(str(partition), event.decode()) for event in events]


@contextlib.contextmanager
def bad_feed(chance: random.Random) -> Iterator[BadFeed]:
    parts = {partition: Part() for partition in range(PARTITIONS)}
    with BadFeed(parts, page=lambda: chance.randint(1, 400), every=50) as feed:
        feed.shuffled = True
        feed.same_cursors = False
        feed.unknown_lines = True
        yield feed


@pytest.mark.timeout(3_600)
def test_every_event_is_there_once(
    spark: SparkSession, reference_log: StreamFactory, tmp_path: Path, chance: random.Random
) -> None:
    with bad_feed(chance) as feed:
        origins: dict[str, Origin] = {
            "amqp": OfTheLog(reference_log, "amqp-events"),
            "rabbitmq": OfTheLog(reference_log, "rabbitmq-stream"),
        }
        if HAS_ADMISSION_CONTROL:  # which streams of feeds need
            origins["feed"] = OfAFeed(feed, tmp_path)
        live(spark, tmp_path, origins, chance, 20)


@pytest.mark.timeout(3_600)
def test_every_event_of_an_event_hub_is_there_once(
    spark: SparkSession, reference_log: StreamFactory, tmp_path: Path, chance: random.Random
) -> None:
    live(spark, tmp_path, {"event hub": OfAnEventHub(reference_log)}, chance, 20)


@pytest.mark.rabbitmq
@pytest.mark.timeout(3_600)
def test_every_event_of_rabbitmq_is_there_once_over_amqp(
    spark: SparkSession, rabbitmq_url: str, rabbitmq_amqp_url: str, tmp_path: Path, chance: random.Random
) -> None:
    with contextlib.closing(Real(rabbitmq_url)) as broker:
        origin = OfRabbitMQ(broker, rabbitmq_amqp_url)
        live(spark, tmp_path, {"rabbitmq over amqp": origin}, chance, 10)
        assert origin.holes, "stored offsets use up some"


def live(spark: SparkSession, folder: Path, origins: Mapping[str, Origin], chance: random.Random, lives: int) -> None:
    """Copy what is appended into files, in a program that is killed again and again, and check what is there."""
    copies = {
        name: {
            "source": {"format": origin.format, "options": origin.options},
            "select": origin.select,
            "sink": {"format": "parquet", "options": {"path": str(folder / f"files-{name}")}},
        }
        for name, origin in origins.items()
    }
    job = Job(folder, copies, pause=0.05, cores=len(copies) * PARTITIONS + 2)
    for life in range(lives):
        for origin in origins.values():
            origin.append(life * ROWS)
        holds = life % 2 == 0
        before = {name: copy.newest("commits") for name, copy in job.copies.items()}
        with job.life(hold=HOLD if holds else None):
            for name, copy in job.copies.items():
                if holds:
                    job.wait(lambda name=name: job.holds(name))
                else:
                    job.wait(lambda copy=copy, done=before[name]: copy.newest("commits") > done)
            time.sleep(0 if holds else chance.uniform(0, 1.5))
        assert not holds or all(copy.in_the_middle() for copy in job.copies.values())
    job.drain()
    for name, origin in origins.items():
        rows = spark.read.parquet(str(folder / f"files-{name}")).collect()
        check_once(map(tuple, rows), set(origin.expected))
    assert "are lost, they are fetched again" not in job.output.read_text()
