"""A Spark task that fails and is tried again sends its rows a second time under the same message-ids.

A module of its own: Spark retries tasks of a local session only when its master says so.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_streams.testing import StreamFactory
from tests.e2e.stored import stored
from tests.sessions import session_of_its_own

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def retrying() -> Iterator[SparkSession]:
    """A session of two cores whose tasks may fail twice."""
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    with session_of_its_own("local[2,3]", **settings) as session:
        yield session


def test_a_task_tried_again_repeats_its_ids(
    retrying: SparkSession, reference_log: StreamFactory, tmp_path: Path
) -> None:
    orders = reference_log.create("orders")
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
    rows.write.format("amqp-events").options(**orders.options("amqp-events")).mode("append").save()

    bodies, events = collections.defaultdict(set), stored(orders)
    for event in events:
        bodies[event.message.id].add(int(event.body))

    assert os.path.exists(marker)
    assert len(events) > 4_000, "the test means something only if the first attempt delivered a part"
    assert len(bodies) == 4_000
    assert sorted(number for numbers in bodies.values() for number in numbers) == list(range(4_000))
    assert {i.split("/")[2] for i in bodies} == {"0", "1"}
    assert len({i.split("/")[0] for i in bodies}) == 1
