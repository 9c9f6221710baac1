"""The declarative pipeline of docs/guides, run by Spark's own command, which starts a Spark of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_streams import worker_python
from spark_streams.testing import StreamFactory
from tests.docs.guides import Guides
from tests.docs.pages import blocks

PAGE = "docs/guides/pipeline.md"
SETTINGS = """
spark.ui.enabled                         false
spark.sql.shuffle.partitions             2
spark.driver.host                        127.0.0.1
spark.driver.bindAddress                 127.0.0.1
spark.python.authenticate.socketTimeout  300s
"""
"""Not those of conf/: they name a master, which Spark refuses beside the server that this command starts."""


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="Spark has pipelines from 4.1 on")
def test_the_pipeline_of_the_page(reference_log: StreamFactory, tmp_path: Path) -> None:
    guides = Guides.of(None, reference_log, tmp_path)
    (program,), (spec,), (line,) = (blocks(PAGE, language) for language in ("python", "yaml", "bash"))
    (tmp_path / "orders.py").write_text(guides.here(program))
    (tmp_path / "spark-pipeline.yml").write_text(spec.replace("/tmp/pipeline", f"{tmp_path}/storage"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(SETTINGS)
    found = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{found}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": worker_python.executable(),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }
    command, *words = shlex.split(line)
    ran = subprocess.run(
        [str(found / command), *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800
    )
    said = ran.stdout + ran.stderr
    assert "Run is COMPLETED" in said, said[-4000:]
    # What the page says of Spark's command.
    assert ran.returncode == 0 or ("UNKNOWN_RESPONSE" in said and "__python_accumulator__" in said)
    large = [value.split(",")[0] for value in guides.streams["big-orders"].values()]
    assert sorted(large) == ['{"id":2', '{"id":2', '{"id":5']
    assert list((tmp_path / "spark-warehouse" / "turnover").glob("*.parquet"))
