"""A tree as the text that it is parsed from, and as lines that show its shape; the words of the language for both ways.

The words are keywords, references, and what may be written as a bare property name.
"""

from __future__ import annotations

import re
from typing import Any, Final

from spark_streams.filters.tree import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
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

WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
"""A name that needs no delimiters: ASCII letters, digits and ``_``, no digit first; dots join such names."""

KEYWORDS: Final = frozenset(
    {"ALL", "AND", "ANY", "BETWEEN", "CONTAINS", "FALSE", "IN", "IS", "LIKE", "NONE", "NOT", "NULL", "OR", "TRUE"}
)
"""Written in any case; a property that is called like one is written ``[any]``."""

REFERENCES: Final = {
    "event_time": EVENT_TIME,
    "publish_time": PUBLISH_TIME,
    "key": KEY,
    "partition": PARTITION,
    "offset": OFFSET,
    "body_size": BODY_SIZE,
}
"""What bare words mean that are no property."""

ANNOTATION_SECTIONS: Final = frozenset({"d", "delivery_annotations"})
ANNOTATIONS: Final[dict[str, Reference]] = {
    OFFSET_KEY: OFFSET,
    TIMESTAMP_KEY: PUBLISH_TIME,
}
"""The delivery annotations that mean a reference, as users of AMQP event stream filters know them."""

_SECTIONS: Final = frozenset({"properties", "application_properties", "message_annotations"})
_FOLDED: Final = {word.replace("_", ""): word for word in REFERENCES}


def is_bare_property(name: str) -> bool:
    """Say whether a name means the property of that name when it stands without delimiters."""
    first, dot, _ = name.partition(".")
    if not WORD.fullmatch(name) or first.upper() in KEYWORDS or meant(name) is not None:
        return False
    return not dot or first not in ANNOTATION_SECTIONS


def meant(word: str) -> str | None:
    """Return what a bare word is, or was probably meant to be, that is not a property of its own name.

    ``PublishTime`` and ``Properties.subject`` name no property by accident: who writes them bare is told so.

    Returns:
        The reference, or the name with its section as it should be written; None for a property.
    """
    first, dot, rest = word.partition(".")
    if dot:
        return f"{first.lower()}.{rest}" if first.lower() in _SECTIONS and first not in _SECTIONS else None
    return _FOLDED.get(word.replace("_", "").lower())


SIGNS: Final = {
    Operator.EQUALS: "=",
    Operator.NOT_EQUALS: "<>",
    Operator.GREATER_THAN: ">",
    Operator.GREATER_THAN_EQUALS: ">=",
    Operator.LESS_THAN: "<",
    Operator.LESS_THAN_EQUALS: "<=",
}
"""The comparisons as they are written."""

_LISTS: Final = {
    Operator.IN: "IN",
    Operator.NOT_IN: "NOT IN",
    Operator.CONTAINS_ALL: "CONTAINS ALL",
    Operator.CONTAINS_ANY: "CONTAINS ANY",
    Operator.CONTAINS_NONE: "CONTAINS NONE",
}
_PATTERNS: Final = {Operator.LIKE: "LIKE", Operator.NOT_LIKE: "NOT LIKE"}
_CONTROLS: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
_SHORT: Final = 200


def to_text(expression: Expression) -> str:
    """Return the text of a tree, in one line: ``parse`` gives the same tree back.

    Args:
        expression: of any depth; one that ``check`` refuses is written too, but may not be read back.
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
                # AND binds tighter than OR; one within its own kind is no sound tree, but is shown as it is.
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
    """Return a tree in lines, one a node, each below the node that it belongs to; no newline at the end.

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


def shorten(text: str) -> str:
    """Return the beginning of a text, for a message."""
    return text if len(text) <= _SHORT else text[:_SHORT] + "…"


def _predicate(predicate: Any) -> str:
    if not isinstance(predicate, Predicate):  # what ``check`` is about to refuse
        return repr(predicate)
    reference, operator = _reference(predicate.reference), predicate.operator
    values = [_literal(value) for value in predicate.values]
    if operator is Operator.IS_NULL:
        return f"{reference} IS NULL"
    if operator is Operator.IS_NOT_NULL:
        return f"{reference} IS NOT NULL"
    if operator in _LISTS:
        return f"{reference} {_LISTS[operator]} ({', '.join(values)})"
    if operator is Operator.BETWEEN:
        return f"{reference} BETWEEN {' AND '.join(values)}"
    return f"{reference} {SIGNS.get(operator) or _PATTERNS[operator]} {', '.join(values)}"


def _reference(reference: Reference) -> str:
    if reference.kind is not ReferenceKind.PROPERTY:
        return reference.kind.name.lower()
    name = str(reference.name)
    return name if is_bare_property(name) else f"[{name.replace(']', ']]')}]"


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    # Python refuses to write very long integers; ``check`` is about to refuse them, too.
    return repr(value) if not isinstance(value, int) or value.bit_length() <= 64 else hex(value)
