"""The operators on texts: what LIKE matches, and the members that CONTAINS compares.

In LIKE ``%`` is any run of characters, ``_`` one code point, any other character itself; there is no escape (E-11). The
matcher finds the parts between the ``%`` one after the other, each at its first possible place, and never goes back,
so no pattern takes more time than its length times the text's.

For CONTAINS, a text that is a JSON array has the array's members; any other text has itself as its only member (E-15).
A member compares as a property does: a string as it is, a number by its digits as written, ``true`` and ``false`` as
these words, an object or array as its JSON without spaces; null is NULL, whose comparison is unknown.

Spec: docs/specifications.md, E-11, E-15; RFC 8259.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from spark_streams.wire.feed.strict_json import dump_exact, load_exact

WILDCARDS: Final[dict[str, str | None]] = {"%": "", "_": None}
"""The wildcards of a pattern, as parts of ``like_pattern``."""


def like(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns whether a whole text matches ``pattern``."""
    first, *rest = pattern.split("%")
    head = _part(first)
    if not rest:
        return lambda text: len(text) == len(pattern) and head.match(text) is not None
    *middle, last = rest
    parts = [_part(part) for part in middle if part]
    tail = _part(last)
    shortest = len(pattern) - pattern.count("%")

    def matches(text: str) -> bool:
        if len(text) < shortest or head.match(text) is None:
            return False
        end = len(text) - len(last)
        at = len(first)
        for part in parts:
            found = part.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return at <= end and tail.match(text, end) is not None

    return matches


@dataclass(frozen=True)
class LikePattern:
    """A pattern of LIKE as Arrow tests it; the usual forms of patterns need no regular expression.

    Args:
        test: Arrow's function: ``equal``, ``starts_with``, ``ends_with``, ``match_substring`` or
            ``match_substring_regex``.
        text: the literal text; for ``match_substring_regex`` an expression of RE2 that matches the whole text.
    """

    test: Callable[[Any, str], Any]
    text: str


def like_pattern(parts: Iterable[str | None]) -> LikePattern:
    """Return a pattern with its simplest test.

    Args:
        parts: the pattern's literal characters, ``""`` for ``%`` and None for ``_``.
    """
    parts = list(parts)
    last = len(parts) - 1
    runs = tuple(index for index, part in enumerate(parts) if part == "")
    tests = {(): pc.equal, (0,): pc.ends_with, (last,): pc.starts_with, (0, last): pc.match_substring}
    if runs in tests and None not in parts:
        return LikePattern(tests[runs], "".join(part for part in parts if part))
    inner = "".join("." if part is None else ".*" if part == "" else re.escape(part) for part in parts)
    return LikePattern(pc.match_substring_regex, rf"(?s)\A{inner}\z")


def _part(text: str) -> re.Pattern[str]:
    """Return a regular expression for a text between two ``%``; its matches have one length, so it never backtracks."""
    return re.compile(".".join(map(re.escape, text.split("_"))), re.DOTALL)


_BLANKS: Final = " \t\n\r"


def members(text: str) -> list[str | None]:
    """Return the members of a property's value; the value itself if it is no JSON array."""
    if not text.lstrip(_BLANKS).startswith("["):
        return [text]
    try:
        return [_text(member) for member in load_exact(text)]
    except (ValueError, RecursionError):
        return [text]


def _text(member: Any) -> str | None:
    if member is None or isinstance(member, str):
        return None if member is None else str(member)
    return dump_exact(member, ensure_ascii=False)
