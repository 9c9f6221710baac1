"""Runs what the guides have for Delta, Iceberg and Avro, in a Spark that was started with their jars.

usage: guides_with_jars.py FOLDER

The variables are those of test_guides_with_jars.py. Prints what was found as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

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
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
