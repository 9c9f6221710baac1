"""Workers that ran our tasks go on with other people's: their modules, their garbage, their pandas."""

from __future__ import annotations

import sys
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from spark_streams.testing import StreamFactory

pytestmark = pytest.mark.spark

GUARD_S = 180.0


def in_a_worker_of_ours(spark: Any, log: StreamFactory, function: Any) -> Any:
    """Return what ``function(number)`` returns in a worker that has run a task of ours and was reused.

    Which idle worker Spark takes for a task is its own affair, so this writes and asks until it was one. Spark 4.0 runs
    the tasks of installed sources and sinks in workers of a daemon of their own, so there it is one that ran none.
    """
    from pyspark.sql import functions as F

    apart = spark.version.startswith("4.0.")

    def where_eased(number: int) -> str | None:
        import sys

        reused = sys.modules.get("spark_streams.spark.reused_worker")
        ours = reused is not None and reused._eased
        return str(function(number)) if ours != apart else None

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


def test_their_random_numbers_are_their_own(spark: Any, reference_log: StreamFactory, tmp_path: Path) -> None:
    # Workers may be forked from one process that has NumPy (spark_streams/fork_server.py).
    from pyspark.sql import functions as F

    in_a_worker_of_ours(spark, reference_log, lambda _: 1)
    deadline = time.time() + GUARD_S

    def drawn(number: int) -> str:
        import os
        import random
        import time

        import numpy as np

        (tmp_path / str(number)).touch()
        while len(list(tmp_path.iterdir())) < 2 and time.time() < deadline:  # each partition has a worker of its own
            time.sleep(0.01)
        return f"{os.getpid()} {np.random.bytes(8).hex()} {random.random()}"

    drawing = spark.range(0, 2, 1, 2).select(F.udf(drawn, "string", useArrow=False)("id"))
    pids, theirs, pythons = zip(*(row[0].split() for row in drawing.collect()), strict=True)
    assert len(set(pids)) == len(set(theirs)) == len(set(pythons)) == 2


def test_their_environment_is_that_of_a_task(spark: Any, reference_log: StreamFactory) -> None:
    from pyspark.sql import functions as F

    def environment(_: int) -> str:
        import os

        names = ("OMP_NUM_THREADS", "SPARK_REUSE_WORKER", "PYTHON_UDF_BATCH_SIZE")
        return " ".join(str(os.environ.get(name)) for name in names)

    rows = spark.range(0, 1, 1, 1).select(F.udf(environment, "string", useArrow=False)("id")).collect()
    assert rows[0][0].split()[:2] == ["1", "1"]


@pytest.mark.skipif(sys.platform != "linux", reason="the server is for Linux")
def test_daemons_are_forked_from_one_process(spark: Any, reference_log: StreamFactory) -> None:
    in_a_worker_of_ours(spark, reference_log, lambda _: 1)
    java = psutil.Process(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    started = [each for each in java.children() if each.status() != psutil.STATUS_ZOMBIE]
    planning = [each for each in started if any(word.startswith("pyspark.sql.worker.") for word in each.cmdline())]
    assert len(planning) >= 2, "one for planning, one for committing"
    # By itself each would be a daemon, with the worker that it has forked just now as a child.
    assert not [child for each in planning for child in each.children() if not child.children()]
