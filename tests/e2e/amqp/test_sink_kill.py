"""kill -9 of the whole job, AMQP to Spark to AMQP, in mid-batch: no row is lost, and repeated ones keep their ids."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from spark_streams.testing import LogStream, StreamFactory
from tests.e2e.lives import Copy
from tests.e2e.stored import stored

pytestmark = pytest.mark.spark

PARTITIONS = 3


def count(stream: LogStream) -> int:
    return sum(int(last) + 1 for last in stream.ends().values())


@pytest.mark.timeout(1_200)
def test_killed_in_the_middle_of_a_batch(reference_log: StreamFactory, tmp_path: Path, rate_limits: bool) -> None:
    orders, copies = (reference_log.create(name, PARTITIONS) for name in ("orders", "copies"))
    expected = []

    def produce(low: int, high: int) -> None:
        for partition in range(PARTITIONS):
            texts = [f"{partition}-{n}" for n in range(low, high)]
            orders.produce({"value": text, "partition": str(partition)} for text in texts)
            expected.extend(texts)

    limit = {"maxOffsetsPerTrigger": "600"} if rate_limits else {}
    read = orders.options("amqp-events", startingOffsets="earliest", **limit)
    copy = Copy(
        tmp_path,
        {
            "source": {"format": "amqp-events", "options": read},
            "select": ["value", "partition"],
            "sink": {"format": "amqp-events", "options": copies.options("amqp-events")},
            "rows": 20,
            "pause": 0.05,
        },
    )
    produce(0, 400)
    with copy.life():
        copy.wait(lambda: copy.newest("commits") >= 0)
        done = copy.newest("commits")
        produce(400, 800)  # a second batch, also where Spark has no limits
        # With limits, one that begins now.
        copy.wait(lambda: copy.newest("offsets") > done + rate_limits)
        before = count(copies)
        copy.wait(lambda: count(copies) >= before + 100)
    assert copy.in_the_middle(), "the kill found a batch in the middle"
    copy.drain()

    by_id, found = collections.defaultdict(set), []
    for event in stored(copies):
        text = event.body.decode()
        by_id[event.message.id].add(text)
        found.append(text)
        assert text.startswith(f"{event.partition}-"), "rows keep their partition"
    assert len(found) > len(expected), "the batch that was cut short was written again"
    assert sorted(set(found)) == sorted(expected), "no row is lost"
    assert all(len(texts) == 1 for texts in by_id.values()), "one id never names two rows"
    assert len(by_id) == len(expected), "a repeated row has the id that it had"
