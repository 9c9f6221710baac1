"""Spark as tests use it: no web server, few partitions, our formats; its Python workers are of this Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["running_session", "session_of_its_own"]


def running_session(master: str = "local[2]", *, log_level: str = "ERROR", **settings: str) -> Any:
    """Return the Spark that runs in this process, or start one, which takes seconds; settings are Spark's, by name."""
    from pyspark.sql import SparkSession

    import spark_streams
    from spark_streams import worker_python

    os.environ["PYSPARK_PYTHON"] = worker_python.executable()
    builder = (
        SparkSession.builder.master(master)
        .appName("spark-streams-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.authenticate.socketTimeout", "300s")
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    spark_streams.register(session)
    return session


@contextmanager
def session_of_its_own(master: str, *, log_level: str = "ERROR", **settings: str) -> Iterator[Any]:
    """A Spark with other static settings than the running one, which is stopped first."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    session = running_session(master, log_level=log_level, **settings)
    try:
        yield session
    finally:
        session.stop()
