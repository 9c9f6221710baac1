"""The README's command blocks and its program, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, serving

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language; none for plain ones."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Return the lines of the plain blocks."""
    return [line for block in blocks("") for line in block.splitlines()]


def test_the_make_targets_are_there() -> None:
    named = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert named == {"demo", "test"}
    listing = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert named <= {line.split()[0] for line in listing.splitlines()}


def test_every_link_points_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "README.md", ROOT / "docs" / "adr" / "README.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    for file in (ROOT / "docs" / "adr").glob("0*.md"):
        assert f"({file.name})" in index


@pytest.mark.spark
def test_the_quick_start(tmp_path: Path) -> None:
    """The served streams, the appended events, the program and the last look, on a free port."""
    lines = commands()
    (serve_line,) = [line for line in lines if " log serve " in line]
    (append_line,) = [line for line in lines if " log append " in line]
    (tail_line,) = re.findall(r"`(spark-streams log tail [^`]*)`", README)
    (program,) = blocks("python")
    shell = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "conf")}

    with serving(tmp_path) as start:
        served = start(*serve_line.split()[3:])

        def here(text: str) -> str:
            assert "amqp://guest:guest@localhost:5672" in text
            return text.replace("amqp://guest:guest@localhost:5672", served.url)

        def run(line: str) -> str:
            words = here(line).replace("spark-streams", " ".join(COMMAND), 1)
            return subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

        assert run(append_line) == "2 events appended to 'orders'\n"
        # Run from a checkout, where Spark does not find the format by itself (the wheel test shows that it does else).
        registered = "import spark_streams\nspark_streams.register(spark)\n"
        code = re.sub(r"(spark = .*\n)", rf"\1{registered}", here(program))
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=shell, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (line,) = run(tail_line).splitlines()
        assert line.split("\t")[3:] == ["alice", '{"id": 2, "eur": 250}']
