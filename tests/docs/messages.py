"""The messages of the code: what its errors are made with, by the syntax tree of each file.

Not among them are words that reach an error as a value from elsewhere, such as the reasons in a table of refused
options: their rows stand on the page by hand.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.docs.pages import ERRORS, ROOT

MAKERS = {"refuse": "OptionError", "refusal": "Refused", "UsageError": "OptionError", "BadParameter": "OptionError"}
"""Makers of errors that none of our annotations tells, to the error."""
WHOLE = {"spark_streams/options/kafka_names.py": "OptionError"}
"""Files whose texts are all parts of one message, which others are put into: its beginning is explained."""


class _Value(NamedTuple):
    """The texts that a name stands for, and the names that these are made of."""

    texts: list[str]
    parts: set[str]


@dataclass(frozen=True)
class Message:
    """An error of ours, where it is made, and its words; what is filled in is an ellipsis."""

    file: str
    line: int
    error: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.error}: {self.text}"


def makers_of(tree: ast.AST) -> dict[str, str]:
    """Return the functions of a file that return or raise an error of ours of what they are called with, to the error.

    Their annotation says so: it names the error, or they never return.
    """
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            names = {each.id for each in ast.walk(node.returns) if isinstance(each, ast.Name)}
            if "NoReturn" in names:
                calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
                names |= {name for called in calls for name in _names_in(called)}
            if names & ERRORS:
                found[node.name] = min(names & ERRORS)
    return found


def messages_of(file: str, source: str, makers: Mapping[str, str] = MAKERS) -> Iterator[Message]:
    """Yield the messages of a file: words in the call that makes the error, or else what its arguments are made of.

    These are names that the function, or the file, gives a text to, and functions of the file that return one.
    """
    tree = ast.parse(source)
    makers = {**makers, **makers_of(tree)}
    returned = _texts_by_name([node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)])
    of_file = _texts_by_name(tree.body)
    for scope in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        inside = list(_of_scope(scope))
        stands_for = {
            **of_file,
            **returned,
            **_texts_by_name([n for n in inside if not isinstance(n, ast.FunctionDef)]),
        }
        for node in inside:
            if isinstance(node, ast.Call):
                yield from _said_by(file, node, stands_for, makers)
    if file in WHOLE:
        documentation = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        yield Message(file, 1, WHOLE[file], "\n".join(_outermost(tree, documentation)))


def _said_by(file: str, call: ast.Call, stands_for: dict[str, _Value], makers: Mapping[str, str]) -> Iterator[Message]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    error = called if called in ERRORS else makers.get(called)
    if error is None:
        return
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    own = [text for argument in arguments for text in literals_in(argument)]
    if is_said(own):
        yield Message(file, call.lineno, error, "\n".join(own))
        return
    names = {name for argument in arguments for name in _names_in(argument)}
    while more := {part for name in names if name in stands_for for part in stands_for[name].parts} - names:
        names = names | more
    for text in sorted({text for name in names if name in stands_for for text in stands_for[name].texts}):
        if is_said([text], words=4):
            yield Message(file, call.lineno, error, text)


@functools.cache
def messages() -> list[Message]:
    """Return the messages of all that is shipped."""
    sources = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("spark_streams", "sources", "sinks")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    public = {name: error for text in sources.values() for name, error in makers_of(ast.parse(text)).items()}
    makers = {**{name: error for name, error in public.items() if not name.startswith("_")}, **MAKERS}
    return [message for file, text in sources.items() for message in messages_of(file, text, makers)]


def is_said(texts: list[str], words: int = 3) -> bool:
    """Whether there is a sentence among texts, of so many words, and not only names."""
    return any(" " in text and len(re.findall(r"[a-zA-Z]{2,}", text)) >= words for text in texts)


def literals_in(node: ast.AST) -> list[str]:
    """Return the texts in an expression, one for each that is written in one piece."""
    return list(_outermost(node, set()))


def _outermost(node: ast.AST, without: set[int]) -> Iterator[str]:
    if id(node) in without:
        return
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from _outermost(child, without)


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or a module, and of what is no function of its own in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef):
            yield from _of_scope(child)


def _names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _texts_by_name(nodes: Iterable[ast.AST]) -> dict[str, _Value]:
    """Return what names stand for that are assigned to, and functions that return something."""
    found: dict[str, _Value] = {}
    for node in nodes:
        values: list[tuple[str, ast.AST]] = []
        if isinstance(node, ast.FunctionDef):
            returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            values = [(node.name, value) for value in returned if value is not None]
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [(name, node.value) for target in targets for name in _names_in(target)]
        for name, value in values:
            known = found.setdefault(name, _Value([], set()))
            known.texts.extend(literals_in(value))
            known.parts.update(_names_in(value))
    return found
