"""Runs what the guides have for Delta, Iceberg and Avro, and our SQL beside Delta, in a Spark with their jars.

usage: guides_with_jars.py FOLDER

The variables are those of test_guides_with_jars.py. Prints what was found as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_streams.testing import LogProcess, StreamFactory
from tests.docs.guides import Guides
from tests.docs.pages import blocks
from tests.sessions import running_session


def main(folder: Path) -> dict[str, Any]:
    names = os.environ["GUIDES_WITH"].split()
    settings = json.loads(os.environ["GUIDES_SETTINGS"])
    spark = running_session(**settings)
    found: dict[str, Any] = {}
    with LogProcess() as process:
        guides = Guides.of(spark, StreamFactory(process), folder)
        first, large, iceberg = blocks("docs/guides/delta-and-iceberg.md", "python")
        if "delta" not in names:
            first = first.partition("query = ")[0]
        page: dict[str, Any] = {}
        guides.run_program(first, page)
        if "delta" in names:
            guides.run_program(large, page)
            page["append"](page["spark"].read.format("delta").load(f"{folder}/tables/delta-orders"), 0)
            for name in ("delta-orders", "delta-large"):
                found[name] = spark.read.format("delta").load(f"{folder}/tables/{name}").count()
        if "iceberg" in names:
            spark.sql("CREATE NAMESPACE lake.shop")
            guides.run_program(iceberg, page)
            found["iceberg"] = spark.table("lake.shop.orders").count()
        if "avro" in names:
            from pyspark.sql.avro.functions import to_avro

            *_, avro = blocks("docs/guides/event-schema.md", "python")
            guides.run_program(avro, page)
            order = "named_struct('id', 7L, 'customer', 'ann') AS order"
            events = spark.range(1).selectExpr(order).select(to_avro("order", page["SCHEMA"]).alias("value"))
            found["avro"] = [list(row) for row in page["avro_orders"](events).collect()]
        if "delta" in names:
            found["sql"] = run_sql(spark, guides)
    spark.stop()
    return found


def run_sql(spark: Any, guides: Guides) -> list[str]:
    """Run the page's views, see its tables refused, and return the keys that a table of Delta's took from a view."""
    name = guides.streams["orders"].name
    reading, columns, writing, table = (
        guides.here(block).replace("`stream` 'orders'", f"`stream` '{name}'") for block in blocks("docs/sql.md", "sql")
    )
    for block in (reading, columns, writing, columns.replace("CREATE", "CREATE OR REPLACE")):
        for statement in block.split(";\n"):
            if statement.strip():
                spark.sql(statement).collect()
    create, insert, select, _ = table.split(";\n", 3)
    spark.sql(create)
    for statement, said in (
        (insert, "amqp-events is not a valid Spark SQL Data Source"),
        (select, "amqp-events is not a valid Spark SQL Data Source"),
        ("SELECT * FROM STREAM events", "Data source amqp-events does not support streamed reading"),
    ):
        with pytest.raises(PySparkException, match=said):
            spark.sql(statement)
    with pytest.raises(PySparkException, match="Cannot write into v1 table"):
        spark.createDataFrame([("x",)], "value string").writeTo("events").append()
    spark.sql("CREATE TABLE copied (key STRING) USING delta")
    spark.sql("INSERT INTO copied SELECT key FROM bodies WHERE key IN ('ann', 'ben')")
    return sorted({row.key for row in spark.table("copied").collect()})


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
