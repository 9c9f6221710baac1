"""The scanner of SQL texts: it reads blanks, words, signs, quoted texts and ends of numbers, and reports faults.

The three dialects extend it: the filter language (``scanner.py``), the full SQL filter of AMQP
(``predicates/amqp_sql/scanner.py``) and the SQL subset of event streams (``predicates/event_streams.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from spark_streams.errors import FilterError
from spark_streams.filters.tree import COMPARISONS, Operator

Part = TypeVar("Part")

HYPHENED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
"""A name that may contain hyphens, as names of annotations do (A-3)."""
_BLANK: Final = re.compile(r"[ \t\r\n\f\v]*")
WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMPARISON: Final = re.compile(r"<>|!=|>=|<=|=|>|<")
_BY_SIGN: Final = {**{each.sign: operator for operator, each in COMPARISONS.items()}, "!=": Operator.NOT_EQUALS}


class SqlScanner:
    """One pass over a text; each method that reads leaves ``at`` after what it read.

    ``keyword``, ``sign`` and ``comparison`` skip the blanks that follow, too.

    Args:
        text: the filter.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip_blanks(self) -> None:
        """Skip blanks."""
        blanks = _BLANK.match(self.text, self.at)  # without read(): a fifth of what a parser does
        if blanks is not None:
            self.at = blanks.end()

    def next(self) -> str:
        """Return the next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def read(self, pattern: re.Pattern[str]) -> str:
        """Read the match of a pattern at ``at``; empty if there is none."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]

    def word(self) -> str:
        """Return the next word without reading it; empty if none is next."""
        word = WORD.match(self.text, self.at)
        return word[0] if word else ""

    def keyword(self, keyword: str) -> bool:
        """Read a keyword and the blanks after it, if it is the next word."""
        if self.text[self.at : self.at + 1].upper() != keyword[0]:  # mostly so, and cheaper than to find the word
            return False
        if self.word().upper() != keyword:
            return False
        self.at += len(keyword)
        self.skip_blanks()
        return True

    def sign(self, sign: str) -> bool:
        """Read a sign of one character and the blanks after it, if it is next."""
        if self.next() != sign:
            return False
        self.at += 1
        self.skip_blanks()
        return True

    def comparison(self) -> Operator | None:
        """Read the sign of a comparison and the blanks after it, if one is next."""
        found = _BY_SIGN.get(self.read(_COMPARISON))
        self.skip_blanks()
        return found

    def joined(self, keyword: str, read: Callable[[], Part]) -> list[Part]:
        """Read one or more parts that a keyword joins."""
        parts = [read()]
        while self.keyword(keyword):
            parts.append(read())
        return parts

    def quoted(self, close: str, what: str = "text") -> str:
        """Read up to ``close``, which is doubled within the text; ``at`` is on the opening character.

        Raises:
            FilterError: ``close`` is missing; the message names ``what`` is not closed, at the opening character.
        """
        opening, parts = self.at, []
        self.at += 1
        while True:
            end = self.text.find(close, self.at)
            if end < 0:
                self.fail(f"the {what} is not closed: expected {close}", opening)
            parts.append(self.text[self.at : end])
            self.at = end + 1
            if not self.text.startswith(close, self.at):
                return close.join(parts)
            self.at += 1

    def end_number(self, reason: str) -> None:
        """Raise a FilterError with ``reason`` if the next character cannot follow the number that was just read."""
        if self.next() in (".", "_") or self.next().isalnum():
            self.fail(reason)

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        """Raise a FilterError about the character at ``at``, the next one if that is None."""
        raise FilterError(self.text, (self.at if at is None else at) + 1, reason)
