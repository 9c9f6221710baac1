"""The parts of a page of documentation that tests run or compare."""

from __future__ import annotations

import ast
import functools
import os
import re
from pathlib import Path

from spark_streams import errors

ROOT = Path(__file__).parents[2]


ERRORS = {n for n, of in vars(errors).items() if isinstance(of, type) and issubclass(of, errors.SparkStreamsError)}
"""The names of all our errors."""

SPOILED = "SPARK_STREAMS_SPOILED_BLOCK"
"""Names a variable that names a block, as page, language and number from 0: its test is to fail."""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language; ``tests/docs/test_blocks.py`` names the test of each."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    texts = [block for its_language, block in found if its_language == language]
    where, _, number = os.environ.get(SPOILED, "").rpartition(" ")
    if where == f"{page} {language}":
        texts[int(number)] = _spoiled(texts[int(number)], language)
    return texts


def _spoiled(block: str, language: str) -> str:
    """Return a block that fails when it is run to its end, or read."""
    if language == "python":
        return block + "\nraise AssertionError('the block was run to its end')\n"
    if language == "bash":
        return re.sub(r"^(\w[\w-]+)", r"\1 --spoiled", block, flags=re.MULTILINE)
    return "]] spoiled\n"


def tables(page: str, heading: str) -> list[list[list[str]]]:
    """Return the tables under a heading, up to the next one of any level: the cells of each row, without the head."""
    lines = (ROOT / page).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if re.fullmatch(rf"#+ {re.escape(heading)}", line))
    found: list[list[list[str]]] = []
    before = ""
    fenced = False
    for line in lines[at + 1 :]:
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            break
        if line.startswith("|---"):
            found.append([])
        elif line.startswith("|") and before.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split(" | ")])
        before = line
    return found


def code_spans(text: str) -> list[str]:
    """Return what stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


@functools.cache
def told(*folders: str) -> str:
    """Return all literal text of the code: what can be in a message."""
    texts = []
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                    texts.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)
