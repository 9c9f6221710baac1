"""A Spark for tests: this Python's workers, two cores, no web server, few partitions, our formats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import spark_streams
from spark_streams import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final = {
    "spark.master": "local[2]",
    "spark.app.name": "spark-streams-tests",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
"""Spark's settings, unless others are given."""


def running_spark(settings: Mapping[str, str]) -> SparkSession:
    """Return the Spark of this process, with our formats; start one if there is none, which takes seconds.

    Args:
        settings: Spark's settings beside ``SETTINGS``, or in their place.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = worker_python.executable()
    builder = SparkSession.builder
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    spark_streams.register(session)
    return session
