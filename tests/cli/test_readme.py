"""The README's command blocks and its program, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, serving
from tests.cli.pages import ROOT, blocks

IN_TURN = """
import json

for code in json.load(open("programs.json")):
    exec(compile(code, "README", "exec"), {})
"""
"""The programs one after the other in one process, as in a shell of Spark."""

README = (ROOT / "README.md").read_text()


def commands() -> list[str]:
    """Return the lines of the blocks of commands."""
    return [line for block in blocks("README.md", "bash") for line in block.splitlines()]


def test_the_make_targets_are_there() -> None:
    named = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert named == {"demo", "test"}
    listing = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert named <= {line.split()[0] for line in listing.splitlines()}


def test_every_link_points_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target, place in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            if place:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert place in anchors, f"{page.name}: {target}#{place}"


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    for file in (ROOT / "docs" / "adr").glob("0*.md"):
        assert f"({file.name})" in index


@pytest.mark.spark
def test_the_quick_start(tmp_path: Path) -> None:
    """The served streams, the appended events, the programs and the last look, on free ports."""
    lines = commands()
    (serve_line,) = [line for line in lines if " log serve " in line]
    (append_line,) = [line for line in lines if " log append " in line]
    (tail_line,) = re.findall(r"`(spark-streams log tail [^`]*)`", README)
    programs = blocks("README.md", "python")
    shell = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "conf")}

    with serving(tmp_path) as start:
        served = start("--rabbitmq-stream", "0", "--feedapi", "0", *serve_line.split()[3:])
        rabbit = served.doors["rabbitmq-stream"].replace("//", "//guest:guest@")

        def here(text: str) -> str:
            found = text.replace("amqp://guest:guest@localhost:5672", served.url)
            found = found.replace("rabbitmq-stream://guest:guest@localhost:5552", rabbit)
            found = found.replace("http://localhost:8080", served.doors["feedapi"])
            assert found != text
            return found

        def run(line: str) -> str:
            words = here(line).replace("spark-streams", " ".join(COMMAND), 1)
            return subprocess.run(words, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

        assert run(append_line) == "2 events appended to 'orders'\n"
        assert len(programs) == 4
        # Run from a checkout, where Spark does not find the format by itself (the wheel test shows that it does).
        registered = "import spark_streams\nspark_streams.register(spark)\n"
        codes = [re.sub(r"(spark = .*\n)", rf"\1{registered}", here(program)) for program in programs]
        (tmp_path / "programs.json").write_text(json.dumps(codes))
        done = subprocess.run([sys.executable, "-c", IN_TURN], cwd=tmp_path, env=shell, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown = [[cell.strip() for cell in line.split("|")[1:3]] for line in done.stdout.splitlines() if "|" in line]
        assert sorted(shown) == [
            ["value", "key"],
            ['{"id": 1, "eur": 12}', "alice"],
            ['{"id": 2, "eur": 250}', "alice"],
        ]
        written = [json.loads(line) for file in (tmp_path / "orders").glob("*.json") for line in file.open()]
        assert sorted((row["key"], row["partition"]) for row in written) == [("1", "3"), ("2", "3")]
        (line,) = run(tail_line).splitlines()
        assert line.split("\t")[3:] == ["alice", '{"id": 2, "eur": 250}']
        copied = run(tail_line.replace("orders-big", "orders-copy")).splitlines()
        assert [line.split("\t")[3:] for line in copied] == [
            ["alice", '{"id": 1, "eur": 12}'],
            ["alice", '{"id": 2, "eur": 250}'],
        ]
