"""The wheel, installed in new environments, with the newest and the lowest Spark; run by `make wheel-test`.

The newest Spark is the one that constraints.txt names for the Python that runs this: 4.3 from Python 3.11 on.

Not named test_…, so that `make unit` leaves it out. Each environment is kept in .venv-wheel-<Spark> as long as
pyproject.toml and the constraints stay as they are; the wheel itself is built and installed anew every time.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
SPARKS = {"newest": ROOT / "constraints.txt", "4.0": HERE / "constraints-spark-4.0.txt"}
MODULES_AT_TOP = {"spark_streams", "pyspark_amqp_events", "pyspark_feedapi", "pyspark_rabbitmq_stream"}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def pinned_spark(constraints: Path) -> str:
    """Return the version of pyspark that the constraints name for this Python."""
    lines = (line for line in constraints.read_text().splitlines() if not line.startswith("#"))
    (named,) = (r for r in map(Requirement, lines) if r.name == "pyspark" and (not r.marker or r.marker.evaluate()))
    return str(named.specifier).removeprefix("==")


def run(*command: Any, **more: Any) -> str:
    """Run a command, away from the checkout, and return what it prints; fail with all it said."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the tracked files, and of no other: what lies about in build/ does not get in."""
    clean, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (clean / name).parent.mkdir(parents=True, exist_ok=True)
            (clean / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, clean)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_our_packages_and_nothing_else_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0].removesuffix(".py") for name in names if ".dist-info/" not in name}
    assert tops == MODULES_AT_TOP
    for needed in (
        "sources/amqp_events.py",
        "sources/feedapi.py",
        "sources/rabbitmq_stream.py",
        "sinks/amqp_events.py",
        "sinks/feedapi.py",
        "sinks/rabbitmq_stream.py",
        "filters/expression.proto",
        "filters/expression_pb2.py",
        "filters/expression_pb2.pyi",
        "py.typed",
        "conf/log.toml",
        "conf/spark-defaults.conf",
    ):
        assert f"spark_streams/{needed}" in names
    tracked = {p.relative_to(ROOT).as_posix() for p in (ROOT / "spark_streams").rglob("*.py")}
    assert tracked - set(names) == set(), "packages that pyproject.toml does not list"


@pytest.fixture(scope="module", params=list(SPARKS))
def installed(request: pytest.FixtureRequest, wheel: Path) -> tuple[str, Path]:
    """(name of the Spark, Python of an environment that has the wheel and that Spark)."""
    spark, constraints = request.param, SPARKS[request.param]
    folder = ROOT / f".venv-wheel-{spark}"
    python = folder / "bin" / "python"
    stamp = folder / ".ready"
    recipe = sys.version + constraints.read_text() + (ROOT / "pyproject.toml").read_text()
    wanted = hashlib.sha256(recipe.encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(python, "-m", "pip", "install", "--quiet", "-c", constraints, f"{wheel}[spark]")
        stamp.write_text(wanted)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    return spark, python


@pytest.fixture
def served(installed: tuple[str, Path], tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """The urls, AMQP, RabbitMQ and FeedAPI, of a log with a stream ``orders``, served by the installed command."""
    command = installed[1].parent / "spark-streams"
    server = subprocess.Popen(
        [command, "log", "serve", "--amqp", "0", "--rabbitmq-stream", "0", "--feedapi", "0", "--stream", "orders:2"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert server.stdout is not None
        urls = json.loads(server.stdout.readline())
        url, rabbit = (urls[door].replace("//", "//guest:guest@") for door in ("amqp", "rabbitmq-stream"))
        lines = "".join(f"event {n}\n" for n in range(1_000))
        run(command, "log", "append", url, "orders", input=lines, cwd=tmp_path)
        yield url, rabbit, f"{urls['feedapi']}/orders"
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0


def test_spark_reads_and_writes_without_a_registration_call(
    installed: tuple[str, Path], served: tuple[str, str, str], tmp_path: Path
) -> None:
    spark, python = installed
    program = tmp_path / "program.py"
    program.write_text((HERE / "stream_program.py").read_text())
    said = json.loads(run(python, program, *served, cwd=tmp_path).splitlines()[-1])
    assert said["spark"] == pinned_spark(SPARKS[spark])
    assert "site-packages" in said["module"]
    assert said["batch"] == said["stream"] == 1_000
    assert said["written"] == 1_000
    assert said["rabbit_batch"] == 2_000
    assert said["rabbit_written"] == 1_000
    assert said["rabbit_partitions"] == 2
    assert said["feed_batch"] == 3_000
    assert said["feed_written"] == 1_000
    assert said["sources_at_top"] is False
    assert "'strem'" in said["unknown_option"] and "'stream'" in said["unknown_option"]


def test_the_command_is_installed(installed: tuple[str, Path], tmp_path: Path) -> None:
    said = run(installed[1].parent / "spark-streams", "--version", cwd=tmp_path)
    assert said.startswith("spark-streams 0.")
