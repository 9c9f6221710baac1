"""A filter's tree as text that parses to the same tree, and as lines that show its shape; the language's words.

The words are the keywords, the references, and the names that may be written as a bare property.
"""

from __future__ import annotations

import re
from typing import Any, Final

from spark_streams.filters.tree import (
    COMPARISONS,
    LISTS,
    OFFSET,
    PUBLISH_TIME,
    SECTIONS,
    And,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    ReferenceKind,
    Value,
)
from spark_streams.wire.amqp.event_streams import OFFSET_KEY, TIMESTAMP_KEY

DOTTED_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
"""A name that needs no delimiters: ASCII letters, digits and ``_``, no digit first; dots join such names."""

KEYWORDS: Final = frozenset(
    {"ALL", "AND", "ANY", "BETWEEN", "CONTAINS", "FALSE", "IN", "IS", "LIKE", "NONE", "NOT", "NULL", "OR", "TRUE"}
)
"""Keywords are written in any case; a property whose name is a keyword is written ``[any]``."""

REFERENCES: Final = {kind.name.lower(): Reference(kind) for kind in ReferenceKind if kind is not ReferenceKind.PROPERTY}
"""Bare words that are no property, and the reference that each means."""

ANNOTATION_SECTIONS: Final = frozenset({"d", "delivery_annotations"})
ANNOTATIONS: Final[dict[str, Reference]] = {OFFSET_KEY: OFFSET, TIMESTAMP_KEY: PUBLISH_TIME}
"""The delivery annotations that mean a reference, as users of AMQP event stream filters know them."""

_FOLDED: Final = {word.replace("_", ""): word for word in REFERENCES}


def is_bare_property(name: str) -> bool:
    """Return whether a name without delimiters means the property of that name."""
    first, dot, _ = name.partition(".")
    if not DOTTED_NAME.fullmatch(name) or first.upper() in KEYWORDS or meant(name) is not None:
        return False
    return not dot or first not in ANNOTATION_SECTIONS


def meant(word: str) -> str | None:
    """Return the reference or property that a bare word means, or was probably meant to be; None for a property.

    ``PublishTime`` and ``Properties.subject`` are unlikely names of properties; users who write them bare get an error.

    Returns:
        The reference, or the name with its section in the right spelling; None for a property of the word's own name.
    """
    first, dot, rest = word.partition(".")
    if dot:
        return f"{first.lower()}.{rest}" if first.lower() in SECTIONS and first not in SECTIONS else None
    return _FOLDED.get(word.replace("_", "").lower())


_CONTROLS: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
_SHORT: Final = 200


def to_text(expression: Expression) -> str:
    """Return the text of a tree, in one line; ``parse`` returns the same tree from it.

    Args:
        expression: of any depth; one that ``check`` refuses has a text too, but ``parse`` may refuse that.
    """
    written: list[str] = []
    waiting: list[Expression | str] = [expression]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            written.append(node)
        elif isinstance(node, (And, Or)):
            joined: list[Expression | str] = []
            for part in node.parts:
                joined.append(" AND " if isinstance(node, And) else " OR ")
                # AND binds tighter than OR. A join within its own kind is no sound tree, but is shown as it is.
                bare = isinstance(part, (Predicate, Not)) or (isinstance(node, Or) and isinstance(part, And))
                joined.extend((part,) if bare else ("(", part, ")"))
            waiting.extend(reversed(joined[1:]))
        elif isinstance(node, Not):
            bare = isinstance(node.operand, (Predicate, Not))
            waiting.extend((node.operand, "NOT ") if bare else (")", node.operand, "NOT ("))
        else:
            written.append(_predicate(node))
    return "".join(written)


def to_tree(expression: Expression) -> str:
    """Return a tree as lines: one line for each node, below its parent's; no newline at the end.

    ::

        AND
        ├ type = 'order'
        └ NOT
          └ subject LIKE 'eu-%'
    """
    lines: list[str] = []
    waiting: list[tuple[Expression, str, str]] = [(expression, "", "")]
    while waiting:
        node, before, below = waiting.pop()
        if isinstance(node, Predicate):
            lines.append(before + _predicate(node).translate(_CONTROLS))
            continue
        parts = (node.operand,) if isinstance(node, Not) else node.parts
        lines.append(before + type(node).__name__.upper())
        last = len(parts) - 1
        children = [
            (part, below + ("└ " if number == last else "├ "), below + ("  " if number == last else "│ "))
            for number, part in enumerate(parts)
        ]
        waiting.extend(reversed(children))
    return "\n".join(lines)


def shorten(text: str, most: int = _SHORT) -> str:
    """Return the beginning of a text, for an error message."""
    return text if len(text) <= most else text[:most] + "…"


def _predicate(predicate: Any) -> str:
    if not isinstance(predicate, Predicate):  # ``check`` is about to refuse it
        return repr(predicate)
    operator = predicate.operator
    word = COMPARISONS[operator].sign if operator in COMPARISONS else operator.name.replace("_", " ")
    test = f"{_reference(predicate.reference)} {word}"
    if operator in (Operator.IS_NULL, Operator.IS_NOT_NULL):
        return test
    values = (" AND " if operator is Operator.BETWEEN else ", ").join(map(_literal, predicate.values))
    return f"{test} ({values})" if operator in LISTS else f"{test} {values}"


def _reference(reference: Reference) -> str:
    if reference.kind is not ReferenceKind.PROPERTY:
        return reference.kind.name.lower()
    name = str(reference.name)
    return name if is_bare_property(name) else f"[{name.replace(']', ']]')}]"


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    # Python raises for the text of very long integers; ``check`` is about to refuse them, too.
    return repr(value) if not isinstance(value, int) or value.bit_length() <= 64 else hex(value)
