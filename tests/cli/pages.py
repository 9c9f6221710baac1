"""The parts of a page of documentation that tests run or compare."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a language; ``""`` for plain ones."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for its_language, block in found if its_language == language]


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
