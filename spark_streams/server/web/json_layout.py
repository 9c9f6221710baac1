"""Lays out JSON on lines, without reading it into values: numbers keep their digits, members their order, all of them.

The beginning of a long document can be laid out too. Hostile documents stay small: what is nested deeper than
``MOST_LEVELS`` stays on one line.
"""

from __future__ import annotations

import re
from typing import Final

from spark_streams.wire.feed.strict_json import load_exact

MOST_LEVELS: Final = 12
_INDENT: Final = "  "
_TOKEN: Final = re.compile(
    r'[ \t\r\n]*("(?:[^"\\\x00-\x1f]|\\.)*"|[{}\[\],:]|-?[0-9][0-9.eE+-]*|true|false|null)[ \t\r\n]*'
)


def json_layout(text: str, *, cut: bool = False) -> str | None:
    """Return JSON on lines; None when the text is no JSON, or no object or array.

    Args:
        text: the document.
        cut: whether it is only the beginning of one: then its syntax is looked at roughly, and its end is shown as it
            is.
    """
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    if not cut:
        try:
            load_exact(text)
        except (ValueError, RecursionError):
            return None
    pieces: list[str] = []
    depth, at, opened = 0, 0, False
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            if not cut or not _unfinished(text[at:]):
                return None
            break
        token = found[1]
        if token in ("}", "]"):
            depth = max(0, depth - 1)
            if not opened:
                pieces.append(_line(depth))
        elif opened:
            pieces.append(_line(depth))
        pieces.append(": " if token == ":" else token)
        opened = token in ("{", "[")
        if opened:
            depth += 1
        elif token == ",":
            pieces.append(_line(depth) or " ")
        at = found.end()
    if opened:
        pieces.append(_line(depth))
    return "".join(pieces) + text[at:]


def _line(depth: int) -> str:
    return "\n" + _INDENT * depth if depth <= MOST_LEVELS else ""


def _unfinished(rest: str) -> bool:
    """Return whether a text may be the beginning of a token: a string without its end, or half of a word."""
    rest = rest.lstrip(" \t\r\n")
    return rest.startswith('"') or any(word.startswith(rest) for word in ("true", "false", "null", "-"))
