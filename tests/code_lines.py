"""Counts lines of code: those that hold a token which is no import, comment, docstring or other bare text.

A bare text is an expression statement of one string literal: a docstring, or what documents the attribute above it. A
text that is a value counts with all of its lines, blank ones too, as each of them is data.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

GENERATED = "spark_streams/filters/expression_pb2.py"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Place = tuple[int, int]
"""A line, from 1 on, and a character of it, from 0 on."""


def code_lines(text: str) -> int:
    """Return how many lines of code a module has."""
    passed_over = [_places(node, text.splitlines()) for node in ast.walk(ast.parse(text)) if _is_no_code(node)]
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in _NO_CODE or any(start <= token.start and token.end <= end for start, end in passed_over):
            continue
        lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def product_code(root: Path) -> dict[str, int]:
    """Return the lines of code of each module of the product below a checkout's folder, but of generated ones."""
    trees = (root / folder for folder in ("spark_streams", "sources", "sinks", "conf"))
    files = [*root.glob("pyspark_*.py"), *(file for tree in trees for file in tree.rglob("*.py"))]
    counted = {file.relative_to(root).as_posix(): code_lines(file.read_text()) for file in files}
    return {name: lines for name, lines in sorted(counted.items()) if name != GENERATED}


def _is_no_code(node: ast.AST) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _places(node: ast.AST, lines: list[str]) -> tuple[Place, Place]:
    """Return where a statement begins and ends; the syntax tree counts bytes within a line, tokens characters."""
    assert isinstance(node, ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = lines[node.lineno - 1].encode(), lines[node.end_lineno - 1].encode()
    start = node.lineno, len(first[: node.col_offset].decode())
    return start, (node.end_lineno, len(last[: node.end_col_offset].decode()))
