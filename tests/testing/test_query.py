"""Waiting for queries, and what docs/testing.md shows; docs/example-project is run by the wheel test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_streams.spark.source.reader import HAS_ADMISSION_CONTROL
from spark_streams.testing import KeptQuery, LogStream, StreamFactory, eventually, wait_until_caught_up
from tests.docs.pages import blocks

pytestmark = pytest.mark.spark


def start(spark: Any, stream: LogStream, format: str, folder: Path, name: str, **more: str) -> Any:
    options = stream.options(format, startingOffsets="earliest", pollInterval="50", **more)
    writer = spark.readStream.format(format).options(**options).load().selectExpr("string(value) AS value").writeStream
    return writer.format("memory").queryName(name).option("checkpointLocation", str(folder / "checkpoint")).start()


@pytest.mark.parametrize(("format", "partitions"), [("amqp-events", 3), ("rabbitmq-stream", 1), ("feedapi", 3)])
def test_all_that_was_there_has_come(
    spark: Any, reference_log: StreamFactory, tmp_path: Path, format: str, partitions: int
) -> None:
    if format == "feedapi" and not HAS_ADMISSION_CONTROL:
        pytest.skip("streams of feeds need Spark 4.2")
    stream = reference_log.create("events", partitions)
    name = f"rows_{format.split('-')[0]}_{partitions}"
    query = start(spark, stream, format, tmp_path, name)
    try:
        for number in range(1, 3):
            stream.produce(f"{number}-{each}" for each in range(10))
            wait_until_caught_up(query, stream)
            assert spark.table(name).count() == 10 * number
    finally:
        query.stop()


def test_a_query_that_fails_says_why(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    stream = reference_log.create()
    stream.produce(["a"])
    frame = spark.readStream.format("amqp-events").options(**stream.options("amqp-events", startingOffsets="earliest"))
    broken = frame.load().selectExpr("raise_error('no such order') AS value").writeStream.format("noop")
    query = broken.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(Exception, match="no such order"):
        wait_until_caught_up(query, stream)


def test_a_query_of_another_stream_never_catches_up(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    stream, other = reference_log.create(), reference_log.create("other")
    other.produce(["a"])
    query = start(spark, stream, "amqp-events", tmp_path, "none")
    try:
        wait_until_caught_up(query, stream)
        with pytest.raises(AssertionError, match=rf"did not catch up within 1 s: expected .*{other.name}.*'0': 0"):
            wait_until_caught_up(query, other, timeout_s=1)
    finally:
        query.stop()
    with pytest.raises(AssertionError, match="did not catch up before it ended"):
        wait_until_caught_up(query, other)


def read(spark: Any, stream: LogStream, *columns: str) -> Any:
    reader = spark.readStream.format("amqp-events").options(**stream.options("amqp-events", startingOffsets="earliest"))
    return reader.load().selectExpr(*columns)


def test_a_kept_query_goes_on_where_it_was(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    stream = reference_log.create()
    frame = read(spark, stream, "string(value) AS value")
    with KeptQuery(tmp_path) as query:
        with pytest.raises(RuntimeError, match="not started"):
            query.wait_for_rows(1)
        assert (query.rows, query.committed()) == ([], set())
        query.start(frame)
        query.wait_for_batch()
        stream.produce(["a", "b"])
        query.wait_for_rows(2)
        first = query.running
        query.stop()
        assert not first.isActive
        stream.produce(["c"])
        assert query.drain(frame) == [1]
        assert query.drain(frame) == []
        assert [row.value for row in query.rows] == ["a", "b", "c"]
        assert query.sizes[-1] == 1 and sum(query.sizes) == 3
        assert max(query.committed()) == max(query.batches)
        running = query.start(frame)
    assert not running.isActive


def test_a_kept_query_fails_when_a_batch_changes(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    stream = reference_log.create()
    stream.produce(["a"])
    query = KeptQuery(tmp_path)
    assert query.drain(read(spark, stream, "string(value) AS value")) == [1]
    (number,) = query.committed()
    for file in (tmp_path / "checkpoint" / "commits").glob(f"*{number}*"):
        file.unlink()  # as if the driver had died before it noted the end of the batch
    with pytest.raises(Exception, match=rf"micro-batch {number} was run again and has other rows"):
        query.drain(read(spark, stream, "concat(value, 'x') AS value"))
    assert [row.value for row in query.rows] == ["a"]


def test_a_wait_ends_when_the_query_does(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    stream = reference_log.create()
    stream.produce(["a"])
    query = KeptQuery(tmp_path, timeout_s=60)
    query.start(read(spark, stream, "raise_error('no such order') AS value"))
    with pytest.raises(Exception, match="no such order"):
        query.wait_for_rows(1)
    with pytest.raises(Exception, match="no such order"):
        eventually(lambda: False, "the moon", query=query.running)


def test_the_page_is_right(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    of_pytest, kept, alone = blocks("docs/testing.md", "python")
    names: dict[str, Any] = {}
    exec(of_pytest, names)
    names["test_orders_are_copied"](spark, reference_log, tmp_path / "copied")
    exec(kept, names)
    names["test_it_goes_on_where_it_was"](spark, reference_log, tmp_path / "kept")
    exec(alone, names)
    assert names["process"].pid is None
