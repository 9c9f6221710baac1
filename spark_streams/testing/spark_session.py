"""A Spark for tests: this Python's workers, two cores, no web server, few partitions, our formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
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
    """Return Spark's settings from texts NAME=VALUE; of several texts with one name, the last counts.

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
        settings: Spark's settings, which are added to ``SETTINGS`` and override them.
    """
    session = _built(settings)
    spark_streams.register(session)
    return session


def spark_there() -> SparkSession | None:
    """Return the Spark of this process, whichever thread has started it; None if none runs."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.active()  # this thread's, else the default one
    except PySparkRuntimeError:
        return None
    context = getattr(session, "_sc", None)  # Spark Connect has none, and offers no session that is stopped
    return None if context is not None and context._jsc is None else session


def spark_until(ending: ExitStack, settings: Mapping[str, str]) -> SparkSession:
    """Return the running Spark, which goes on after ``ending``; without one, start one that ``ending`` stops.

    Either gets our formats. ``ending`` stops a started Spark that cannot get them, too.

    Args:
        ending: the stack whose end stops a Spark that is started here.
        settings: as for ``running_spark``; only a Spark that is started here gets them.
    """
    session = spark_there()
    if session is None:
        ending.callback(_set_python, os.environ.get(_PYTHON))
        session = _built(settings)
        ending.callback(session.stop)
    spark_streams.register(session)
    return session


def _built(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ[_PYTHON] = worker_python.executable()
    builder = SparkSession.builder
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _set_python(python: str | None) -> None:
    os.environ.pop(_PYTHON, None)
    if python is not None:
        os.environ[_PYTHON] = python
