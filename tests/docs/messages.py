"""The messages of the code: what its errors are made with, by the syntax tree of each file.

Words that reach an error as a value from elsewhere, such as the reasons in a table of refused options, cannot be told
from other texts by this: tests/docs/sentences.py has all of them, and tests/docs/test_each_sentence.py their places.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.docs.pages import ERRORS
from tests.docs.syntax import Scope, called_name, literals_in, names_in, parsed, scopes, sources

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


@functools.cache
def makers_of(source: str) -> dict[str, str]:
    """Return the functions of a file that return or raise an error of ours of what they are called with, to the error.

    Their annotation says so: it names the error, or they never return.
    """
    found: dict[str, str] = {}
    for scope in scopes(source):
        if isinstance(scope.node, ast.FunctionDef) and scope.node.returns is not None:
            names = names_in(scope.node.returns)
            if "NoReturn" in names:
                names |= {name for call in scope.calls for name in names_in(call.func)}
            if names & ERRORS:
                found[scope.node.name] = min(names & ERRORS)
    return found


def messages_of(file: str, source: str, makers: Mapping[str, str] = MAKERS) -> Iterator[Message]:
    """Yield the messages of a file: words in the call that makes the error, or else what its arguments are made of.

    These are names that the function, or the file, gives a text to, and functions of the file that return one.
    """
    makers = {**makers, **makers_of(source)}
    there = scopes(source)
    for scope in there:
        for call in scope.calls:
            called = called_name(call)
            error = called if called in ERRORS else makers.get(called)
            if error is not None:
                for text in _said_by(call, scope, there):
                    yield Message(file, call.lineno, error, text)
    if file in WHOLE:
        yield Message(file, 1, WHOLE[file], "\n".join(literals_in(parsed(source))))


def _said_by(call: ast.Call, scope: Scope, there: list[Scope]) -> list[str]:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    own = [text for argument in arguments for text in literals_in(argument)]
    if is_said(own):
        return ["\n".join(own)]
    stands_for = {**_given_by(there[0]), **_returned_by(there), **_given_by(scope)}
    names = {name for argument in arguments for name in names_in(argument)}
    while more := {part for name in names if name in stands_for for part in stands_for[name].parts} - names:
        names = names | more
    texts = {text for name in names if name in stands_for for text in stands_for[name].texts}
    return sorted(text for text in texts if is_said([text], words=4))


@functools.cache
def messages() -> list[Message]:
    """Return the messages of all that is shipped."""
    public = {name: error for text in sources().values() for name, error in makers_of(text).items()}
    makers = {**{name: error for name, error in public.items() if not name.startswith("_")}, **MAKERS}
    return [message for file, text in sources().items() for message in messages_of(file, text, makers)]


def is_said(texts: list[str], words: int = 3) -> bool:
    """Whether there is a sentence among texts, of so many words, and not only names."""
    return any(" " in text and len(re.findall(r"[a-zA-Z]{2,}", text)) >= words for text in texts)


def _given_by(scope: Scope) -> dict[str, _Value]:
    """Return what the names stand for that a function or a module assigns to."""
    pairs = (
        (name, each.value)
        for each in scope.assignments
        if each.value is not None
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        for name in names_in(target)
    )
    return _values(pairs)


def _returned_by(there: list[Scope]) -> dict[str, _Value]:
    """Return what the functions of a file stand for: what they return."""
    return _values(
        (scope.node.name, value)
        for scope in there
        if isinstance(scope.node, ast.FunctionDef)
        for value in scope.returned
    )


def _values(pairs: Iterable[tuple[str, ast.AST]]) -> dict[str, _Value]:
    found: dict[str, _Value] = {}
    for name, value in pairs:
        known = found.setdefault(name, _Value([], set()))
        known.texts.extend(literals_in(value))
        known.parts.update(names_in(value))
    return found
