"""The base package on the newest Python that Debian has, in a Debian of its own: sid has 3.14 since 2026.

All three formats write and read there against a log of this environment, by Spark's Python API and without its JVM.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark_streams.testing import LogProcess, LogStream
from tests.packaging.test_installed_wheel import checkout, wheel  # noqa: F401  # fixtures
from tests.real_rabbitmq.debian import CannotStart, file_system, proxies

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]
FORMATS = ("amqp-events", "rabbitmq-stream", "feedapi")
PROGRAM = """
import json, sys
from importlib import import_module
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StringType, StructField, StructType

vars(TaskContext._getOrCreate()).update(_partitionId=0, _localProperties={}, _taskAttemptId=0, _attemptNumber=0)
said = {"python": sys.version_info[:2]}
for format, options in json.loads(sys.argv[1]).items():
    source = import_module("pyspark_" + format.replace("-", "_")).DefaultSource(options)
    writer = source.writer(StructType([StructField("value", StringType())]), False)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": [format]})]))])
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    said[format] = [value.decode() for batch in batches for value in batch.column("value").to_pylist()]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def debian() -> Path:
    try:
        root = file_system("debian-sid-without-compiler", "sid", "python3,python3-venv,ca-certificates")
    except CannotStart as fault:
        pytest.skip(str(fault))
    for file in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copyfile(Path("/", file), root / file)
    return root


@pytest.fixture
def folder(debian: Path) -> Iterator[Path]:
    """A folder in it, which is removed at the end."""
    with tempfile.TemporaryDirectory(dir=debian / "tmp") as made:
        yield Path(made)


def test_all_formats_write_and_read(debian: Path, folder: Path, wheel: Path) -> None:  # noqa: F811
    inside = Path("/", folder.relative_to(debian))

    def run(*command: object, **environment: str) -> str:
        line = ["chroot", str(debian), *map(str, command)]
        ran = subprocess.run(line, env={**os.environ, **proxies(), **environment}, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    shutil.copy(wheel, folder)
    home = Path(pyspark.__file__).parent
    shutil.copytree(home, folder / "spark" / "pyspark", ignore=shutil.ignore_patterns("jars", "__pycache__"))
    shutil.copytree(home.parent / "py4j", folder / "spark" / "py4j")
    run("python3", "-m", "venv", inside / "venv")
    python = inside / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", inside / wheel.name)
    with LogProcess(arguments=["--stream", "orders"]) as log:
        stream = LogStream(log, "orders", 1)
        options: dict[str, Any] = {format: stream.options(format) for format in FORMATS}
        said = json.loads(run(python, "-c", PROGRAM, json.dumps(options), PYTHONPATH=str(inside / "spark")))
    assert said.pop("python") >= [3, 14]
    assert said == {format: list(FORMATS[: number + 1]) for number, format in enumerate(FORMATS)}
