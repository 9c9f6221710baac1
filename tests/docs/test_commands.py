"""Each command line that a page shows, in a block or in a sentence, is one that there is: its command, target, options.

That lines do what their page says is shown by the tests of blocks (``test_blocks.py`` names them).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from spark_streams.cli import main
from tests.docs.pages import ROOT, code_spans

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$\((?:or |if )?\$?\(?([A-Z_]+)\b", MAKEFILE))
TOOLS = {"bash", "curl", "databricks", "docker", "make", "pip", "pytest", "spark-pipelines", "spark-streams", "sudo"}
"""What a line of a block may begin with; ``curl``, ``databricks``, ``docker``, ``sudo`` are the reader's own, and
PySpark has ``spark-pipelines``."""
PYTHON = re.compile(r"(?:\.venv(?:-spark-[\d.]+)?/bin/)?python3?")


def pages() -> Iterator[tuple[str, str]]:
    """The name and the prose of each page, those of notebooks too."""
    named = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]
    for page in [*named, *(ROOT / ".github").rglob("*.md")]:
        yield page.relative_to(ROOT).as_posix(), page.read_text()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(notebook.read_text())["cells"]
        yield notebook.name, "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def shown(text: str) -> list[str]:
    """The command lines of a page: of its blocks for a shell, and those in backquotes."""
    joined = text.replace("\\\n", " ")
    in_blocks = [
        line for block in re.findall(r"^```bash\n(.*?)^```$", joined, re.M | re.S) for line in block.split("\n")
    ]
    prose = " ".join(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).split())
    begun = re.compile(rf"(?:{'|'.join(TOOLS - {'pytest'})}|{PYTHON.pattern}) [^ =]")
    return [line for line in in_blocks if line.strip()] + [span for span in code_spans(prose) if begun.match(span)]


LINES = [pytest.param(line, id=f"{page}: {line[:60]}") for page, text in pages() for line in dict.fromkeys(shown(text))]


def fault_of(line: str) -> str | None:
    """Return what is wrong with a command line, None when nothing is."""
    tool, *words = shlex.split(re.sub(r"\$\(.*?\)|[…]", "", line), comments=True)
    if tool == "spark-streams":
        return fault_of_ours(words)
    if tool == "make":
        targets = [word for word in words if "=" not in word and not word.startswith("-")]
        named = [word.partition("=")[0] for word in words if "=" in word]
        unknown = [*(set(targets) - TARGETS), *(set(named) - VARIABLES)]
        return f"the Makefile has no {unknown}" if unknown else None
    if tool == "python":
        return "not every system has a python: write python3, or .venv/bin/python"
    if tool == "bash" or PYTHON.fullmatch(tool):
        if words[0] == "-m":
            place = ROOT / words[1].replace(".", "/")
            there = (place / "__main__.py").is_file() or place.with_suffix(".py").is_file() or words[1] == "venv"
        else:
            there = (ROOT / words[0]).is_file()
        return None if there else f"there is no {' '.join(words[:2])}"
    return None if tool in TOOLS else f"no page says where {tool} comes from"


def fault_of_ours(words: list[str]) -> str | None:
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            return f"{command.name} has no command {words[0]}"
        command, words = found, words[1:]
    known = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"{command.name} has no {unknown}" if unknown else None


@pytest.mark.parametrize("line", LINES)
def test_there_is_such_a_command(line: str) -> None:
    assert fault_of(line) is None


def test_lines_that_do_not_work_are_noticed() -> None:
    wrong = {
        "spark-streams log sreve": "log has no command sreve",
        "spark-streams log serve --data ./x": "serve has no ['--data']",
        "make tset": "the Makefile has no ['tset']",
        "make bench ONYL=x": "the Makefile has no ['ONYL']",
        "python3 -m build --wheel": "there is no -m build",
        "python3 tests/nothing.py start": "there is no tests/nothing.py start",
        "python job.py": "not every system has a python: write python3, or .venv/bin/python",
        "twine check": "no page says where twine comes from",
    }
    assert {line: fault_of(line) for line in wrong} == wrong
    assert len(LINES) > 60
    assert shown("Run `make x`\n\n```bash\na \\\n  b\n```\nand `pip\ninstall y`.") == [
        "a    b",
        "make x",
        "pip install y",
    ]
