"""The statements of the page on SQL, run as they stand, and what it says of those that are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException

from tests.cli.conftest import ServedHere, served_here
from tests.docs.pages import blocks, code_spans, tables

pytestmark = pytest.mark.spark

PAGE = "docs/sql.md"
IS_4_0 = pyspark.__version__.startswith("4.0.")
"""Spark 4.0 has no ``STREAM`` before a table's name, and each query on a view sees what is there then."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHere]:
    with served_here(tmp_path / "log", orders=1) as here:
        yield here


@pytest.fixture
def sql(spark: Any, served: ServedHere) -> Iterator[Callable[[str], list[list[tuple[Any, ...]]]]]:
    """Run the statements of a block at the served log; returns the rows of each."""

    def run(block: str) -> list[list[tuple[Any, ...]]]:
        statements = block.replace("amqp://guest:guest@localhost:5672", served.url).split(";\n")
        return [[tuple(row) for row in spark.sql(each).collect()] for each in statements if each.strip()]

    yield run
    spark.sql("DROP TABLE IF EXISTS events")
    for view in ("orders", "bodies", "target", "current_orders", "arriving"):
        spark.catalog.dropTempView(view)


@pytest.mark.nightly  # sources and sinks are tested by day; what is SQL here is Spark's
def test_the_statements(
    spark: Any, served: ServedHere, sql: Callable[[str], list[list[tuple[Any, ...]]]], tmp_path: Path
) -> None:
    served.publish("orders", ['{"id": 1}'])
    reading, columns, writing, table = blocks(PAGE, "sql")
    assert sql(reading)[1] == [], "the event has no such property"
    assert sql(columns)[1] == [], "it has no key"
    sql(writing)
    orders = [("1", "ann")] if IS_4_0 else []  # later ones see what the first query on the view saw
    assert [(row.offset[-1], row.key) for row in spark.sql("SELECT * FROM orders").collect()] == orders
    assert sql(reading.replace("CREATE", "CREATE OR REPLACE"))[1] == [("0", "ann", '{"id": 7}')]
    copies = [("ben", "1"), ("ben", "7")] if IS_4_0 else [("ben", "1")]
    there = [(None, "1"), ("ann", "7"), *copies, ("dan", "8")]
    assert sql(table)[-1] == [(len(there),)]
    found = [tuple(row) for row in spark.sql("SELECT key, id FROM current_orders").collect()]
    assert found == there
    names: dict[str, Any] = {"spark": spark}
    from_table, from_sql, from_view = blocks(PAGE, "python")
    for program in (from_table, *([] if IS_4_0 else [from_sql]), from_view):
        exec(compile(program.replace("amqp://guest:guest@localhost:5672", served.url), PAGE, "exec"), names)
    streams = [names[name] for name in ("from_python", "from_sql", "stream", "by_key") if name in names]
    assert len(streams) == 4 - IS_4_0 and all(frame.isStreaming for frame in streams)
    rows: list[Any] = []
    keys = names.get("from_sql", names["from_python"]).select("key")
    writer = keys.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert [row.key for row in rows] == [key for key, _ in there]
    told = {"url": served.url, "stream": "orders"}
    spark.createDataFrame([("x", "eve")], "value string, key string").writeTo("events").options(**told).append()
    assert spark.read.options(**told).table("events").count() == len(there) + 1
    assert spark.table("current_orders").count() == len(there) + 1


@pytest.mark.nightly
def test_what_there_is_not(spark: Any, served: ServedHere, sql: Callable[[str], list[list[tuple[Any, ...]]]]) -> None:
    _, columns, _, table = blocks(PAGE, "sql")
    sql(columns)
    sql(table)
    for statement, message in (
        ("SELECT * FROM events", r"'url': is required.*to no Python source.*WITH \(`url` = '…'\)"),
        ("INSERT INTO events VALUES ('x', 'y')", "is required.*CREATE TEMPORARY VIEW"),
        ("INSERT OVERWRITE bodies VALUES ('x', 'y')", "'overwrite' cannot be done.*in SQL INSERT INTO"),
        ("CREATE VIEW lasting AS SELECT * FROM bodies", "temporary"),
        ("DELETE FROM events WHERE key = 'x'", "does not support deletes"),
        ("TRUNCATE TABLE events", "does not support truncates"),
        ("ANALYZE TABLE events COMPUTE STATISTICS", "not supported for v2 tables"),
        ("SELECT * FROM `amqp-events`.`orders`", "Unsupported data source type for direct query"),
        (
            "SELECT * FROM STREAM bodies",
            "`STREAM` cannot be found" if IS_4_0 else "not a temp view of streaming logical plan",
        ),
        ("CREATE TABLE wrong USING `amqp-events` OPTIONS (`urll` 'amqp://h')", "did you mean 'url'"),
    ):
        with pytest.raises(PySparkException, match=f"(?s){message}"):
            spark.sql(statement).collect()
    spark.sql("DROP TABLE events")
    spark.sql("CREATE TABLE events USING `amqp-events` COMMENT 'all columns' TBLPROPERTIES ('owned' = 'by us')")
    assert spark.sql("DESCRIBE TABLE events").first().asDict() == {
        "col_name": "value",
        "data_type": "binary",
        "comment": None,
    }
    first = [row[0] for (rows_of,) in [tables(PAGE, "What there is not")] for row in rows_of]
    named = {word for cell in first for span in code_spans(cell) for word in re.findall(r"[A-Z]{4,}", span)}
    assert {"OVERWRITE", "DELETE", "TRUNCATE", "ANALYZE", "STREAM"} <= named
