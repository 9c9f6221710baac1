"""A query that writes to a log whose disk is full: a clear error, reads go on, and with room nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import SparkSession

from spark_streams.testing import StreamFactory, eventually
from tests.faults.full_disk.disk import Disk
from tests.faults.full_disk.scenarios import LARGE, Doors
from tests.fuzz.witness import peer_of, read_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

WAIT_S = 240
SAID = {
    "amqp-events": "amqp:resource-limit-exceeded",
    "rabbitmq-stream": "internal-error",
    "feedapi": "status 507",
}


def options(doors: Doors, name: str, **more: str) -> dict[str, str]:
    if name == "feedapi":
        return {"url": f"{doors.urls['feedapi']}/s", **more}
    door = "amqp" if name == "amqp-events" else name
    return {"url": doors.urls[door].replace("//", "//guest:guest@"), "stream": "s", **more}


def start(
    spark: SparkSession, origin: dict[str, str], name: str, target: dict[str, str], checkpoint: Path, **trigger: bool
) -> Any:
    """Start a copy, or start it again where it was."""
    frame = spark.readStream.format("amqp-events").options(**origin).load().select("value")
    writer = frame.writeStream.format(name).options(**target).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()


@pytest.mark.nightly  # by day the doors have it: tests/faults/full_disk
@pytest.mark.parametrize("name", ["rabbitmq-stream", "amqp-events", "feedapi"])
def test_a_query_whose_log_has_no_room(
    spark: SparkSession,
    reference_log: StreamFactory,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [f'{{"n":{n},"x":"{"x" * LARGE}"}}' for n in range(20)]
    orders = reference_log.create("orders")
    origin = orders.options("amqp-events", startingOffsets="earliest")
    disk = Disk(tmp_path / "log", monkeypatch)
    with Doors(tmp_path / "log") as doors:
        doors.log.create_stream("s")
        target, checkpoint = options(doors, name, requestTimeout="10000"), tmp_path / "checkpoint"

        def stored() -> list[str]:
            door = "amqp" if name == "amqp-events" else name
            return [event.decode() for event in read_all(peer_of(doors.urls, door, "s"))]

        orders.produce(events[:10])
        query = start(spark, origin, name, target, checkpoint)
        try:
            eventually(lambda: stored() == events[:10], "the first half is copied", WAIT_S, query=query)
            disk.fill()
            orders.produce(events[10:])
            with pytest.raises(StreamingQueryException) as caught:
                query.awaitTermination(WAIT_S)
        finally:
            query.stop()
        assert SAID[name] in str(caught.value)
        during = stored()
        assert during[:10] == events[:10] and len(during) < 20, "reads go on, and not all was taken"
        disk.free()
        assert start(spark, origin, name, target, checkpoint, availableNow=True).awaitTermination(WAIT_S)
        found = Counter(stored())
    assert found.keys() == set(events)
    if name != "amqp-events":  # which is at least once
        assert set(found.values()) == {1}
