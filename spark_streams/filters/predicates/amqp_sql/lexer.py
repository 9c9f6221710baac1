"""The lexer of full SQL filters: it returns the tokens of a text, each with its column.

::

    text     = 'it''s' | "so"            the quote is doubled within
    integer  = digits
    decimal  = digits "." [digits] [exponent] | "." digits [exponent] | digits exponent
    binary   = "0x" pairs of hexadecimal digits, one pair or more
    field    = [section "."] (name | "[" any text "]")      "[" and "]" are doubled within
    section  = h | header | p | properties | a | application_properties | m | message_annotations |
               d | delivery_annotations              "-" may stand for "_"
    name     = a letter, then letters, digits and "_"; after d. "-" too (A-3)

Keywords are written in upper or lower case, names and sections as they are.

Spec: AMQP Filter Expressions 1.0 §6; RabbitMQ 4.2's dialect is a part of it.
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import Final

from spark_streams.filters.sql_scanner import HYPHENED, WORD, SqlScanner

MAX_CHARACTERS: Final = 16_384
"""The most characters of a filter: every event evaluates it, so it needs a bound. RabbitMQ takes 4096."""

_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BINARY: Final = re.compile(r"0x(?:[0-9A-Fa-f]{2})+")
_SECTION: Final = re.compile(r"([A-Za-z][A-Za-z_-]*)\.")
_SIGN: Final = re.compile(r"<>|!=|>=|<=|[=<>(),+*/%-]")
_SECTIONS: Final = {
    "h": "h",
    "header": "h",
    "p": "p",
    "properties": "p",
    "a": "a",
    "application_properties": "a",
    "m": "m",
    "message_annotations": "m",
    "d": "d",
    "delivery_annotations": "d",
}
_KEYWORDS: Final = frozenset(
    {
        *("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"),
        *("BETWEEN", "EXISTS", "NAN", "INF"),
    }
)
_MOST_DIGITS: Final = 20


class Kind(enum.Enum):
    """The kinds of tokens."""

    TEXT = "text"
    BINARY = "binary"
    NUMBER = "number"
    FIELD = "field"
    WORD = "keyword"
    SIGN = "sign"
    END = "end"


@dataclass(frozen=True)
class Token:
    """One word of a filter.

    Args:
        kind: its kind.
        column: the 1-based column of its first character.
        word: a keyword in upper case, a sign, a field's name, or a text.
        section: the section of a field: h, p, a, m or d.
        number: the value of a number: an int, or a finite float for decimals.
        content: the bytes of a binary constant.
    """

    kind: Kind
    column: int
    word: str = ""
    section: str = ""
    number: int | float = 0
    content: bytes = b""


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a filter, the last of kind END.

    Raises:
        FilterError: a character begins no token; the error has its column.
    """
    return _Lexer(text).tokens()


class _Lexer(SqlScanner):
    def tokens(self) -> list[Token]:
        if len(self.text) > MAX_CHARACTERS:
            reason = f"the filter has {len(self.text)} characters: expected at most {MAX_CHARACTERS}"
            self.fail(reason, MAX_CHARACTERS)
        found: list[Token] = []
        self.skip_blanks()
        while self.next():
            found.append(self._token())
            self.skip_blanks()
        found.append(Token(Kind.END, self.at + 1))
        return found

    def _token(self) -> Token:
        column, start = self.at + 1, self.next()
        if start in ("'", '"'):
            return Token(Kind.TEXT, column, self.quoted(start))
        if start == "[":
            return self._field("a", column)
        digits = self.read(_NUMBER)
        if digits:
            return self._number(digits, column)
        section = _SECTION.match(self.text, self.at)
        if section is not None:
            known = _SECTIONS.get(section[1].replace("-", "_"))
            if known is None:
                self.fail(f"'{section[1]}' is no section: expected h, p, a, m or d; write [a.b] for such a name")
            self.at = section.end()
            return self._field(known, column)
        word = self.word()
        if word.upper() in _KEYWORDS:
            self.at += len(word)
            return Token(Kind.WORD, column, word.upper())
        if word:
            return self._field("a", column)
        sign = self.read(_SIGN)
        if not sign:
            self.fail(f"{start!r} cannot stand here")
        return Token(Kind.SIGN, column, sign)

    def _field(self, section: str, column: int) -> Token:
        at = self.at
        if self.next() == "[":
            name = self._delimited()
        else:
            name = self.read(HYPHENED if section == "d" else WORD)
            if not name:
                self.fail("expected a name, or [any text]")
        if self.next() in (".", "["):
            self.fail("parts of a field cannot be filtered on; write [a.b] for a name with a dot")
        if section == "a" and column == at + 1:
            self.skip_blanks()
            if self.next() == "(":
                self.fail("functions are not supported", at)
        return Token(Kind.FIELD, column, name, section)

    def _number(self, digits: str, column: int) -> Token:
        start = column - 1
        if digits == "0" and self.next() in ("x", "X"):
            self.at = start
            return self._binary(column)
        self.end_number("expected the number to end here")
        if digits.isdigit():
            # Count the digits first: int() of a hostile text would take long, or fail.
            significant = digits.lstrip("0") or "0"
            if len(significant) > _MOST_DIGITS or int(significant) >= 2**64:
                self.fail("the integer does not fit into 64 bits", start)
            return Token(Kind.NUMBER, column, digits, number=int(significant))
        number = float(digits)
        if not math.isfinite(number):
            self.fail("the number does not fit a double", start)
        return Token(Kind.NUMBER, column, digits, number=number)

    def _binary(self, column: int) -> Token:
        found = self.read(_BINARY)
        if not found or self.next().isalnum():
            self.fail("a binary constant is 0x and pairs of hexadecimal digits", column - 1)
        return Token(Kind.BINARY, column, found, content=bytes.fromhex(found[2:]))

    def _delimited(self) -> str:
        """Read a name in brackets; both brackets are doubled within."""
        name: list[str] = []
        opening = self.at
        self.at += 1
        while character := self.next():
            self.at += 1
            if character in "[]":
                if self.next() == character:
                    self.at += 1
                elif character == "]":
                    return "".join(name)
                else:
                    self.fail("'[' is doubled within a name", self.at - 1)
            name.append(character)
        self.fail("the name is not closed: expected ]", opening)
