"""Makes text of events fit to be shown: what is invisible, or turns the text around it, becomes visible.

A browser shows a NUL as nothing, and obeys bidirectional controls: a text could then look like another one (Unicode
TR 36, "Trojan Source"). Templates escape markup; this is about characters.
"""

from __future__ import annotations

import re
from typing import Final

CUT: Final = "…"
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Controls but tab and newline, formats, separators of lines, surrogates, and letters without ink; the two joiners
stay, because scripts and emoji need them."""
_ON_ONE_LINE: Final = str.maketrans({"\n": "\u21b5", "\t": "\u21e5"})
"""The arrows that keyboards have for the two."""


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
    """Return bytes as the text that they are; None when they are none.

    Args:
        content: UTF-8, perhaps.
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
