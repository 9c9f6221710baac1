"""The programs of docs/guides, run as they stand on one log that has the events of their first page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.nightly
def test_upgrade(guides: Guides) -> None:
    (program,) = blocks("docs/guides/upgrade.md", "python")
    first, second = program.split("committed = max")
    names: dict[str, Any] = {}
    guides.run_program(first, names)
    before = guides.table("version-1")
    guides.streams["orders"].produce([{"id": 8}])
    guides.run_program("committed = max" + second, names)
    assert len(before) == len(guides.streams["orders"].values()) - 1
    assert guides.table("version-2") == [("8",)]


def test_each_guide_is_in_the_index() -> None:
    index = (ROOT / INDEX).read_text()
    for page in sorted((ROOT / "docs/guides").glob("*.md")):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
