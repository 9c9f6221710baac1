"""One Spark for all formats of a measure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:-UsePerfData",
    # As conf/spark-defaults.conf has it.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "5000",
    # Queries are stopped in the middle, of which tasks say much.
    "spark.log.level": "FATAL",
}


def worker_python() -> str:
    """Return the Python of Spark's workers."""
    try:
        from spark_streams.worker_python import executable
    except ImportError:
        return sys.executable
    return executable()


def session(jars: Sequence[Path], settings: Mapping[str, str]) -> Any:
    """Start Spark with the peers' jars and our formats, the JVM warm from one query without a peer."""
    from pyspark.sql import SparkSession

    import spark_streams
    from tests.bench.harness.ceiling import Ceiling
    from tests.bench.harness.cpu import MARK
    from tests.bench.plain.event_hubs import PlainEventHubs
    from tests.bench.plain.feed import PlainFeed, PlainZeroEventHub
    from tests.bench.plain.proton import PlainProton
    from tests.bench.plain.rstream import PlainRstream

    os.environ[MARK] = str(os.getpid())
    # As docs/performance.md and conf/spark-defaults.conf have it; an older revision may not have the command.
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # only the first worker compiles what it imports
    builder = SparkSession.builder
    for name, value in {**SETTINGS, "spark.jars": ",".join(map(str, jars)), **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark_streams.register(spark)
    for source in (Ceiling, PlainProton, PlainEventHubs, PlainRstream, PlainFeed, PlainZeroEventHub):
        spark.dataSource.register(source)
    spark.range(100_000).selectExpr("sum(id)").collect()
    return spark
