"""The scanner of full SQL filters: it reads the keywords, signs, fields and constants of a text.

::

    text     = 'it''s' | "so"            the quote is doubled within
    integer  = digits
    decimal  = digits "." [digits] [exponent] | "." digits [exponent] | digits exponent
    binary   = "0x" pairs of hexadecimal digits, one pair or more
    field    = [section "."] (name | "[" any text "]")      "[" and "]" are doubled within
    section  = h | header | p | properties | a | application_properties | m | message_annotations |
               d | delivery_annotations              "-" may stand for "_"
    name     = a letter, then letters, digits and "_"; after d. "-" too (A-3)

Keywords are written in upper or lower case, names and sections as they are. Each method that reads skips the blanks
that follow, so ``at`` is on the beginning of the next word.

Spec: AMQP Filter Expressions 1.0 §6; RabbitMQ 4.2's dialect is a part of it.
"""

from __future__ import annotations

import math
import re
from typing import Final

from spark_streams.filters.limits import is_unicode
from spark_streams.filters.predicates.typed_values import Constant
from spark_streams.filters.sql_scanner import HYPHENED, WORD, SqlScanner
from spark_streams.wire.amqp.columns.typed import FieldOfMessage
from spark_streams.wire.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)

_NUMBER: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBERS_SIGN: Final = re.compile(r"[+-][ \t\r\n\f\v]*(?=\.?[0-9])(?!0[xX])")
_BINARY: Final = re.compile(r"0x(?:[0-9A-Fa-f]{2})+")
_WITHIN_BRACKETS: Final = re.compile(r"(?:[^\[\]]+|\[\[|\]\])*")
_SECTION: Final = re.compile(r"([A-Za-z][A-Za-z_-]*)\.")
SECTIONS: Final = {
    **dict.fromkeys(("h", "header"), HEADER),
    **dict.fromkeys(("p", "properties"), PROPERTIES),
    **dict.fromkeys(("a", "application_properties"), APPLICATION_PROPERTIES),
    **dict.fromkeys(("m", "message_annotations"), MESSAGE_ANNOTATIONS),
    **dict.fromkeys(("d", "delivery_annotations"), DELIVERY_ANNOTATIONS),
}
"""The section that each name of one means."""
_KEYWORDS: Final = frozenset(
    {*("AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"), *("BETWEEN", "EXISTS", "NAN", "INF")}
)
_MOST_DIGITS: Final = 20


class AmqpSqlScanner(SqlScanner):
    """One pass over a full SQL filter."""

    def next_keyword(self) -> str:
        """Return the next word in upper case, without reading it, if it is a keyword; else an empty text."""
        word = self.word()
        in_section = self.text.startswith(".", self.at + len(word))
        return "" if in_section or word.upper() not in _KEYWORDS else word.upper()

    def keyword(self, keyword: str) -> bool:
        """Read a keyword and the blanks after it, if it is the next word and no section of a field."""
        return not self.text.startswith(".", self.at + len(keyword)) and super().keyword(keyword)

    def field(self) -> FieldOfMessage | None:
        """Read a field, if one is next."""
        start, section = self.at, APPLICATION_PROPERTIES
        before = _SECTION.match(self.text, start)
        if before is not None:
            known = SECTIONS.get(before[1].replace("-", "_"))
            if known is None:
                self.fail(f"'{before[1]}' is no section: expected h, p, a, m or d; write [a.b] for such a name")
            section = known
            self.at = before.end()
        elif self.next() != "[" and (self.next_keyword() or not self.word()):
            return None
        if self.next() == "[":
            name = self._delimited()
        else:
            name = self.read(HYPHENED if section == DELIVERY_ANNOTATIONS else WORD)
            if not name:
                self.fail("expected a name, or [any text]")
        if self.next() in (".", "["):
            self.fail("parts of a field cannot be filtered on; write [a.b] for a name with a dot")
        self.skip_blanks()
        if before is None and self.next() == "(":
            self.fail("functions are not supported", start)
        return FieldOfMessage(section, name)

    def literal(self) -> str | None:
        """Read a text in quotes, if one is next."""
        start, quote = self.at, self.next()
        if quote not in ("'", '"'):
            return None
        text = self.quoted(quote)
        if not is_unicode(text):
            self.fail("the text holds half of a surrogate pair", start)
        self.skip_blanks()
        return text

    def constant(self) -> Constant | None:
        """Read a text, a number, a binary constant, TRUE or FALSE, if one is next."""
        constant, start = None, self.at
        text = self.literal()
        if text is not None:
            return Constant("text", text)
        if self.next_keyword() in ("TRUE", "FALSE"):
            constant = Constant("boolean", self.read(WORD).upper() == "TRUE")
        elif self.text.startswith(("0x", "0X"), start):
            constant = Constant("text", self._binary())
        elif _NUMBERS_SIGN.match(self.text, start) or _NUMBER.match(self.text, start):
            sign = -1 if self.read(_NUMBERS_SIGN).startswith("-") else 1
            constant = Constant("number", sign * self._number())
        self.skip_blanks()
        return constant

    def _number(self) -> int | float:
        start = self.at
        digits = self.read(_NUMBER)
        self.end_number("expected the number to end here")
        if digits.isdigit():
            # Count the digits first: int() of a hostile text would take long, or fail.
            significant = digits.lstrip("0") or "0"
            if len(significant) > _MOST_DIGITS or int(significant) >= 2**64:
                self.fail("the integer does not fit into 64 bits", start)
            return int(significant)
        number = float(digits)
        if not math.isfinite(number):
            self.fail("the number does not fit a double", start)
        return number

    def _binary(self) -> bytes:
        start = self.at
        found = self.read(_BINARY)
        if not found or self.next().isalnum():
            self.fail("a binary constant is 0x and pairs of hexadecimal digits", start)
        return bytes.fromhex(found[2:])

    def _delimited(self) -> str:
        """Read a name in brackets; both brackets are doubled within."""
        opening = self.at
        self.at += 1
        name = self.read(_WITHIN_BRACKETS)
        if self.next() == "[":
            self.fail("'[' is doubled within a name")
        if not self.next():
            self.fail("the name is not closed: expected ]", opening)
        self.at += 1
        return name.replace("[[", "[").replace("]]", "]")
