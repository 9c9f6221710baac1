"""What ``register`` says of the Python that a session starts: none of it needs a Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import spark_streams
from spark_streams.errors import SparkStreamsError
from spark_streams.spark.session_python import check


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no checkout, where any Python can import the package, and without what the machine sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)


def python_in(folder: Path, *flags: str) -> str:
    """Make a program that is this Python with flags, in a folder of its own; return its path."""
    folder.mkdir()
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(flags)} "$@"\n')
    program.chmod(0o755)
    return str(program)


def session(python: str, master: str = "local[2]", includes: tuple[str, ...] = (), **environment: str) -> Any:
    context = SimpleNamespace(
        pythonExec=python, master=master, environment=environment, _python_includes=list(includes)
    )
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python without any installed package, as the system's beside a virtual environment."""
    return python_in(tmp_path / "bare", "-S")


def test_a_python_without_the_package_is_refused_where_spark_runs_here(bare: str) -> None:
    with pytest.raises(SparkStreamsError) as caught:
        check(session(bare))
    assert str(caught.value) == (
        f"Spark starts '{bare}' for what it runs in Python, which is {bare} here and does not have the package "
        f"spark-streams with what it needs; this program runs in {sys.executable}. Set PYSPARK_PYTHON before Spark "
        "starts: os.environ['PYSPARK_PYTHON'] = sys.executable in the program, "
        f"PYSPARK_PYTHON={sys.executable} in the environment of the job, or activate the virtual environment"
    )


def test_python3_is_looked_up_as_spark_does(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(bare).parent))
    with pytest.raises(SparkStreamsError, match=f"'python3' for what it runs in Python, which is {bare} here"):
        check(session("python3"))


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(SparkStreamsError, match=r"'/nowhere/python3' .* not a program that can be found here"):
        check(session("/nowhere/python3"))


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("")
    broken.chmod(0o755)
    with pytest.raises(SparkStreamsError, match="does not have the package"):
        check(session(str(broken)))


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host"])
def test_of_a_cluster_it_is_a_warning(bare: str, master: str) -> None:
    with pytest.warns(RuntimeWarning, match="Set PYSPARK_PYTHON before Spark starts"):
        check(session(bare, master))


def test_another_python_with_the_package_is_right(tmp_path: Path) -> None:
    check(session(python_in(tmp_path / "other")))


def test_programs_beside_this_python_are_right() -> None:
    check(session(str(Path(sys.executable).with_name("spark-streams-python"))))
    check(session(sys.executable))


def test_what_spark_gives_its_python_counts(bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkFiles

    for name in ("spark_streams", "pyarrow", "numpy"):
        (tmp_path / "root" / "files.zip" / name).mkdir(parents=True)
        (tmp_path / "root" / "files.zip" / name / "__init__.py").touch()
    monkeypatch.setattr(SparkFiles, "getRootDirectory", staticmethod(lambda: str(tmp_path / "root")))
    check(session(bare, includes=("files.zip",)))
    check(session(bare, PYTHONPATH=str(tmp_path / "root" / "files.zip")))
    with pytest.raises(SparkStreamsError):
        check(session(bare, includes=("other.zip",)))


def test_databricks_and_spark_connect_are_not_judged(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(SimpleNamespace())
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    check(session(bare))


@pytest.mark.parametrize("found", [True, False], ids=["found by Spark", "registered"])
def test_register_asks_only_for_what_spark_has_not_found(bare: str, found: bool) -> None:
    from pyspark.errors import AnalysisException

    class Registration:
        def register(self, source: type) -> None:
            if found:
                raise AnalysisException("[DATA_SOURCE_ALREADY_EXISTS] Data source 'amqp-events' already exists.")

    made = session(bare)
    made.dataSource = Registration()
    if found:
        spark_streams.register(made)
    else:
        with pytest.raises(SparkStreamsError, match="PYSPARK_PYTHON"):
            spark_streams.register(made)
