"""The words of a full SQL filter, each with its column.

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
from typing import Final, NoReturn

from spark_streams.errors import FilterError

__all__ = ["MAX_CHARACTERS", "Kind", "Token", "tokens_of"]

MAX_CHARACTERS: Final = 16_384
"""RabbitMQ takes 4096; a filter is evaluated for every event, so it must have some bound."""

_BLANK: Final = re.compile(r"[ \t\r\n\f\v]*")
_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BINARY: Final = re.compile(r"0x((?:[0-9A-Fa-f]{2})+)")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECTION: Final = re.compile(r"([A-Za-z][A-Za-z_-]*)\.")
_HYPHENED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SIGN: Final = re.compile(r"<>|!=|>=|<=|=|>|<|\(|\)|,|\+|-|\*|/|%")
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
    """What a token is."""

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
        kind: what it is.
        column: 1-based, of its first character.
        word: a keyword in upper case, a sign, a field's name, or a text.
        section: of a field: h, p, a, m or d.
        number: of a number: an int, or a finite float for decimals.
        content: of a binary constant.
        end: 0-based index after its last character.
    """

    kind: Kind
    column: int
    word: str = ""
    section: str = ""
    number: int | float = 0
    content: bytes = b""
    end: int = 0


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a filter, the last of kind END.

    Raises:
        FilterError: with the column of the first character that begins none.
    """
    return _Lexer(text).tokens()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text

    def tokens(self) -> list[Token]:
        if len(self.text) > MAX_CHARACTERS:
            reason = f"the filter has {len(self.text)} characters: expected at most {MAX_CHARACTERS}"
            raise FilterError(self.text, MAX_CHARACTERS + 1, reason)
        found: list[Token] = []
        at = self._past_blanks(0)
        while at < len(self.text):
            token = self._token(at)
            found.append(token)
            at = self._past_blanks(token.end)
        found.append(Token(Kind.END, at + 1))
        return found

    def _past_blanks(self, at: int) -> int:
        blank = _BLANK.match(self.text, at)
        assert blank is not None
        return blank.end()

    def _token(self, at: int) -> Token:
        start = self.text[at]
        if start in "'\"":
            word, end = self._quoted(at, start)
            return Token(Kind.TEXT, at + 1, word, end=end)
        if start == "[":
            return self._field(at, "a", at)
        if start in "0123456789." and (number := _NUMBER.match(self.text, at)) is not None:
            return self._number(at, number[0], number.end())
        section = _SECTION.match(self.text, at)
        if section is not None:
            known = _SECTIONS.get(section[1].replace("-", "_"))
            if known is None:
                self._fail(at, f"'{section[1]}' is no section: expected h, p, a, m or d; write [a.b] for such a name")
            return self._field(at, known, section.end())
        word_found = _WORD.match(self.text, at)
        if word_found is not None:
            upper = word_found[0].upper()
            if upper in _KEYWORDS:
                return Token(Kind.WORD, at + 1, upper, end=word_found.end())
            return self._field(at, "a", at)
        sign = _SIGN.match(self.text, at)
        if sign is None:
            self._fail(at, f"{start!r} cannot stand here")
        return Token(Kind.SIGN, at + 1, "<>" if sign[0] == "!=" else sign[0], end=sign.end())

    def _field(self, start: int, section: str, at: int) -> Token:
        if self.text.startswith("[", at):
            name, end = self._delimited(at)
        else:
            found = (_HYPHENED if section == "d" else _WORD).match(self.text, at)
            if found is None:
                self._fail(at, "expected a name, or [any text]")
            name, end = found[0], found.end()
        following = self.text[end : end + 1]
        if following in (".", "["):
            self._fail(end, "parts of a field cannot be filtered on; write [a.b] for a name with a dot")
        if section == "a" and start == at and self.text.startswith("(", self._past_blanks(end)):
            self._fail(start, "functions are not supported")
        return Token(Kind.FIELD, start + 1, name, section, end=end)

    def _number(self, at: int, digits: str, end: int) -> Token:
        following = self.text[end : end + 1]
        if digits == "0" and following in ("x", "X"):
            return self._binary(at)
        if following in ("_", ".") or following.isalnum():
            self._fail(end, "expected the number to end here")
        if digits.isdigit():
            # Digits are counted first: int() of a hostile text would take long, or fail.
            significant = digits.lstrip("0") or "0"
            if len(significant) > _MOST_DIGITS or int(significant) >= 2**64:
                self._fail(at, "the integer does not fit into 64 bits")
            return Token(Kind.NUMBER, at + 1, digits, number=int(significant), end=end)
        number = float(digits)
        if not math.isfinite(number):
            self._fail(at, "the number does not fit a double")
        return Token(Kind.NUMBER, at + 1, digits, number=number, end=end)

    def _binary(self, at: int) -> Token:
        found = _BINARY.match(self.text, at)
        if found is None or self.text[found.end() : found.end() + 1].isalnum():
            self._fail(at, "a binary constant is 0x and pairs of hexadecimal digits")
        return Token(Kind.BINARY, at + 1, found[0], content=bytes.fromhex(found[1]), end=found.end())

    def _quoted(self, opening: int, close: str) -> tuple[str, int]:
        parts, at = [], opening + 1
        while True:
            end = self.text.find(close, at)
            if end < 0:
                self._fail(opening, f"the text is not closed: expected {close}")
            parts.append(self.text[at:end])
            at = end + 1
            if not self.text.startswith(close, at):
                return close.join(parts), at
            at += 1

    def _delimited(self, opening: int) -> tuple[str, int]:
        name: list[str] = []
        at = opening + 1
        while at < len(self.text):
            character = self.text[at]
            if character in "[]" and self.text.startswith(character, at + 1):
                at += 1
            elif character == "]":
                return "".join(name), at + 1
            elif character == "[":
                self._fail(at, "'[' is doubled within a name")
            name.append(character)
            at += 1
        self._fail(opening, "the name is not closed: expected ]")

    def _fail(self, at: int, reason: str) -> NoReturn:
        raise FilterError(self.text, at + 1, reason)
