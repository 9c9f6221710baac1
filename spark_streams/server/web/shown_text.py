"""Prepares text of events for pages: invisible characters become visible, and JSON is laid out on lines.

A browser shows nothing for a NUL, and applies bidirectional controls: a text could then look like another one (Unicode
TR 36, "Trojan Source"). Templates escape markup; this module is about characters.

JSON is laid out without being read into values: numbers keep their digits, and all members stay, in their order. The
beginning of a long document can be laid out too. Hostile documents stay small: a value that is nested deeper than
``MOST_LEVELS`` stays on one line.
"""

from __future__ import annotations

import re
from typing import Final

from spark_streams.wire.feed.strict_json import load_exact

CUT: Final = "…"
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Controls except tab and newline, format characters, line separators, surrogates, and letters without ink; the two
joiners stay, because scripts and emoji need them."""
_ON_ONE_LINE: Final = str.maketrans({"\n": "\u21b5", "\t": "\u21e5"})
"""Newline and tab to the arrows that keyboards have for them."""
MOST_LEVELS: Final = 12
_INDENT: Final = "  "
_TOKEN: Final = re.compile(
    r'[ \t\r\n]*("(?:[^"\\\x00-\x1f]|\\.)*"|[{}\[\],:]|-?[0-9][0-9.eE+-]*|true|false|null)[ \t\r\n]*'
)


def visible(text: str) -> str:
    """Return a text with a sign for each character that would not be seen; tabs and newlines stay."""
    return _HIDDEN.sub(_sign, text)


def one_visible_line(text: str, most: int | None = None) -> str:
    """Return the beginning of a text on one line.

    Args:
        text: the text.
        most: characters to keep; None: all.
    """
    cut = most is not None and len(text) > most
    return visible(text[:most]).translate(_ON_ONE_LINE) + (CUT if cut else "")


def text_of(content: bytes, *, cut: bool = False) -> str | None:
    """Return the text that bytes encode; None when they are no text.

    Args:
        content: the bytes, UTF-8 if they are text.
        cut: whether more bytes follow: a character that is cut off at the end is left out.
    """
    for missing in range(4 if cut else 1):
        try:
            text = content[: len(content) - missing].decode()
        except UnicodeDecodeError:
            continue
        controls = sum(1 for each in text[:1_000] if each < " " and each not in "\t\n\r")
        return text if controls * 10 <= min(len(text), 1_000) else None
    return None


def _sign(found: re.Match[str]) -> str:
    """Return the code point in angle brackets: not every font has the pictures of controls."""
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}U+{ord(found[0]):04X}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"


def json_layout(text: str, *, cut: bool = False) -> str | None:
    """Return JSON on lines; None when the text is no JSON, or no object or array.

    Args:
        text: the document.
        cut: whether the text is only the beginning of a document: its syntax is then checked roughly, and its end is
            shown as it is.
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
