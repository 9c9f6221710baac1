"""A stream is deleted under a running query and created again seconds later: no format ends, where losses may be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams.testing import KeptQuery, StreamFactory
from tests.e2e.by_day import FORMATS

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

AWAY_S = 3
"""Queries that do not wait end within two seconds."""


@pytest.mark.parametrize("events", [5, 30], ids=["fewer", "more"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_new_one_is_read_from_its_beginning(
    spark: SparkSession,
    reference_log: StreamFactory,
    tmp_path: Path,
    name: str,
    events: int,
    request: pytest.FixtureRequest,
) -> None:
    more = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    if name == "feedapi":
        request.getfixturevalue("streams_of_feeds")
        more["spoolLocation"] = str(tmp_path / "spool")
    orders = reference_log.create("orders", 1)
    old, new = ([f"{which}-{n}" for n in range(count)] for which, count in (("old", 10), ("new", events)))
    orders.produce(old)
    with KeptQuery(tmp_path / "query", timeout_s=240) as query:
        query.start(spark.readStream.format(name).options(**orders.options(name, **more)).load())
        query.wait_for_rows(len(old))
        orders.delete()
        time.sleep(AWAY_S)
        orders.create()
        orders.produce(new)
        query.wait_for_rows(len(old) + len(new))
        assert query.running.isActive
        assert [bytes(row.value).decode().strip('"') for row in query.rows] == [*old, *new]
