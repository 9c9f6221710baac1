"""The scanner of the filter language: it reads names, literals and signs of a text, and reports faults.

Spec: docs/specifications.md, E-7 to E-17; the grammar is in ``text.py``.
"""

from __future__ import annotations

import re
from typing import Final

from spark_streams.filters import limits
from spark_streams.filters.decimals import NUMBER, read_double, read_long
from spark_streams.filters.describe import (
    ANNOTATION_SECTIONS,
    ANNOTATIONS,
    DOTTED_NAME,
    KEYWORDS,
    REFERENCES,
    meant,
    shorten,
)
from spark_streams.filters.sql_scanner import HYPHENED, SqlScanner
from spark_streams.filters.tree import Operator, Reference, Value, ValueType, property_of

_NAME_WITHOUT_DELIMITERS: Final = re.compile(r"""[^\s=<>!()\[\]'",]+""")
_COMPARISON: Final = re.compile("(<>|!=|>=|<=|=|>|<)([=<>!~])?")
"""A comparison, and one more sign where it is another language's, such as ``==``."""
_LITERAL_STARTS: Final = frozenset("'+-0123456789")
_A_PREDICATE: Final = "expected a test such as type = 'order', NOT or ("
_FOREIGN_SIGNS: Final = {
    "&": "write AND",
    "|": "write OR",
    "!": "write NOT",
    ";": "a filter is one expression",
    **dict.fromkeys("+-*/%", "there is no arithmetic"),
}
_FOREIGN_WORDS: Final = {
    "ESCAPE": "LIKE has no ESCAPE: % and _ always stand for other characters",
    "RLIKE": "there are no regular expressions: write LIKE",
    "ILIKE": "LIKE tells upper from lower case: there is no ILIKE",
    "EXISTS": "write x IS NOT NULL",
}


class Scanner(SqlScanner):
    """One pass over a text in the filter language.

    Args:
        text: the filter.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = 0

    def comparison(self) -> Operator | None:
        """Read the sign of a comparison, if one is next; refuse those of other languages, such as ``==``."""
        sign = _COMPARISON.match(self.text, self.at)
        if sign is not None and sign[2]:
            self.fail("expected one of = <> != < <= > >=")
        return super().comparison()

    def at_literal(self) -> bool:
        """Return whether a literal is next, sound or not."""
        return self.next() in _LITERAL_STARTS

    def literal(self) -> tuple[Value, ValueType]:
        """Read a text or a number; refuse more literals than a filter may have."""
        self._values += 1
        if self._values > limits.MAX_VALUES:
            self.fail(f"more than {limits.MAX_VALUES} values: at most {limits.MAX_VALUES} are taken")
        if self.next() == "'":
            return self.quoted("'"), ValueType.STRING
        if self.at_literal():
            return self._number()
        word = self.word().upper()
        if word == "NULL":
            self.fail("nothing compares with NULL: write IS NULL or IS NOT NULL")
        if word in ("TRUE", "FALSE"):
            self.fail(f"there are no boolean values: expected the property's text, '{word.lower()}'")
        name = _NAME_WITHOUT_DELIMITERS.match(self.text, self.at + (self.next() == '"'))
        hint = f": a text stands in single quotes, '{shorten(name[0])}'" if name and self.next() != "-" else ""
        self.fail(f"expected a text in single quotes or a number{hint}")

    def reference(self) -> Reference:
        """Read the tested part: a reference, a property bare or delimited, or a delivery annotation."""
        if self.next() in ("[", '"'):
            return property_of(self._delimited())
        found = DOTTED_NAME.match(self.text, self.at)
        if found is None:
            if self.at == len(self.text):
                self.fail(_A_PREDICATE if self.text.strip() else "the filter is empty: leave it out for all events")
            self.fail(self._undelimited() if self.next().isalnum() else self.foreign() or _A_PREDICATE)
        word = found[0]
        first = word.partition(".")[0]
        keyword = first.upper()
        if keyword in ("TRUE", "FALSE"):
            self.fail(f"there is no {keyword}: leave the filter out for all events")
        if keyword in KEYWORDS:
            self.fail(f"{_A_PREDICATE}, not {keyword}; a property of that name is written [{shorten(word)}]")
        if first in ANNOTATION_SECTIONS and self.text.startswith(".", self.at + len(first)):
            return self._annotation(first)
        end = found.end()
        if self.text[end : end + 2] in (".[", '."'):
            self.at = end + 1
            if meant(f"{word}.") is not None:
                self.fail(f"expected {meant(f'{word}.')}, as names of sections are written", self.at - len(word) - 1)
            return property_of(f"{word}.{self._delimited()}")
        following = self.text[end : end + 1]
        if following == "(":
            self.fail(f"there is no function {shorten(word)}: expected a property, or another part of the event")
        if following in (".", "-", "$", "@", ":", "/", "#") or following.isalnum():
            self.fail(self._undelimited())
        reference = REFERENCES.get(word)
        if reference is None:
            suggestion = meant(word)
            if suggestion is not None:
                self.fail(f"expected {suggestion}, or [{word}] for a property of that name")
            reference = property_of(word)
        self.at = end
        return reference

    def foreign(self) -> str | None:
        """Return the known construct of another language at ``at``; None if there is none."""
        return _FOREIGN_WORDS.get(self.word().upper()) or _FOREIGN_SIGNS.get(self.next())

    def _number(self) -> tuple[Value, ValueType]:
        start = self.at
        number = NUMBER.match(self.text, start)
        if number is None:
            self.fail("expected digits after the sign")
        self.at = number.end()
        self.end_number("expected the number to end here: numbers are written 5, -5, 5.5 or 5.5e10")
        is_long = number[1] is None and number[2] is None
        value = read_long(number[0]) if is_long else read_double(number[0])
        if value is None and is_long:
            self.fail("the integer does not fit into 64 bits: write a decimal, such as 1e19", start)
        if value is None:
            self.fail("the decimal does not fit into a DOUBLE: the largest is about 1.8e308", start)
        return value, ValueType.LONG if is_long else ValueType.DOUBLE

    def _annotation(self, section: str) -> Reference:
        start = self.at
        self.at += len(section) + 1
        name = self._delimited() if self.next() in ("[", '"') else self.read(HYPHENED)
        reference = ANNOTATIONS.get(name)
        if reference is None:
            shown = shorten(f"{section}.{name}")
            known = " or ".join(f"{section}.{annotation}" for annotation in ANNOTATIONS)
            self.fail(f"expected {known}; a property of that name is written [{shown}]", start)
        return reference

    def _delimited(self) -> str:
        return self.quoted("]" if self.next() == "[" else '"', "name")

    def _undelimited(self) -> str:
        name = _NAME_WITHOUT_DELIMITERS.match(self.text, self.at)
        shown = shorten(name[0]) if name else "…"
        return f"a name with other signs than letters, digits and _ is delimited: [{shown}]"
