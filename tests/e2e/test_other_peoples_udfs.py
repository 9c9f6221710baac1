"""Workers that ran our tasks go on with other people's: their modules, their garbage, their pandas."""

from __future__ import annotations

import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest

from spark_streams.testing import StreamFactory

pytestmark = pytest.mark.spark

GUARD_S = 180.0


def in_a_worker_of_ours(spark: Any, log: StreamFactory, function: Any) -> Any:
    """Return what ``function(number)`` returns in a worker that has run a task of ours and was reused.

    Which idle worker Spark takes for a task is its own affair, so this writes and asks until it was one.
    """
    from pyspark.sql import functions as F

    def where_eased(number: int) -> str | None:
        import gc

        return str(function(number)) if gc.get_freeze_count() else None

    ask = F.udf(where_eased, "string", useArrow=False)
    stream = log.create("udfs")
    rows = spark.range(2).selectExpr("CAST('x' AS BINARY) AS value").repartition(2)
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        rows.write.format("amqp-events").options(**stream.options("amqp-events")).mode("append").save()
        answers = [row[0] for row in spark.range(0, 2, 1, 2).select(ask("id")).collect() if row[0] is not None]
        if answers:
            return answers[0]
    raise AssertionError(f"no worker of ours in {GUARD_S} s")


def test_modules_that_are_added_later_are_found(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    name = f"added_{uuid.uuid4().hex}"
    in_a_worker_of_ours(spark, reference_log, lambda _: 1)
    archive = tmp_path / f"{name}.zip"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr(f"{name}.py", "VALUE = 42\n")
    spark.sparkContext.addPyFile(str(archive))

    def imported(_: int) -> int:
        import importlib

        return int(importlib.import_module(name).VALUE)

    assert in_a_worker_of_ours(spark, reference_log, imported) == "42"


def test_garbage_of_their_tasks_is_collected(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    note = tmp_path / "collected"

    def litter(_: int) -> int:
        import gc

        class Cycle:
            def __init__(self) -> None:
                self.me = self

            def __del__(self) -> None:
                note.touch()

        gc.disable()  # so that only the collection between two tasks can find it
        Cycle()
        return 1

    def tidy(_: int) -> int:
        import gc

        gc.enable()
        return 1

    in_a_worker_of_ours(spark, reference_log, litter)
    deadline = time.monotonic() + GUARD_S
    while not note.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    in_a_worker_of_ours(spark, reference_log, tidy)
    assert note.exists()


def test_their_pandas_works(spark: Any, reference_log: StreamFactory) -> None:
    in_a_worker_of_ours(spark, reference_log, lambda _: 1)
    doubled = spark.range(0, 4, 1, 2).mapInPandas(lambda frames: (frame * 2 for frame in frames), "id long")
    assert sorted(row[0] for row in doubled.collect()) == [0, 2, 4, 6]
