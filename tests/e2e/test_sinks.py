"""What the sinks of all three formats refuse, on the driver, before any task starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from spark_streams.testing import eventually
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


@places("amqp-events", of=FORMATS)
def test_a_source_has_no_continuous_trigger(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    rows = create(1).load(spark)
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="does not support continuous processing"):
        writer.trigger(continuous="1 second").start()


@places("amqp-events", of=FORMATS)
def test_real_time_mode_has_no_python_sink(spark: SparkSession, create: Create, tmp_path: Path) -> None:
    if not hasattr(spark._jvm.org.apache.spark.sql.streaming.Trigger, "RealTime"):
        pytest.skip("Spark has it from 4.1 on, PySpark from 4.2")
    orders = create(1)
    rows = spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    writer = rows.writeStream.format(orders.format).options(**orders.options()).outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(realTime="5 minutes")
    with pytest.raises(PySparkException, match=r"STREAMING_REAL_TIME_MODE.*PythonTable is not in the sink allowlist"):
        writer.start()


class Told(DataSource):  # type: ignore[misc]
    """A sink that notes, in file ``to``, what Spark hands to each ``commit``."""

    @classmethod
    def name(cls) -> str:
        return "told"

    def writer(self, schema: Any, overwrite: bool) -> TellingWriter:
        return TellingWriter(self.options["to"])

    streamWriter = writer


class TellingWriter(DataSourceWriter, DataSourceStreamWriter):  # type: ignore[misc]
    def __init__(self, to: str) -> None:
        self.to = to

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return WriterCommitMessage()

    def commit(self, messages: list[Any], batchId: int = -1) -> None:
        with open(self.to, "a") as file:
            file.write(json.dumps([type(message).__name__ for message in messages]) + "\n")


def test_micro_batches_and_writes_commit_each_task(spark: SparkSession, reference_log: Any, tmp_path: Path) -> None:
    """The ground of the error for a task without a message: tasks without rows have theirs.

    The source plans no range for the first micro-batch, and Spark runs one task all the same.
    """
    spark.dataSource.register(Told)
    orders, told = reference_log.create("orders", partitions=2), tmp_path / "told"
    rows = spark.readStream.format("amqp-events").options(**orders.options("amqp-events", startingOffsets="latest"))
    writer = rows.load().select("value").writeStream.format("told").option("to", str(told))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(240)  # nothing is there, so there is no task
    orders.produce([{"value": "a", "partition": "0"}])
    writer.trigger(availableNow=True).start().awaitTermination(240)
    empty = spark.range(1).repartition(3).selectExpr("'a' AS value")
    for frame in (empty, empty.where("false"), spark.createDataFrame(spark.sparkContext.emptyRDD(), "value STRING")):
        frame.write.format("told").option("to", str(told)).mode("append").save()
    handed = [json.loads(line) for line in told.read_text().splitlines()]
    assert [len(names) for names in handed] == [1, 1, 3, 1, 1]
    assert {name for names in handed for name in names} == {"WriterCommitMessage"}


@pytest.mark.nightly
def test_a_continuous_trigger_commits_tasks_that_never_wrote(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Told)
    told = tmp_path / "told"
    writer = spark.readStream.format("rate").load().selectExpr("string(value) AS value").writeStream.format("told")
    writer = writer.option("to", str(told)).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(continuous="1 second").start()
    eventually(lambda: told.exists() and told.read_text().endswith("\n"), "a commit", 240, query=query)
    query.stop()
    handed = told.read_text().splitlines()
    assert {name for line in handed for name in json.loads(line)} == {"NoneType"}
