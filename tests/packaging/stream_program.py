"""What a user's program does, with nothing but the installed package: no registration, no path tricks."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def main(url: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    options = {"url": url, "stream": "orders", "startingOffsets": "earliest"}
    batch = spark.read.format("amqp-events").options(**options).load()
    said = {"spark": spark.version, "batch": batch.count()}

    stream = spark.readStream.format("amqp-events").options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        counted = (
            stream.writeStream.format("parquet")
            .option("path", f"{folder}/out")
            .option("checkpointLocation", f"{folder}/one")
            .trigger(availableNow=True)
            .start()
        )
        counted.awaitTermination()
        said["stream"] = spark.read.parquet(f"{folder}/out").count()
        written = (
            stream.selectExpr("concat('again ', string(value)) AS value", "key")
            .writeStream.format("amqp-events")
            .options(url=url, stream="orders", checkpointLocation=f"{folder}/two")
            .trigger(availableNow=True)
            .start()
        )
        written.awaitTermination()
    rows = spark.read.format("amqp-events").options(**options).load().where("string(value) like 'again %'")
    said["written"] = rows.select("value").distinct().count()

    try:
        spark.read.format("amqp-events").options(**options, strem="x").load().count()
        said["unknown_option"] = ""
    except PySparkException as fault:
        said["unknown_option"] = str(fault)
    import spark_streams

    said["module"] = spark_streams.__file__
    said["sources_at_top"] = any(importlib.util.find_spec(name) is not None for name in ("sources", "sinks"))
    spark.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
