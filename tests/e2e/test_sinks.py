"""What the sinks of all three formats refuse, on the driver, before any task starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.e2e.by_day import in_turn
from tests.e2e.places import Place, places

pytestmark = pytest.mark.spark

FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi-v2a")
Create = Callable[[int], Place]


FAULTS: dict[str, tuple[dict[str, str], str, list[str]]] = {
    "an option of reading": (
        {"startingOffsets": "latest"},
        "SELECT 'a' AS value",
        ["OptionError", "startingOffsets", "reading"],
    ),
    "a column misspelt": ({}, "SELECT 'a' AS value, 1 AS custmer", ["SchemaError", "unknown column 'custmer'"]),
    "a type": ({}, "SELECT 1.5D AS value", ["SchemaError", "column 'value' is DOUBLE, expected STRING or BINARY"]),
}
"""Name to options, the frame that is written, and what the error says."""


@pytest.mark.parametrize(("create", "fault"), in_turn(FAULTS, lambda fault: FORMATS), indirect=["create"])
def test_faults_are_told_before_any_task_starts(spark: SparkSession, create: Create, fault: str) -> None:
    more, frame, words = FAULTS[fault]
    assert_refused(spark, create(1), frame, words, **more)


@places(*FORMATS, of=FORMATS)
def test_a_stream_that_is_not_there(spark: SparkSession, create: Create) -> None:
    orders = create(1)
    given = orders.options()
    missing = {name: value.replace(orders.name, "no-such") for name, value in given.items()}
    assert_refused(spark, orders, "SELECT 'a' AS value", ["NotFound", "no-such"], **missing)


def assert_refused(spark: SparkSession, orders: Place, frame: str, words: list[str], **more: str) -> None:
    writer = spark.sql(frame).write.format(orders.format).options(**{**orders.options(), **more})
    with pytest.raises(PySparkException) as caught:
        writer.mode("append").save()
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "Failed to initialize Python data source writer" in message, "it failed on the driver"
    assert spark.read.format(orders.format).options(**orders.options()).load().count() == 0


@places(*FORMATS, of=FORMATS)
def test_overwrite_is_refused(spark: SparkSession, create: Create) -> None:
    orders = create(1)
    writer = spark.sql("SELECT 'a' AS value").write.format(orders.format).options(**orders.options())
    with pytest.raises(PySparkException, match=r"'overwrite' cannot be done.*use mode 'append'"):
        writer.mode("overwrite").save()


@places(of=FORMATS)
def test_output_mode_complete_is_refused(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    orders = create(1)
    counts = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("'a' AS value")
    writer = counts.writeStream.format(orders.format).options(**orders.options())
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("complete").start()
    with pytest.raises(PySparkException, match="'complete' cannot be done"):
        query.awaitTermination(240)
