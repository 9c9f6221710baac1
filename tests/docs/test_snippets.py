"""The programs of the guides, run as they stand on an embedded log."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spark_streams.monitoring import PartitionProgress, Progress
from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from spark_streams.testing import eventually
from tests.cli.conftest import ServedHere, served_here
from tests.docs.exported import exported
from tests.docs.pages import blocks

pytestmark = pytest.mark.spark

RABBIT = "rabbitmq-stream"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHere]:
    streams = dict.fromkeys(("orders", "orders-moved", "persons", "persons-copy"), 2)
    with served_here(tmp_path_factory.mktemp("log"), **streams) as here:
        yield here


def runner(served: ServedHere, folder: Path, names: dict[str, Any]) -> Callable[[str], None]:
    """Run a block with the served log's addresses, and its folders below the test's."""
    rabbit = served.doors[RABBIT].replace("//", "//guest:guest@")

    def run(block: str) -> None:
        code = block.replace("rabbitmq-stream://guest:guest@localhost:5552", rabbit)
        code = code.replace("http://localhost:8080", served.doors["feedapi"])
        code = code.replace('"/data/', f'"{folder}/').replace("/Volumes/main/default/spark_streams", str(folder))
        exec(compile(code, "page", "exec"), names)

    return run


def rows(frame: Any, folder: Path) -> list[Any]:
    """Run a stream to its end of now; returns its rows."""
    found: list[Any] = []
    query = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    query = query.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return found


def test_coming_from_kafka(spark: Any, served: ServedHere, tmp_path: Path) -> None:
    served.publish("orders", [f"a{n}" for n in range(25)], ["b0", "b1"])
    names: dict[str, Any] = {"spark": spark}
    program, _ = blocks("docs/from-kafka.md", "python")
    runner(served, tmp_path, names)(program)
    found = [(row.partition, int(row.offset)) for row in rows(names["orders"], tmp_path / "checkpoint")]
    assert sorted(found) == [("orders-0", 23), ("orders-0", 24), ("orders-1", 0), ("orders-1", 1)]


def test_moving_a_job_from_kafka(spark: Any, served: ServedHere, tmp_path: Path) -> None:
    """With rows as the Kafka source gives them, from files."""
    schema = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    sputnik = datetime(1957, 10, 4, 19, 28, 34, tzinfo=timezone.utc)
    records = [(b"ann", b"a", "orders", 0, 7, sputnik)]
    spark.createDataFrame(records, schema).write.parquet(str(tmp_path / "kafka"))
    names: dict[str, Any] = {"kafka": spark.readStream.schema(schema).parquet(str(tmp_path / "kafka"))}
    _, program = blocks("docs/from-kafka.md", "python")
    runner(served, tmp_path, names)(program)
    names["query"].processAllAvailable()
    names["query"].stop()
    moved = spark.read.format("amqp-events").options(url=served.url, stream="orders-moved")
    found = moved.option("startingExpression", "event_time >= -386310686000").load()
    (row,) = found.selectExpr("key", "value", "unix_millis(properties.creation_time) AS at").collect()
    assert (row.key, bytes(row.value), row.at) == ("ann", b"a", -386310686000)
    assert moved.option("startingExpression", "event_time >= -386310685999").load().count() == 0


def test_on_databricks(spark: Any, served: ServedHere, tmp_path: Path) -> None:
    secrets = SimpleNamespace(get=lambda scope, key: {("spark-streams", "amqp-url"): served.url}[scope, key])
    names: dict[str, Any] = {"spark": spark, "dbutils": SimpleNamespace(secrets=secrets)}
    (program,) = blocks("docs/databricks.md", "python")
    runner(served, tmp_path, names)(program)
    assert names["query"].awaitTermination(120)
    there = spark.read.format("amqp-events").options(url=served.url, stream="orders").load().count()
    assert spark.read.parquet(str(tmp_path / "orders")).count() == there


def test_coming_from_zeroeventhub(spark: Any, served: ServedHere, tmp_path: Path) -> None:
    if not HAS_ADMISSION_CONTROL:
        pytest.skip("streams of feeds need Spark 4.2")
    of_each = [[json.dumps({"id": f"{p}-{n}"}) for n in range(5)] for p in range(2)]
    served.publish("persons", *of_each)
    names: dict[str, Any] = {"spark": spark, "json": json}
    run = runner(served, tmp_path, names)
    reading, moving, serving_it = blocks("docs/from-zeroeventhub.md", "python")

    run(reading)
    found = rows(names["persons"], tmp_path / "first")
    assert sorted(bytes(row.value).decode() for row in found) == sorted(of_each[0] + of_each[1])

    names["cursors"] = [next(row.offset for row in reversed(found) if row.partition == str(p)) for p in range(2)]
    run(moving)
    served.publish("persons", ['{"id":"new"}'])
    assert [bytes(row.value) for row in rows(names["moved"], tmp_path / "moved")] == [b'{"id":"new"}']

    run(serving_it)
    names["query"].processAllAvailable()
    names["query"].stop()
    copies = served.log.stream("persons-copy").partitions.values()
    assert sum(partition.next_offset for partition in copies) == 11


def test_adding_a_protocol(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("1\n2\n3\n")
    (tmp_path / "lines" / "b.txt").write_text("4\n")
    program, using = blocks("docs/extending.md", "python")
    # Its classes are pickled by value when their module cannot be imported, as in a notebook.
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    names = module.__dict__
    names["spark"] = None
    exec(compile(program, "page", "exec"), names)
    names["spark"] = spark
    if not HAS_ADMISSION_CONTROL:
        using = using.replace(", maxOffsetsPerTrigger=2", "")
    exec(compile(using.replace("/data/", f"{tmp_path}/"), "page", "exec"), names)
    frame = names["lines"]
    assert sorted(bytes(row.value) for row in rows(frame, tmp_path / "checkpoint")) == [b"1", b"2", b"3", b"4"]
    (tmp_path / "lines" / "b.txt").write_text("4\n5\n")
    again = rows(frame, tmp_path / "checkpoint")
    assert [(row.partition, bytes(row.value)) for row in again] == [("b.txt", b"5")]
    options = {"url": "lines://localhost:1", "stream": str(tmp_path / "lines")}
    batch = spark.read.format("lines").options(**options).schema("offset string, value binary")
    start = batch.option("startingOffsets", '{"a.txt": 1, "b.txt": "0"}').load()
    assert sorted(bytes(row.value) for row in start.collect()) == [b"2", b"3", b"5"]
    with pytest.raises(Exception, match="lines are neither filtered nor searched"):
        batch.option("filter", "a = 'b'").load().collect()
    (tmp_path / "lines" / "a.txt").write_text("1\n")
    with pytest.raises(Exception, match="Events may have been lost"):
        rows(frame, tmp_path / "checkpoint")


def test_seeing_what_happens(spark: Any, served: ServedHere, tmp_path: Path) -> None:
    served.publish("orders", ["a", "bb"])
    printed: list[Any] = []
    names: dict[str, Any] = {"spark": spark, "print": lambda *values: printed.append(values)}
    run = runner(served, tmp_path, names)
    listening, prometheus, opentelemetry, json_lines, statsd, kafka, _ = blocks("docs/monitoring.md", "python")
    with exported(spark, names, run, prometheus, opentelemetry) as figures:
        run(listening)
        eventually(lambda: printed, "the listener is told")
        eventually(lambda: figures.ended, "Prometheus and OpenTelemetry are told of the query and of its end")
    (name, events, size, lag), *_ = printed
    assert (name, events > 0, size > 0) == ("orders", True, True)
    run(json_lines)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(60)
        run(statsd.replace('("localhost", 8125)', str(receiver.getsockname())))
        partitions = {"orders-0": PartitionProgress(lag=7), "orders-1": PartitionProgress()}
        progress = Progress("q", 3, "2026-01-01T00:00:00.000Z", "orders", 5, 2.5, bytes=50, partitions=partitions)
        for report in ("to_json_lines", "to_statsd"):
            names[report](progress)
        names["statsd"].close()
        lines = receiver.recv(65_536).decode().splitlines()
    orders = "spark_streams.orders"
    assert lines == [
        f"{orders}.events:5|c",
        f"{orders}.bytes:50|c",
        f"{orders}.losses:0|c",
        f"{orders}.lag.orders-0:7|g",
    ]
    assert json.loads((tmp_path / "progress.jsonl").read_text()) == progress.to_json()
    if HAS_ADMISSION_CONTROL:
        assert lag == {"orders-0": 0, "orders-1": 0}
        run(kafka)
        assert names["behind"] == 0


@pytest.mark.nightly  # the lines that it reads are those of tests/e2e/test_monitoring.py
def test_the_query_on_what_the_tasks_said(spark: Any, served: ServedHere, tmp_path: Path) -> None:
    if not hasattr(spark.tvf, "python_worker_logs"):
        pytest.skip("Spark 4.0 does not keep what its Python workers say")
    served.publish("orders", ["a", "bb"], ["ccc"])
    url = served.doors[RABBIT].replace("//", "//guest:guest@")
    names: dict[str, Any] = {"spark": spark, "options": {"url": url, "superStream": "orders"}}
    *_, logs = blocks("docs/monitoring.md", "python")

    # Spark keeps what every task of the session said, those of other modules too, and stores it a little later.
    def read() -> list[tuple[Any, ...]]:
        runner(served, tmp_path, names)(logs)
        return [tuple(row) for row in names["ranges"].where("stream = 'orders'").collect()]

    try:
        eventually(lambda: sum(row[2] for row in read()) >= 2, "Spark has stored what the tasks said")
        assert names["losses"].where("stream = 'orders'").count() == 0
        assert {partition for _, partition, *_ in read()} <= {"orders-0", "orders-1"}
        assert all(size >= events and seconds >= 0 for _, _, events, size, seconds, _ in read())
        assert {retries for *_, retries in read()} == {0}
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
