"""Spark as tests use it: no web server, few partitions, our formats; its Python workers are of this Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["running_session", "session_of_its_own"]


def running_session(master: str = "local[2]", *, log_level: str = "ERROR", **settings: str) -> Any:
    """Return the Spark that runs in this process, or start one, which takes seconds; settings are Spark's, by name."""
    from spark_streams.testing.spark_session import running_spark

    waits = {"spark.python.authenticate.socketTimeout": "300s"}  # a busy machine takes longer than Spark expects
    session = running_spark({"spark.master": master, **waits, **settings})
    session.sparkContext.setLogLevel(log_level)
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
