"""What the pages of AMQP and of filters show is run as it stands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_streams.cli import main
from spark_streams.filters import parse
from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.log import ReferenceLog
from spark_streams.options.amqp_events import parse_source
from spark_streams.position import EARLIEST, After, At
from spark_streams.testing import eventually
from tests.cli.conftest import ServedHere, served_here
from tests.docs.pages import ERRORS, blocks, tables
from tests.docs.test_pages import missing, said
from tests.docs.test_snippets import rows

URL = "amqp://guest:guest@localhost:5672"
SOURCE, SINK, DOOR = "docs/amqp-events.md", "docs/amqp-events-sink.md", "docs/amqp-events-door.md"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHere]:
    with served_here(tmp_path / "log", **{"orders": 1, "orders-enriched": 1}) as here:
        yield here


@pytest.fixture
def run(served: ServedHere, tmp_path: Path) -> Callable[[str, dict[str, Any]], None]:
    """Run a block with the served log's address, and its folders below the test's."""

    def run_it(block: str, names: dict[str, Any]) -> None:
        code = block.replace(URL, served.url).replace("/data/checkpoints", str(tmp_path))
        exec(compile(code, "page", "exec"), names)

    return run_it


Run = Callable[[str, dict[str, Any]], None]


@pytest.mark.spark
def test_reading_events(spark: Any, served: ServedHere, run: Run, tmp_path: Path) -> None:
    served.publish("orders", ["a", "b", "c"])
    printed: list[Any] = []
    names: dict[str, Any] = {"spark": spark, "print": lambda *values: printed.append(values)}
    for block in blocks(SOURCE, "python"):
        run(block, names)
    assert [bytes(row.value) for row in rows(names["orders"], tmp_path / "a")] == [b"a", b"b", b"c"]
    assert names["fast"].columns == ["offset", "value"]
    assert len(rows(names["fast"], tmp_path / "b")) == 3
    eventually(lambda: any(lag == {"0": 0} for _, lag in printed), "the listener is told the lag")


def test_the_positions_that_are_shown() -> None:
    (shown,) = blocks(SOURCE, "json")
    assert set(json.loads(shown)) == {"0", "1", "2"}
    options = parse_source({"url": "amqp://host", "stream": "orders", "startingOffsets": shown}, streaming=True)
    assert options.starting.each == {"0": After(f"{41:020d}"), "1": At(f"{42:020d}"), "2": EARLIEST}


@pytest.mark.parametrize("page", [SOURCE, "docs/pushdown.md"])
def test_the_line_in_the_log(page: str) -> None:
    (line,) = blocks(page, "text")
    pieces = ("stream '", "': filter ", ": pushed: ", "; checked by the tasks: ")
    assert all(piece in line for piece in pieces)
    assert missing(["…".join(pieces)], said()) == []


@pytest.mark.spark
def test_writing_events(spark: Any, served: ServedHere, run: Run) -> None:
    served.publish("orders", ["ann", "bob"])
    orders = spark.readStream.format("amqp-events").options(url=served.url, stream="orders", startingOffsets="earliest")
    names: dict[str, Any] = {"spark": spark, "orders": orders.load().selectExpr("string(value) AS customer")}
    writing, _ = blocks(SINK, "python")
    run(writing, names)
    (query,) = spark.streams.active
    query.processAllAvailable()
    query.stop()
    enriched = spark.read.format("amqp-events").options(url=served.url, stream="orders-enriched").load()
    assert sorted(bytes(row.value) for row in enriched.collect()) == [b'{"customer":"ann"}', b'{"customer":"bob"}']


@pytest.mark.nightly
@pytest.mark.spark
def test_reading_each_event_once(spark: Any, served: ServedHere, run: Run, tmp_path: Path) -> None:
    enriched = spark.read.format("amqp-events").options(url=served.url, stream="orders-enriched").load()
    written = spark.sql("SELECT 'ann' AS value, named_struct('message_id', 'm-1') AS properties")
    for _ in range(2):
        written.write.format("amqp-events").options(url=served.url, stream="orders-enriched").mode("append").save()
    assert enriched.count() == 2
    _, reading = blocks(SINK, "python")
    names: dict[str, Any] = {"spark": spark}
    run(reading, names)
    assert [bytes(row.value) for row in rows(names["events"], tmp_path / "events")] == [b"ann"]


def test_what_fails_is_said_by_the_code() -> None:
    (table,) = tables(SINK, "What fails, and how")
    named = {
        word.strip("`:,") for row in table for word in row[1].split() if word.startswith("`") and word[1].isupper()
    }
    assert named >= {"DeliveryFailed", "NotFound", "SchemaError"}
    assert named <= ERRORS


def test_the_doors_full_sql() -> None:
    (block,) = blocks(DOOR, "sql")
    for text in block.splitlines():
        parse_amqp_sql(text)


@pytest.mark.spark
def test_filters_that_are_pushed(spark: Any, served: ServedHere, run: Run, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark}
    stream, batch = blocks("docs/pushdown.md", "python")
    try:
        run(stream, names)
        assert rows(names["orders"], tmp_path / "a") == []
        run(batch, names)
        assert names["orders"].where("key = 'a'").collect() == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("page", ["docs/filters.md", "docs/pushdown.md", "docs/rabbitmq-stream.md"])
def test_the_commands_that_explain_filters(page: str) -> None:
    commands = [line for block in blocks(page, "bash") for line in block.splitlines()]
    assert commands
    for command in commands:
        done = CliRunner().invoke(main, shlex.split(command)[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert "pushed" in done.output


def test_the_programs_of_the_filter_language(tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        log.create_stream("orders", 1)
    first, second = blocks("docs/filters.md", "python")
    names: dict[str, Any] = {}
    exec(compile(first, "page", "exec"), names)
    exec(compile(second.replace('"DIR"', repr(str(tmp_path / "log"))), "page", "exec"), names)
    one, other = first.strip().splitlines()[-2:]
    assert names["to_protobuf"](eval(one, names)) == names["to_protobuf"](eval(other, names))
    (text,) = blocks("docs/filters.md", "sql")
    parse(text.strip())
