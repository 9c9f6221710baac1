"""The tests' Spark runs with conf/spark-defaults.conf, as the demo's does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

DEFAULTS = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"
pytestmark = pytest.mark.spark

OWN = {"spark.master"}
"""What the tests' session sets for itself."""


def settings() -> dict[str, str]:
    """Return the settings of the file."""
    lines = [line.split(None, 1) for line in DEFAULTS.read_text().splitlines() if line and not line.startswith("#")]
    return {name: value.strip() for name, value in lines}


def test_spark_has_every_setting_of_the_file(spark: Any) -> None:
    used = dict(spark.sparkContext.getConf().getAll())
    assert len(settings()) > 5
    for name, value in settings().items():
        if name == "spark.driver.extraJavaOptions":
            assert used[name].endswith(value), "Spark puts options of its own before ours"
        elif name not in OWN:
            assert used[name] == value


def test_spark_talks_to_its_python_processes_without_loopback(spark: Any) -> None:
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 1):
        pytest.skip(f"Spark {spark.version} has no sockets in the file system")
    asked = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED"))
    assert asked.collect() == ["True"]
