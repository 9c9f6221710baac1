"""The package, installed as the README and the example project say, with the newest and the lowest Spark.

The commands are those of the two pages, letter for letter; the constraints are given by the environment. The newest
Spark is the one that constraints.txt names for the Python that runs this: 4.3 from 3.11 on.

Each environment is kept in .venv-wheel-<Spark> as long as pyproject.toml and the constraints stay as they are; the
package itself is built and installed anew every time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.docs.pages import ROOT, blocks

HERE = Path(__file__).parent
SPARKS = {"newest": ROOT / "constraints.txt", "4.0": HERE / "constraints-spark-4.0.txt"}
EXAMPLE = "docs/example-project/README.md"
README = "README.md"
INSTALLED_BY = {"newest": README, "4.0": EXAMPLE}
"""The page whose commands install the package with that Spark."""
OUTSIDE = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
"""The environment of what runs in another Python than this."""
MODULES_AT_TOP = {"spark_streams", "pyspark_amqp_events", "pyspark_feedapi", "pyspark_rabbitmq_stream"}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def pinned_spark(constraints: Path) -> str:
    """Return the version of pyspark that the constraints name for this Python."""
    lines = (line for line in constraints.read_text().splitlines() if not line.startswith("#"))
    (named,) = (r for r in map(Requirement, lines) if r.name == "pyspark" and (not r.marker or r.marker.evaluate()))
    return str(named.specifier).removeprefix("==")


def run(*command: Any, **more: Any) -> str:
    """Run a command, away from the checkout, and return what it prints; fail with all it said."""
    given = {"env": OUTSIDE, **more}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **given)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files, and no others: what lies about in build/ does not get into the wheel."""
    clean = tmp_path_factory.mktemp("checkout")
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
    return clean


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".", cwd=checkout)
    (built,) = (checkout / "dist").glob("*.whl")
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
        "conf/prometheus.yml",
        "conf/grafana/spark-streams.json",
    ):
        assert f"spark_streams/{needed}" in names
    tracked = {p.relative_to(ROOT).as_posix() for p in (ROOT / "spark_streams").rglob("*.py")}
    assert tracked - set(names) == set(), "packages that pyproject.toml does not list"


def shell(spark: str, line: str, folder: Path) -> str:
    """Run a line of a page in a folder, in the environment with that Spark, and return what it prints."""
    environment = ROOT / f".venv-wheel-{spark}"
    variables = {
        **OUTSIDE,
        "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(environment),
        "PIP_CONSTRAINT": str(SPARKS[spark]),
        "DIST_EXTRA_CONFIG": str(ROOT / "conf" / "wheels.cfg"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return run("bash", "-c", line, cwd=folder, env=variables)


@pytest.fixture(scope="module")
def project(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example project, with the checkout where its page has it."""
    folder = tmp_path_factory.mktemp("projects")
    (folder / "spark-streams").symlink_to(checkout)
    ignored = shutil.ignore_patterns(".*", "__pycache__")
    return Path(shutil.copytree((ROOT / EXAMPLE).parent, folder / "project", ignore=ignored))


def commands(page: str) -> tuple[list[str], list[str]]:
    """Return the lines of a page that install the package, and those after them."""
    (block,) = (block for block in blocks(page, "bash") if "\npip install " in block)
    shown = block.splitlines()
    last = max(number for number, line in enumerate(shown) if line.startswith("pip install"))
    return shown[: last + 1], shown[last + 1 :]


@pytest.fixture(scope="module", params=[pytest.param(spark, marks=pytest.mark.nightly) for spark in SPARKS])
def installed(request: pytest.FixtureRequest, checkout: Path, project: Path) -> tuple[str, Path]:
    """(name of the Spark, Python of an environment that has the package and that Spark)."""
    spark, constraints = request.param, SPARKS[request.param]
    folder = ROOT / f".venv-wheel-{spark}"
    stamp = folder / ".ready"
    lines, _ = commands(INSTALLED_BY[spark])
    recipe = sys.version + constraints.read_text() + (ROOT / "pyproject.toml").read_text() + "\n".join(lines)
    wanted = hashlib.sha256(recipe.encode()).hexdigest()
    where = project if INSTALLED_BY[spark] == EXAMPLE else checkout
    if not stamp.exists() or stamp.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", folder)
    else:
        shell(spark, "pip uninstall --quiet --yes spark-streams", where)
    for line in lines:
        shell(spark, line, where)
    stamp.write_text(wanted)
    return spark, folder / "bin" / "python"


@pytest.fixture
def served(installed: tuple[str, Path], tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """The urls, AMQP, RabbitMQ and FeedAPI, of a log with a stream ``orders``, served by the installed command."""
    streams = ("--stream", "orders:2", "--stream", "orders-big:4")  # the README writes to the second
    command = installed[1].parent / "spark-streams"
    server = subprocess.Popen(
        [command, "log", "serve", "--amqp", "0", "--rabbitmq-stream", "0", "--feedapi", "0", *streams],
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
        assert server.wait(timeout=120) == 0


def test_spark_reads_and_writes_without_a_registration_call(
    installed: tuple[str, Path], served: tuple[str, str, str], tmp_path: Path
) -> None:
    spark, python = installed
    program = tmp_path / "program.py"
    program.write_text((HERE / "stream_program.py").read_text())
    said = json.loads(run(python, program, *served, cwd=tmp_path).splitlines()[-1])
    assert said["spark"] == pinned_spark(SPARKS[spark])
    check_what_the_program_said(said)


def check_what_the_program_said(said: dict[str, Any]) -> None:
    """Check what ``stream_program.py`` read and wrote, where ``orders`` has two partitions and ``event 0`` to 999."""
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


def test_the_example_project_runs_as_its_page_says(installed: tuple[str, Path], project: Path) -> None:
    spark, _ = installed
    if INSTALLED_BY[spark] != EXAMPLE:
        shell(spark, "pip install --quiet pytest chispa", project)  # which the page's command brings
    _, (line,) = commands(EXAMPLE)
    assert "3 passed" in shell(spark, line, project)


NOT_ACTIVATED = {
    **{name: value for name, value in OUTSIDE.items() if name not in ("VIRTUAL_ENV", "PYSPARK_PYTHON")},
    "PATH": "/usr/bin:/bin",
}
"""The environment of a job that an IDE, cron or systemd starts by the path of its Python."""

ASK = """
import sys
import spark_streams
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
if sys.argv[1] == "register":
    spark_streams.register(spark)
print(spark.read.format("amqp-events").options(url=sys.argv[2], stream="orders").load().count())
print(spark_streams.__file__)
"""


def test_python_in_a_checkout_finds_the_formats(
    installed: tuple[str, Path], served: tuple[str, str, str], checkout: Path
) -> None:
    environment = {**OUTSIDE, "PYSPARK_PYTHON": str(installed[1])}
    said = run(installed[1], "-c", ASK, "find", served[0], cwd=checkout, env=environment)
    assert said.splitlines() == ["1000", str(checkout / "spark_streams" / "__init__.py")]


def test_register_says_that_spark_starts_another_python(
    installed: tuple[str, Path], served: tuple[str, str, str], tmp_path: Path
) -> None:
    command = [installed[1], "-c", ASK, "register", served[0]]
    done = subprocess.run(command, cwd=tmp_path, env=NOT_ACTIVATED, capture_output=True, text=True, timeout=600)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("spark_streams.errors.SparkStreamsError: Spark starts 'python3' for what it runs in Python")
    assert f"PYSPARK_PYTHON={installed[1]} in the environment of the job" in last


def test_the_readmes_first_program_runs_again_and_without_an_activated_environment(
    installed: tuple[str, Path], served: tuple[str, str, str], tmp_path: Path
) -> None:
    (append,) = (line for block in blocks(README, "bash") for line in block.splitlines() if " log append " in line)
    program = blocks(README, "python")[0].replace("amqp://guest:guest@localhost:5672", served[0])
    (tmp_path / "job.py").write_text(program)
    command = installed[1].parent / "spark-streams"
    for time in (1, 2):
        run(command, *shlex.split(append.replace("amqp://guest:guest@localhost:5672", served[0]))[1:], cwd=tmp_path)
        run(installed[1], "job.py", cwd=tmp_path, env=NOT_ACTIVATED)
        tail = run(command, "log", "tail", served[0], "orders-big", "--from", "earliest", "--no-follow", cwd=tmp_path)
        assert len(tail.splitlines()) == time
