"""Values with several members: a text that is a JSON array has its members, any other text itself alone (E-15).

A member is compared as a property is: a string as it is, a number as its digits stand, ``true`` and ``false`` as such,
an object or array as its JSON without spaces; null is NULL, and whether it equals anything is unknown.

Spec: docs/specifications.md, E-15; RFC 8259.
"""

from __future__ import annotations

import json
from typing import Any, Final

__all__ = ["members"]

_BLANKS: Final = " \t\n\r"


class _Number(str):
    """A number as its text: neither its digits nor its size are Python's business."""

    __slots__ = ()


def members(text: str) -> list[str | None]:
    """Return the members of a property's value; the value itself where it is no JSON array."""
    if not text.lstrip(_BLANKS).startswith("["):
        return [text]
    try:
        found = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
        return [_text(member) for member in found]
    except (ValueError, RecursionError):
        return [text]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _text(member: Any) -> str | None:
    if member is None or isinstance(member, str):
        return None if member is None else str(member)
    return _dump(member)


def _dump(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dump(name)}:{_dump(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
