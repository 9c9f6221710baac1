"""A Spark for tests: this Python's workers, two cores, no web server, few partitions, our formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
_PYTHON: Final = "PYSPARK_PYTHON"


def read_settings(texts: Iterable[str]) -> dict[str, str]:
    """Return Spark's settings of texts NAME=VALUE; the last of a name counts.

    Raises:
        ValueError: a text has another form.
    """
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"'{text}' is no setting of Spark: expected NAME=VALUE, such as spark.master=local[4]")
        found[name.strip()] = value.strip()
    return found


def running_spark(settings: Mapping[str, str]) -> SparkSession:
    """Return the Spark of this process, with our formats; start one if there is none, which takes seconds.

    Args:
        settings: Spark's settings beside ``SETTINGS``, or in their place.
    """
    from pyspark.sql import SparkSession

    os.environ[_PYTHON] = worker_python.executable()
    builder = SparkSession.builder
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    spark_streams.register(session)
    return session


@contextmanager
def spark_of_a_run(settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Return a context with the Spark that runs, as it is; or with one that is started, and stopped at the end.

    Args:
        settings: as for ``running_spark``.
    """
    from pyspark.sql import SparkSession

    had = SparkSession.getActiveSession()
    if had is not None:
        yield had
        return
    python = os.environ.get(_PYTHON)
    session = running_spark(settings)
    try:
        yield session
    finally:
        session.stop()
        os.environ.pop(_PYTHON, None)
        if python is not None:
            os.environ[_PYTHON] = python
