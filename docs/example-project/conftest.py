"""One Spark session for all tests; ``reference_log`` needs nothing here, pytest finds it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import spark_streams
from spark_streams import worker_python


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = worker_python.executable()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark_streams.register(session)  # only an editable install of spark-streams needs this
    yield session
    session.stop()
