"""What importing costs, and what is public."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import spark_streams

ROOT = Path(__file__).resolve().parents[1]


def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, spark_streams; print([m for m in sys.modules if m.split('.')[0] in ('pyspark', 'proton')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_public() -> None:
    assert spark_streams.__all__ == ["register"]


def test_spark_finds_the_format_by_its_module() -> None:
    from spark_streams.sources.amqp_events import AmqpEventsDataSource

    import pyspark_amqp_events

    assert pyspark_amqp_events.DefaultSource is AmqpEventsDataSource
    assert AmqpEventsDataSource.name() == "amqp-events"


def test_registering_twice_is_no_error() -> None:
    from pyspark.errors import AnalysisException

    class Registration:
        def register(self, source: type) -> None:
            raise AnalysisException("[DATA_SOURCE_ALREADY_EXISTS] Data source 'amqp-events' already exists.")

    class Session:
        dataSource = Registration()

    spark_streams.register(Session())


def in_folder(folder: Path, program: str, *paths: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, by a Python that knows no editable install: only these folders of packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_python_in_a_checkout_has_the_formats() -> None:
    program = (
        "import pyspark_amqp_events, pyspark_feedapi, pyspark_rabbitmq_stream, spark_streams.sinks.feedapi as sink\n"
        "from importlib.util import find_spec\n"
        "print(pyspark_feedapi.DefaultSource.name(), pyspark_feedapi.DefaultSource.__module__, sink.__file__)\n"
        "print([find_spec(f'spark_streams.{name}') for name in ('tests', 'notebooks', 'pyspark_feedapi')])"
    )
    ran = in_folder(ROOT, program, sysconfig.get_paths()["purelib"])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        f"feedapi spark_streams.sources.feedapi {ROOT / 'sinks' / 'feedapi.py'}",
        "[None, None, None]",
    ]


@pytest.mark.parametrize("project", [None, '[project]\nname = "another"\n'], ids=["none", "another's"])
def test_what_lies_beside_an_installed_package_is_not_taken_for_ours(tmp_path: Path, project: str | None) -> None:
    (tmp_path / "spark_streams").mkdir()
    shutil.copy(spark_streams.__file__, tmp_path / "spark_streams")
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "__init__.py").touch()
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    ran = in_folder(tmp_path, "import spark_streams.sources")
    assert "No module named 'spark_streams.sources'" in ran.stderr
