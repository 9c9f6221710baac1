"""The README's command blocks and its program, run as they stand."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, serving
from tests.docs.pages import ROOT, blocks

FOLDER = re.compile(r'((?:checkpointLocation|spoolLocation|path)(?:=|": |", ))"([^"]+)"')
"""An option of the programs with a folder in the working directory, which is Spark's own in these tests."""

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
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]
    assert len(pages) > 90
    for page in pages:
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
def test_the_quick_start(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The served streams, the appended events, the programs and the last look, on free ports.

    The session is there, and the formats are registered in it: from a checkout Spark does not find them by itself. That
    it does where the wheel is installed is what the wheel test shows.
    """
    lines = commands()
    (serve_line,) = [line for line in lines if " log serve " in line]
    (append_line,) = [line for line in lines if " log append " in line]
    (tail_line,) = re.findall(r"`(spark-streams tail [^`]*)`", README)
    programs = blocks("README.md", "python")

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
        for program in programs:
            code, folders = FOLDER.subn(rf'\1"{tmp_path}/\2"', here(program))
            assert folders == len(re.findall("Location|path", program))
            exec(compile(code, "README", "exec"), {})
        table = capsys.readouterr().out
        shown = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if "|" in line]
        assert sorted(shown) == [
            ["value", "key"],
            ['{"id": 1, "eur": 12}', "alice"],
            ['{"id": 2, "eur": 250}', "alice"],
        ]
        written = [json.loads(line) for file in (tmp_path / "orders").glob("*.json") for line in file.open()]
        assert sorted((row["key"], row["partition"]) for row in written) == [("1", "3"), ("2", "3")]
        assert sorted(row["value"] for row in written) == ['{"id": 1, "eur": 12}', '{"id": 2, "eur": 250}']
        (line,) = run(tail_line).splitlines()
        assert line.split("\t")[3:] == ["alice", '{"id": 2, "eur": 250}']
        copied = run(tail_line.replace("orders-big", "orders-copy")).splitlines()
        assert [line.split("\t")[3:] for line in copied] == [
            ["alice", '{"id": 1, "eur": 12}'],
            ["alice", '{"id": 2, "eur": 250}'],
        ]
