"""One Spark session a module: two cores, no web server, the formats registered by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def rate_limits() -> bool:
    """Whether this Spark lets a Python source limit a batch: since 4.2 it tells it where the batch starts."""
    import pyspark

    return tuple(int(number) for number in pyspark.__version__.split(".")[:2]) >= (4, 2)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A local session; its Python workers are this interpreter."""
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("spark-streams-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    spark_streams.register(session)
    yield session
    session.stop()
