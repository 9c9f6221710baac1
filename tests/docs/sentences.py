"""The sentences of the code: all its texts of five words or more that somebody may get to read, by the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tests.docs.messages import is_said
from tests.docs.syntax import called_name, children, is_documentation, parsed, pieces_of

LOGGED = {"debug", "info", "warning", "error", "exception"}
OF_A_COMMAND = {"option", "argument", "command", "group"}
"""Decorators of click: their words are a command's help."""
TAKE_AN_EXAMPLE = {"text", "required"}
"""Readers of an option: what follows its name ends ``is required: …`` or ``is empty, expected …``."""


class Sentence(NamedTuple):
    """A sentence of ours, where it stands, and its words; what is filled in is an ellipsis."""

    file: str
    line: int
    text: str


def sentences_of(file: str, source: str) -> Iterator[Sentence]:
    """Yield the sentences of a file.

    Left out are documentation, assertions, lines of the log, the help of commands, and examples of an option's value.
    """
    for node in _texts(parsed(source)):
        for text in pieces_of(node):
            if is_said([text], words=5) and "\b\n" not in text:  # which click takes for: leave my lines as they are
                yield Sentence(file, node.lineno, text)


def _texts(node: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    """Yield the texts in a node that are no documentation and the like."""
    if isinstance(node, ast.JoinedStr | ast.Constant):
        yield node
        return
    inside = children(node)
    if is_documentation(node):
        return
    if isinstance(node, ast.Assert):
        inside = iter((node.test,))
    elif isinstance(node, ast.keyword) and node.arg is not None:
        if node.arg in ("help", "epilog") or node.arg.endswith("_example"):
            return
    elif isinstance(node, ast.Call):
        called = called_name(node)
        if called in OF_A_COMMAND or (called in LOGGED and isinstance(node.func, ast.Attribute)):
            return
        if called in TAKE_AN_EXAMPLE:
            inside = iter((node.func, *node.args[:1], *node.keywords))
    for child in inside:
        yield from _texts(child)
