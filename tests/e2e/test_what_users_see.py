"""What a user sees of Spark when a query of ours fails, and what works where Spark refuses an output mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_streams.testing import eventually
from tests.e2e.places import Place, places

pytestmark = pytest.mark.spark

FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi-v2b")
WAIT_S = 240
Create = Callable[[int], Place]


def shown(call: Callable[[], object]) -> tuple[list[str], str]:
    """The frames of ours in what Spark shows, and the first sentence of ours; nothing of another error is there."""
    with pytest.raises(PySparkException) as caught:
        call()
    lines = str(caught.value).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("spark_streams.errors."))
    assert not any(re.search(r"During handling|direct cause|UnboundLocalError", line) for line in lines)
    frames = [i for i, line in enumerate(lines) if re.search(r'File ".*/(spark_streams|sources|sinks)/', line)]
    assert all(i < first for i in frames)
    return [lines[i] for i in frames], lines[first]


@places(*FORMATS, of=FORMATS)
def test_our_sentence_is_the_first_with_at_most_two_frames_above_it(
    spark: SparkSession, create: Create, tmp_path: Path
) -> None:
    orders = create(1)
    options = orders.options()

    def batch(**options: str) -> DataFrame:
        return spark.read.format(orders.format).options(**options).load()

    missing = {name: value.replace(orders.name, "no-such") for name, value in options.items()}

    def ending() -> None:
        frame = spark.readStream.format(orders.format).options(**options, endingOffsets="latest").load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination(WAIT_S)

    failures: list[tuple[Callable[[], object], str]] = [
        (lambda: batch(**options, subscribe="orders"), "OptionError: option 'subscribe': is an option"),
        (lambda: batch(**missing).count(), "NotFound: "),
        (ending, "OptionError: option 'endingOffsets': a stream has no end"),
    ]
    for call, words in failures:
        frames, sentence = shown(call)
        assert 1 <= len(frames) <= 2 and f"errors.{words}" in sentence


@pytest.mark.nightly  # two queries for each format: what messages and pages recommend in place of mode `update`
@places(of=FORMATS)
def test_what_works_in_place_of_output_mode_update(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    orders, changed, final = create(1), create(1), create(1)
    numbers = orders.load(spark, startingOffsets="earliest")

    orders.append(0, 0, 10)
    counts = numbers.groupBy(f.lit("a").alias("key")).count().selectExpr("key", "CAST(count AS STRING) AS value")
    refused = counts.writeStream.outputMode("update").format(final.format).options(**final.options())
    with pytest.raises(PySparkException, match="does not support Update mode"):
        refused.option("checkpointLocation", str(tmp_path / "refused")).start().awaitTermination(WAIT_S)

    def append(rows: DataFrame, _: int) -> None:
        rows.write.format(changed.format).options(**changed.options()).mode("append").save()

    for total in (10, 15):
        query = counts.writeStream.outputMode("update").foreachBatch(append).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "changed")).start().awaitTermination(WAIT_S)
        read = spark.read.format(changed.format).options(**changed.options()).load()
        assert str(total) in [bytes(row.value).decode() for row in read.collect()]
        orders.append(0, total, total + 5)

    timed = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, advanceMillisPerBatch=1_000).load()
    windows = timed.withWatermark("timestamp", "0 seconds").groupBy(f.window("timestamp", "1 second")).count()
    writer = windows.selectExpr("'a' AS key", "CAST(count AS STRING) AS value").writeStream.outputMode("append")
    writer = writer.format(final.format).options(**final.options())
    running = writer.option("checkpointLocation", str(tmp_path / "final")).start()

    def written() -> set[bytes]:
        read = spark.read.format(final.format).options(**final.options()).load()  # a frame keeps its plan
        return {bytes(row.value) for row in read.collect()}

    eventually(written, "a window is final, and written", WAIT_S, query=running)
    running.stop()
    assert written() == {b"10"}
