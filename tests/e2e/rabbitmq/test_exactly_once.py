"""kill -9 of a whole streaming copy at random moments, again and again: every row is there once, and only once.

docs/adr/0010-rabbitmq-exactly-once.md has the argument.
"""

from __future__ import annotations

import collections
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from spark_streams.spark.reader import HAS_ADMISSION_CONTROL
from tests.e2e.lives import START_S, Copy
from tests.e2e.rabbitmq.broker import Broker, body, numbers
from tests.real_rabbitmq.conftest import URL

pytestmark = pytest.mark.spark

PARTITIONS = 3
ROWS = 6_000
"""Of each partition: more than a few lives of the copy can write, a micro-batch being of 3,000."""


def stored(broker: Broker, name: str) -> int:
    return sum(len(broker.read(f"{name}-{i}")) for i in range(PARTITIONS))


def drain(spark: Any, copy: Copy, given: dict[str, Any]) -> None:
    """Do what is left to do; this is one more life, in this process, whose Spark is there already."""
    source, sink = given["source"], given["sink"]
    # Before 4.2 Spark runs one micro-batch then: the one that was cut short, if there is one, takes another life.
    for _ in range(2 if copy.in_the_middle() and not HAS_ADMISSION_CONTROL else 1):
        frame = spark.readStream.format(source["format"]).options(**source["options"]).load()
        writer = frame.selectExpr(*given["select"]).writeStream.format(sink["format"]).options(**sink["options"])
        query = writer.option("checkpointLocation", str(copy.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(START_S), query.lastProgress


SUB_ENTRIES = {"subEntrySize": "20", "compression": "gzip"}


NIGHTLY = pytest.mark.nightly
RABBITMQ = pytest.mark.rabbitmq


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("broker", "kills", "more"),
    [
        pytest.param("rabbitmq", 2, {}, id="rabbitmq, 2 kills", marks=RABBITMQ),
        # Always where there is no RabbitMQ.
        pytest.param("embedded", 2, {}, id="embedded, 2 kills", marks=NIGHTLY if URL in os.environ else ()),
        pytest.param("rabbitmq", 20, {}, id="rabbitmq, 20 kills", marks=[RABBITMQ, NIGHTLY]),
        pytest.param("embedded", 20, {}, id="embedded, 20 kills", marks=NIGHTLY),
        pytest.param("rabbitmq", 5, SUB_ENTRIES, id="rabbitmq, 5 kills, sub-entry batches", marks=[RABBITMQ, NIGHTLY]),
        pytest.param("embedded", 5, SUB_ENTRIES, id="embedded, 5 kills, sub-entry batches", marks=NIGHTLY),
    ],
    indirect=["broker"],
)
def test_every_row_is_there_once(
    spark: Any, broker: Broker, tmp_path: Path, kills: int, more: dict[str, str], rate_limits: bool
) -> None:
    broker.needs(0x1D)  # CreateSuperStream
    orders, copies = broker.create_super(PARTITIONS, "orders"), broker.create_super(PARTITIONS, "copies")
    expected: list[str] = []
    for i in range(PARTITIONS):
        texts = numbers(0, ROWS, f"{i}-")
        broker.publish(f"{orders}-{i}", [body(text) for text in texts])
        expected += texts
    read = {"superStream": orders, "startingOffsets": "earliest"}
    if rate_limits:
        read["maxOffsetsPerTrigger"] = "3000"
    given = {
        "source": {"format": "rabbitmq-stream", "options": {"url": broker.url, **read}},
        "select": ["value", "cast(value AS STRING) AS key"],
        "sink": {"format": "rabbitmq-stream", "options": {"url": broker.url, "superStream": copies, **more}},
        "pause": 0.02 if rate_limits else 0.1,  # one micro-batch has all of it then
    }
    copy = Copy(tmp_path, given)
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    for _ in range(kills):
        before = stored(broker, copies)
        with copy.life():
            copy.wait(lambda before=before: before >= len(expected) or stored(broker, copies) != before, 0.2)
            time.sleep(chance.uniform(0, 1.5))
    cut_short = stored(broker, copies)
    drain(spark, copy, given)
    found = collections.Counter(text for i in range(PARTITIONS) for text in broker.bodies(f"{copies}-{i}"))
    doubled = {text: count for text, count in found.items() if count > 1}
    assert not doubled, f"{len(doubled)} rows are there more than once, such as {next(iter(doubled.items()))}"
    missing = set(expected) - set(found)
    assert not missing, f"{len(missing)} rows are not there, such as {next(iter(missing))}"
    assert set(found) == set(expected)
    assert kills > 5 or cut_short < len(expected), "the kills came before the end"
