"""The syntax trees of what is shipped, walked once: there are half a million nodes, and tests ask often."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.docs.pages import ROOT

WITHOUT_TEXTS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


@dataclass
class Scope:
    """A function or a module: what is in it and in no function of its own.

    Args:
        node: the function or the module.
        calls: the calls in it.
        assignments: where names get values in it.
        returned: what it returns, and what functions in it do.
    """

    node: ast.FunctionDef | ast.Module
    calls: list[ast.Call] = field(default_factory=list)
    assignments: list[ast.Assign | ast.AnnAssign | ast.AugAssign] = field(default_factory=list)
    returned: list[ast.expr] = field(default_factory=list)


@functools.cache
def sources() -> dict[str, str]:
    """Return all that is shipped: file to its text."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("spark_streams", "sources", "sinks")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


@functools.cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a file."""
    return ast.parse(source)


@functools.cache
def scopes(source: str) -> list[Scope]:
    """Return the module, which is the first one, and the functions of a file."""
    found: list[Scope] = []

    def look(node: ast.AST, around: tuple[Scope, ...]) -> None:
        scope = around[-1]
        for child in children(node):
            if isinstance(child, ast.FunctionDef):
                found.append(Scope(child))
                look(child, (*around, found[-1]))
                continue
            if isinstance(child, ast.Call):
                scope.calls.append(child)
            elif isinstance(child, ast.Assign | ast.AnnAssign | ast.AugAssign):
                scope.assignments.append(child)
            elif isinstance(child, ast.Return) and child.value is not None:
                for each in around:
                    each.returned.append(child.value)
            look(child, around)

    found.append(Scope(parsed(source)))
    look(found[0].node, (found[0],))
    return found


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node is made of and can have a text in it."""
    for name in node._fields:
        value = getattr(node, name, None)
        if type(value) is list:
            yield from (each for each in value if isinstance(each, ast.AST) and not isinstance(each, WITHOUT_TEXTS))
        elif isinstance(value, ast.AST) and not isinstance(value, WITHOUT_TEXTS):
            yield value


def called_name(call: ast.Call) -> str:
    """Return the last name of what is called: ``refuse`` for ``given.refuse(…)``; none for a call's result."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def names_in(node: ast.AST) -> set[str]:
    """Return the variables and functions that an expression names."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def literals_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts in a node, one for each that is written in one piece; what is filled in is an ellipsis.

    A text that stands alone, as documentation does, is none.
    """
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value
    elif not is_documentation(node):
        for child in children(node):
            yield from literals_in(child)


def texts_in(node: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    """Yield the texts in a node that do not stand alone, and are in no other one."""
    if isinstance(node, ast.JoinedStr | ast.Constant):
        yield node
    elif not is_documentation(node):
        for child in children(node):
            yield from texts_in(child)


def pieces_of(text: ast.JoinedStr | ast.Constant) -> Iterator[str]:
    """Yield a text, and those that are filled into it."""
    yield from literals_in(text)
    if isinstance(text, ast.JoinedStr):
        for part in text.values:
            if isinstance(part, ast.FormattedValue):
                yield from literals_in(part.value)


def is_documentation(node: ast.AST) -> bool:
    """Whether it is a text that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
