"""The base package alone, beside a Spark, as a cluster has it: no pandas, nothing of the log.

All three formats are read and written in it, against a log in another environment, that of the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_streams.testing import LogProcess, LogStream
from tests.packaging.test_declared import names, requirements
from tests.packaging.test_installed_wheel import (
    HERE,
    OUTSIDE,
    ROOT,
    check_what_the_program_said,
    checkout,  # noqa: F401  # a fixture
    run,
)
from tests.test_without_log import LINE

pytestmark = [pytest.mark.nightly, pytest.mark.spark, pytest.mark.timeout(900)]
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
ARCHIVES = {"env": {**OUTSIDE, "DIST_EXTRA_CONFIG": str(ROOT / "conf" / "wheels.cfg")}}


@pytest.fixture(scope="module")
def base(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:  # noqa: F811
    """The folder of commands of an environment with the base package alone."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", *PIP, checkout)
    yield folder / "bin"
    # Some of it is what Spark is: 500 MB.
    subprocess.run(["rm", "-rf", folder], check=True)


def failing(*command: object, cwd: Path) -> str:
    """Return what a command says that fails, with code 1 and no traceback."""
    ran = subprocess.run([str(word) for word in command], cwd=cwd, env=OUTSIDE, capture_output=True, text=True)
    assert ran.returncode == 1 and "Traceback" not in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def test_it_brings_nothing_of_the_log(base: Path, tmp_path: Path) -> None:
    listed = json.loads(run(base / "python", "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    there = {each["name"].lower() for each in listed}
    assert not there & (names(requirements("log")) | names(requirements("spark")))
    assert failing(base / "spark-streams", "log", "serve", cwd=tmp_path) == f"Error: the command spark-streams {LINE}\n"
    imports = "import spark_streams.testing, spark_streams.client, spark_streams.log; print(spark_streams.__all__)"
    assert run(base / "spark-streams-python", "-c", imports, cwd=tmp_path) == "['register']\n"


def test_spark_reads_and_writes_all_formats_with_it(base: Path, tmp_path: Path) -> None:
    run(base / "python", *PIP, "pyspark", **ARCHIVES)
    run(base / "python", "-c", "import spark_streams.monitoring as m; m.StreamProgressListener()", cwd=tmp_path)
    (tmp_path / "program.py").write_text((HERE / "stream_program.py").read_text())
    with LogProcess(arguments=["--stream", "orders:2"]) as log:
        LogStream(log, "orders", 2).produce(f"event {n}" for n in range(1_000))
        amqp, rabbit = (log.urls[door].replace("//", "//guest:guest@") for door in ("amqp", "rabbitmq-stream"))
        said = run(base / "python", "program.py", amqp, rabbit, f"{log.urls['feedapi']}/orders", cwd=tmp_path)
    check_what_the_program_said(json.loads(said.splitlines()[-1]))


def test_pytest_starts_with_it(base: Path, tmp_path: Path) -> None:
    run(base / "python", *PIP, "pytest")
    (tmp_path / "test_it.py").write_text("def test_one(reference_log): pass\ndef test_two(): pass\n")
    said = failing(base / "python", "-m", "pytest", "-q", cwd=tmp_path)
    assert "1 passed, 1 error" in said and f"fixture 'reference_log': the reference log {LINE}" in said, said
