"""The log is restored from an older copy of its folder under a query: no format reads on as if nothing had happened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.testing import KeptQuery, LogProcess, LogStream, StreamFactory
from tests.e2e.by_day import FORMATS

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

WAIT_S = 240


class Copied:
    """A stream of a log of its own, of which there is an older copy.

    The copy has 10 events; the log has gone on to 25.
    """

    def __init__(self, log: LogProcess, folder: Path) -> None:
        self.log, self.folder = log, folder
        self.orders: LogStream = StreamFactory(log).create("orders", 1)
        self.append("kept", 10)
        log.stop()
        shutil.copytree(folder / "log", folder / "copy")
        log.start()
        self.append("lost", 15)

    def append(self, what: str, count: int) -> None:
        self.orders.produce([f'"{what}-{n}"' for n in range(count)])

    def restore(self) -> None:
        """Kill the log and start it from the copy."""
        self.log.kill()
        shutil.rmtree(self.folder / "log")
        shutil.copytree(self.folder / "copy", self.folder / "log")
        self.log.start()


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Copied]:
    with LogProcess(tmp_path / "log") as log:
        yield Copied(log, tmp_path)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[KeptQuery]:
    with KeptQuery(tmp_path, timeout_s=WAIT_S) as made:
        yield made


def load(spark: SparkSession, copied: Copied, name: str, **more: str) -> DataFrame:
    spool = {"spoolLocation": str(copied.folder / "spool")} if name == "feedapi" else {}
    given = copied.orders.options(name, startingOffsets="earliest", requestTimeout="120000", **spool, **more)
    return spark.readStream.format(name).options(**given).load()


def cases(one: str, other: str) -> list[Any]:
    """Each case in each format."""
    return [pytest.param(name, then, id=f"{name}-{then}") for then in (one, other) for name in FORMATS]


@pytest.mark.parametrize(("name", "then"), cases("it is shorter", "it was written on"))
def test_an_older_copy_is_a_loss(
    spark: SparkSession, copied: Copied, query: KeptQuery, name: str, then: str, request: pytest.FixtureRequest
) -> None:
    if name == "feedapi":
        request.getfixturevalue("streams_of_feeds")
    query.start(load(spark, copied, name))
    query.wait_for_rows(25)
    query.stop()
    copied.restore()
    if then == "it was written on":
        copied.append("other", 40)
    query.start(load(spark, copied, name))
    if then == "it is shorter":
        copied.append("other", 1)
    with pytest.raises(PySparkException, match="older copy"):
        query.running.awaitTermination(WAIT_S)
    query.start(load(spark, copied, name, failOnDataLoss="false"))
    events = [f'"kept-{n}"' for n in range(10)]
    events += [f'"other-{n}"' for n in range(40 if then == "it was written on" else 1)]
    query.wait_for_rows(25 + len(events))
    assert [bytes(row.value).decode() for row in query.rows[25:]] == events


@pytest.mark.parametrize(("name", "then"), cases("it fails", "it goes on"))
def test_an_older_copy_under_a_running_query_is_a_loss(
    spark: SparkSession, copied: Copied, query: KeptQuery, name: str, then: str, request: pytest.FixtureRequest
) -> None:
    """Whether the query looks before the log is written on, or afterwards."""
    if name == "feedapi":
        request.getfixturevalue("streams_of_feeds")
    query.start(load(spark, copied, name, failOnDataLoss=str(then == "it fails").lower()))
    query.wait_for_rows(25)
    copied.restore()
    copied.append("other", 40)
    if then == "it fails":
        with pytest.raises(PySparkException, match="older copy"):
            query.running.awaitTermination(WAIT_S)
        assert len(query.rows) == 25
        return
    query.wait_for_rows(75)
    events = [f'"kept-{n}"' for n in range(10)] + [f'"other-{n}"' for n in range(40)]
    assert [bytes(row.value).decode() for row in query.rows[25:]] == events
