"""The programs of docs/guides, run as they stand on one log that has the events of their first page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.testing import LogProcess, LogStream, StreamFactory
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.spark

INDEX = "docs/guides/README.md"


@dataclass
class Guides:
    """The guides' streams on the run's log, which have names of their own there, and a folder."""

    streams: dict[str, LogStream]
    folder: Path
    spark: Any

    def here(self, text: str) -> str:
        """Return a block or a command with the addresses, streams and folders of the test."""
        urls = self.streams["orders"].process.urls
        text = text.replace("amqp://guest:guest@localhost:5672", urls["amqp"].replace("//", "//guest:guest@"))
        rabbit = urls["rabbitmq-stream"].replace("//", "//guest:guest@")
        text = text.replace("rabbitmq-stream://guest:guest@localhost:5552", rabbit)
        text = re.sub(r'(?<=[( ]stream=")[\w-]+(?=")', lambda found: self.streams[found[0]].name, text)
        text = re.sub(r'(?<="stream": ")[\w-]+(?=")', lambda found: self.streams[found[0]].name, text)
        return re.sub(r'"(?=(checkpoints|tables)/)', f'"{self.folder}/', text)

    def run(self, page: str, **names: Any) -> dict[str, Any]:
        """Run a page's programs one after the other; returns their names."""
        for program in blocks(f"docs/guides/{page}.md", "python"):
            exec(compile(self.here(program), page, "exec"), names)
        return names

    def table(self, name: str, *columns: str) -> list[Any]:
        """Return the rows of a table of files, in order, with some of its columns."""
        frame = self.spark.read.parquet(str(self.folder / "tables" / name)).selectExpr(*columns or ("*",))
        return sorted((tuple(row) for row in frame.collect()), key=str)


@pytest.fixture(scope="module")
def guides(spark: Any, reference_log_process: LogProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guides]:
    log = StreamFactory(reference_log_process)
    serve, append = blocks(INDEX, "bash")
    named = re.findall(r"--stream ([\w-]+):?(\d*)", serve)
    streams = {name: log.create(name, int(partitions or 1)) for name, partitions in named}
    found = Guides(streams, tmp_path_factory.mktemp("guides"), spark)
    for line in append.replace("\\\n", " ").splitlines():
        program, *words = shlex.split(line)
        assert (program, words[:2], words[3]) == ("spark-streams", ["log", "append"], words[3])
        words = [found.here(words[2]) if word == words[2] else word for word in words]
        words[3] = streams[words[3]].name
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert sum(map(len, (streams["orders"].values(), streams["payments"].values()))) == 9
    yield found


def test_aggregate(guides: Guides) -> None:
    guides.run("aggregate")
    closed = ['{"hour":"2026-01-05T%s:00:00.000Z","customer":"%s","eur":%s}']
    (form,) = closed
    windows = [form % ("09", "ann", "42.0"), form % ("09", "bob", "500.0"), form % ("10", "ann", "8.0")]
    running = ['{"customer":"ann","eur":50.0}', '{"customer":"bob","eur":599.0}']
    assert sorted(guides.streams["totals"].values()) == sorted(windows + running)


def test_deduplicate(guides: Guides) -> None:
    guides.run("deduplicate")
    once = guides.streams["orders-once"].table(("key", "value")).to_pylist()
    assert sorted(row["key"] for row in once) == ["1", "2", "3", "4", "5"]
    assert all(row["value"].startswith(b'{"id": ') for row in once)


def test_join(guides: Guides) -> None:
    guides.run("join")
    countries = [(1, "NO"), (2, "DK"), (2, "DK"), (3, "NO"), (4, "NO"), (5, "DK")]
    assert guides.table("orders-by-country", "id", "country") == countries
    assert guides.table("paid", "id", "order") == [(1, 1), (3, 3)]


def test_foreach_batch(guides: Guides) -> None:
    guides.run("foreach-batch")
    assert [value[:8] for value in sorted(guides.streams["big-orders"].values())] == ['{"id": 2', '{"id": 2', '{"id": 5']
    assert len(guides.table("all-orders", "offset")) == 6


def test_to_table(guides: Guides, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        guides.run("to-table")
        shown = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
        assert {"|ann|3|", "|bob|3|"} <= set(shown)
    finally:
        guides.spark.sql("DROP TABLE IF EXISTS orders_table")


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


def test_batch_to_stream(guides: Guides) -> None:
    done = guides.streams["orders"].values()
    (program,) = blocks("docs/guides/batch-to-stream.md", "python")
    first, second = program.split("# What is new.")
    names: dict[str, Any] = {}
    exec(compile(guides.here(first), "page", "exec"), names)
    guides.streams["orders"].produce([{"id": 6, "customer": "eve"}])
    exec(compile(guides.here(second), "page", "exec"), names)
    assert len(guides.table("from-batch")) == len(done)
    assert guides.table("from-stream", "customer") == [("eve",)]


def test_sizing(guides: Guides) -> None:
    before = len(guides.streams["orders"].values())
    sizes = guides.run("sizing", print=lambda sizes: None)["sizes"]
    assert [sum(batch) for batch in sizes] == [4] * (before // 4) + [before % 4] * (before % 4 > 0)
    assert len(sizes[0]) == 4


def test_upgrade(guides: Guides) -> None:
    (program,) = blocks("docs/guides/upgrade.md", "python")
    first, second = program.split("committed = max")
    names: dict[str, Any] = {}
    exec(compile(guides.here(first), "page", "exec"), names)
    before = guides.table("version-1")
    guides.streams["orders"].produce([{"id": 8}])
    exec(compile(guides.here("committed = max" + second), "page", "exec"), names)
    assert len(before) == len(guides.streams["orders"].values()) - 1
    assert guides.table("version-2") == [("8",)]


def test_each_guide_is_in_the_index() -> None:
    index = (ROOT / INDEX).read_text()
    for page in sorted((ROOT / "docs/guides").glob("*.md")):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
