"""The guides' Delta, Iceberg and Avro, and our SQL in Delta's catalog, on Sparks for which Maven's repository has jars.

They run in a process of their own: a Spark gets its jars when its JVM starts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.bench.harness.jars import resolve
from tests.docs.pages import ROOT

JARS = {
    "4.1": {
        "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        "avro": "org.apache.spark:spark-avro_2.13:4.1.1",
    },
    "4.2": {"delta": "io.delta:delta-spark_4.2_2.13:4.4.0", "avro": "org.apache.spark:spark-avro_2.13:4.2.0"},
}
"""Of each Spark, what there was in November 2026."""
IN_SPARK = ("hadoop-client", "scala-", "slf4j", "spark-tags", "jackson-", "jsr305", "commons-logging", "avro-")
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG = {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.lake.type": "hadoop"}
SPARK = ".".join(pyspark.__version__.split(".")[:2])


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.jdk
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed: there is no mvn on the PATH")
@pytest.mark.skipif(SPARK not in JARS, reason=f"there is no Delta, Iceberg or Avro for Spark {SPARK} in its repository")
def test_what_the_guides_have_for_them(tmp_path: Path) -> None:
    artifacts = JARS[SPARK]
    jars = {jar.name: jar for each in artifacts.values() for jar in resolve([each])}
    wanted = [str(jar) for name, jar in jars.items() if name.startswith("spark-avro") or not name.startswith(IN_SPARK)]
    settings = {"spark.sql.catalog.lake.warehouse": str(tmp_path / "lake")} | ICEBERG if "iceberg" in artifacts else {}
    environment = {
        **os.environ,
        "GUIDES_WITH": " ".join(artifacts),
        "GUIDES_SETTINGS": json.dumps(DELTA | settings),
        "PYSPARK_SUBMIT_ARGS": f"--jars {','.join(wanted)} pyspark-shell",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.docs.guides_with_jars", str(tmp_path)]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    expected: dict[str, object] = {"sql": ["ann", "ben"], "delta-orders": 6, "delta-large": 3, "avro": [[7, "ann"]]}
    assert found == expected | ({"iceberg": 6} if "iceberg" in artifacts else {})
