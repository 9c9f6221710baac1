"""The programs of docs/guides, run as they stand on one log that has the events of their first page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from spark_streams.testing import LogProcess, StreamFactory
from tests.docs.guides import INDEX, Guides
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def guides(spark: Any, reference_log_process: LogProcess, tmp_path_factory: pytest.TempPathFactory) -> Guides:
    return Guides.of(spark, StreamFactory(reference_log_process), tmp_path_factory.mktemp("guides"))


def test_the_streams_and_the_events_of_the_first_page(reference_log: StreamFactory, tmp_path: Path) -> None:
    streams = Guides.of(None, reference_log, tmp_path).streams
    assert {name: len(stream.values()) for name, stream in streams.items() if stream.values()} == {
        "orders": 6,
        "payments": 3,
    }


@pytest.mark.nightly
def test_aggregate(guides: Guides) -> None:
    guides.run("aggregate")
    closed = ['{"hour":"2026-01-05T%s:00:00.000Z","customer":"%s","eur":%s}']
    (form,) = closed
    windows = [form % ("09", "ann", "42.0"), form % ("09", "bob", "500.0"), form % ("10", "ann", "8.0")]
    running = ['{"customer":"ann","eur":50.0}', '{"customer":"bob","eur":599.0}']
    assert sorted(guides.streams["totals"].values()) == sorted(windows + running)


@pytest.mark.nightly
def test_deduplicate(guides: Guides) -> None:
    guides.run("deduplicate")
    once = guides.streams["orders-once"].table(("key", "value")).to_pylist()
    assert sorted(row["key"] for row in once) == ["1", "2", "3", "4", "5"]
    assert all(row["value"].startswith(b'{"id": ') for row in once)


@pytest.mark.nightly
def test_join(guides: Guides) -> None:
    guides.run("join")
    countries = [(1, "NO"), (2, "DK"), (2, "DK"), (3, "NO"), (4, "NO"), (5, "DK")]
    assert guides.table("orders-by-country", "id", "country") == countries
    assert guides.table("paid", "id", "order") == [(1, 1), (3, 3)]


def test_foreach_batch(guides: Guides) -> None:
    guides.run("foreach-batch")
    assert [value[:8] for value in sorted(guides.streams["big-orders"].values())] == [
        '{"id": 2',
        '{"id": 2',
        '{"id": 5',
    ]
    assert len(guides.table("all-orders", "offset")) == 6


@pytest.mark.nightly
def test_to_table(guides: Guides, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        guides.run("to-table")
        shown = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
        assert {"|ann|3|", "|bob|3|"} <= set(shown)
    finally:
        guides.spark.sql("DROP TABLE IF EXISTS orders_table")


@pytest.mark.nightly
def test_delta_and_iceberg_with_parquet_in_their_place(guides: Guides) -> None:
    """There is neither for the newest Spark; test_guides_with_jars.py runs them on older ones."""
    names: dict[str, Any] = {}
    try:
        for program in blocks("docs/guides/delta-and-iceberg.md", "python"):
            program = re.sub('"(delta|iceberg)"', '"parquet"', program)
            guides.run_program(program.replace("lake.shop.orders", "iceberg_orders"), names)
        assert names["spark"].table("iceberg_orders").count() == len(guides.table("delta-orders"))
        assert guides.table("delta-large", "id") == [(2,), (2,), (5,)]
    finally:
        guides.spark.sql("DROP TABLE IF EXISTS iceberg_orders")


def test_event_schema(guides: Guides) -> None:
    from google.protobuf.struct_pb2 import Struct

    guides.streams["orders"].produce(["no order"])
    names = guides.run("event-schema")
    found = guides.table("typed-orders", "id", "string(eur)", "broken")
    assert (1, "12.00", None) in found and (5, "99.00", None) in found and (None, None, "no order") in found
    message = Struct()
    message.update({"id": 7, "customer": "ann"})
    events = guides.spark.createDataFrame([(message.SerializeToString(),)], "value BINARY")
    assert [tuple(row) for row in names["orders_of"](events).collect()] == [(7, "ann")]


@pytest.mark.nightly
def test_batch_to_stream(guides: Guides) -> None:
    done = guides.streams["orders"].values()
    (program,) = blocks("docs/guides/batch-to-stream.md", "python")
    first, second = program.split("# What is new.")
    names: dict[str, Any] = {}
    guides.run_program(first, names)
    guides.streams["orders"].produce([{"id": 6, "customer": "eve"}])
    guides.run_program(second, names)
    assert len(guides.table("from-batch")) == len(done)
    assert guides.table("from-stream", "customer") == [("eve",)]


def test_sizing(guides: Guides) -> None:
    before = len(guides.streams["orders"].values())
    sizes = guides.run("sizing", print=lambda sizes: None)["sizes"]
    assert [sum(batch) for batch in sizes] == [4] * (before // 4) + [before % 4] * (before % 4 > 0)
    assert len(sizes[0]) == 4


EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
VERSION = "spark.sql.streaming.offsetLog.formatVersion"


@pytest.fixture
def settings(spark: Any) -> Iterator[Callable[..., None]]:
    """Return a function that sets settings of Spark for a test."""
    given: set[str] = set()

    def set_all(**settings: str) -> None:
        for name, value in settings.items():
            spark.conf.set(name, value)
            given.add(name)

    yield set_all
    for name in given:
        spark.conf.unset(name)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("given", "name", "line"),
    [({}, "", "{"), ({VERSION: "2"}, "", "0:{"), ({EVOLUTION: "true"}, '.name("orders")', "orders:{")],
    ids=["as it stands", "version 2", "named"],
)
def test_upgrade(
    spark: Any,
    reference_log: StreamFactory,
    tmp_path: Path,
    settings: Callable[..., None],
    given: dict[str, str],
    name: str,
    line: str,
) -> None:
    """With the offset log's versions: one of a query with named sources begins with the name."""
    guides = Guides.of(spark, reference_log, tmp_path)
    settings(**given)
    (program,) = blocks("docs/guides/upgrade.md", "python")
    first, second = program.replace('format("amqp-events")', f'format("amqp-events"){name}').split("committed = max")
    names: dict[str, Any] = {}
    guides.run_program(first, names)
    before = guides.table("version-1")
    ended = (tmp_path / "checkpoints/version-1/offsets/0").read_text().splitlines()[-1]
    assert ended.startswith(line)
    guides.streams["orders"].produce([{"id": 8}])
    guides.run_program("committed = max" + second, names)
    assert len(before) == len(guides.streams["orders"].values()) - 1
    assert guides.table("version-2") == [("8",)]


@pytest.mark.nightly
def test_a_source_under_another_name_begins_anew(
    spark: Any, reference_log: StreamFactory, tmp_path: Path, settings: Callable[..., None]
) -> None:
    """What the page says of Spark, and the way on: its old position as ``startingOffsets``."""
    settings(**{EVOLUTION: "true"})
    streams = {"orders": reference_log.create(), "more": reference_log.create()}
    rows: list[str] = []

    def run(*named: str, **starts: str) -> list[str]:
        rows.clear()
        frames = []
        for source in named:
            name, _, stream = source.partition("=")
            options = streams[stream or name].options("amqp-events", startingOffsets=starts.get(name, "earliest"))
            read = spark.readStream.format("amqp-events").name(name).options(**options).load()
            frames.append(read.selectExpr("string(value) AS text"))
        query = (
            reduce(DataFrame.union, frames)
            .writeStream.foreachBatch(lambda batch, number: rows.extend(row.text for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(rows)

    def produce(text: str) -> None:
        for name, stream in streams.items():
            stream.produce([f"{name} {text}"])

    produce("1")
    assert run("orders") == ["orders 1"]
    assert run("orders", "more") == ["more 1"]
    produce("2")
    assert run("more", "orders") == ["more 2", "orders 2"]
    assert run("more") == []
    produce("3")
    assert run("more", "renamed=orders") == ["more 3", "orders 1", "orders 2", "orders 3"]
    produce("4")
    assert run("more", "late=orders", late="latest") == ["more 4"]
    with pytest.raises(PySparkException, match="the checkpoint is of stream"):
        run("more=orders", "late=more")


def test_each_guide_is_in_the_index() -> None:
    index = (ROOT / INDEX).read_text()
    for page in sorted((ROOT / "docs/guides").glob("*.md")):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
