"""A Spark task that fails and is tried again sends its rows a second time under the same message-ids.

A module of its own: Spark retries tasks of a local session only when its master says so.
"""

from __future__ import annotations

import collections
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proton
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_streams

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def retrying() -> Iterator[SparkSession]:
    """A session of two cores whose tasks may fail twice."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("test_sink_retry")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .getOrCreate()
    )
    spark_streams.register(session)
    yield session
    session.stop()


def test_a_task_tried_again_repeats_its_ids(retrying: SparkSession, log_server: Any, tmp_path: Path) -> None:
    log_server.call(lambda: log_server.log.create_stream("orders", 1))
    marker = str(tmp_path / "failed-once")

    @F.udf("string")
    def fragile(number):  # no hints: Spark would read them as a wish for pandas
        if number == 3_500 and not os.path.exists(marker):
            time.sleep(3)  # what came before is on its way to the log by then
            with open(marker, "w"):
                pass
            raise RuntimeError("the first attempt fails in the middle")
        return f"{number:01000}"  # a kilobyte: more than the buffers between Spark and the sink hold back

    rows = retrying.range(0, 4_000, 1, 2).select(fragile("id").alias("value"))
    given = {"url": log_server.urls["amqp"], "username": "guest", "password": "guest", "stream": "orders"}
    rows.write.format("amqp-events").options(**given).mode("append").save()

    partition = log_server.log.stream("orders").partitions["0"]
    bodies, total, offset = collections.defaultdict(set), 0, partition.first_offset
    while (records := partition.read(offset)) is not None:
        for start, end in zip(records.value_starts.tolist(), records.value_ends.tolist(), strict=True):
            message = proton.Message()
            message.decode(bytes(records.buffer[start:end]))
            bodies[message.id].add(int(bytes(message.body)))
            total += 1
        offset = int(records.offsets[-1]) + 1

    assert os.path.exists(marker)
    assert total > 4_000, "the test means something only if the first attempt delivered a part"
    assert len(bodies) == 4_000
    assert sorted(number for numbers in bodies.values() for number in numbers) == list(range(4_000))
    assert {i.split("/")[2] for i in bodies} == {"0", "1"}
    assert len({i.split("/")[0] for i in bodies}) == 1
