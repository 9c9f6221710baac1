"""Read the two filters of AMQP event streams, delivery annotations and the SQL subset, into conditions.

::

    predicate  = term (OR term)*                 AND binds tighter than OR (A-12)
    term       = factor (AND factor)*
    factor     = TRUE | FALSE | expression comparison expression
    comparison = "=" | "<>" | "!=" | ">" | ">=" | "<" | "<="
    expression = 'text' | "text" | ["-"] digits | field    a quote within is doubled; "-" is our extension (A-13)
    field      = ("d" | "delivery_annotations") "." name
    name       = letters, digits, "_" and "-" | "[" text "]"    hyphens may stand bare (A-3); "]" is doubled within

Keywords are written in upper or lower case. There are no parentheses, so a text has no depth, and is read in time
proportional to its length.

Spec: OASIS AMQP Event Stream Extensions 1.0 §5.2.1, §5.2.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from spark_streams.filters.decimals import MAX_INT64, MIN_INT64, read_long
from spark_streams.filters.describe import ANNOTATION_SECTIONS
from spark_streams.filters.predicates.amqp_sql.scanner import SECTIONS
from spark_streams.filters.predicates.conditions import (
    OFFSET_FIELD,
    TIMESTAMP_FIELD,
    Always,
    Condition,
    Operand,
    compare,
    conjunction,
    disjunction,
)
from spark_streams.filters.sql_scanner import HYPHENED, SqlScanner
from spark_streams.filters.tree import Operator
from spark_streams.wire.amqp.columns.typed import FieldOfMessage
from spark_streams.wire.amqp.message import DELIVERY_ANNOTATIONS

_INTEGER: Final = re.compile(r"-?[0-9]+")
_OTHER_SECTIONS: Final = frozenset({*SECTIONS, "f", "footer"} - ANNOTATION_SECTIONS)
_BOOLEANS: Final = {"TRUE": True, "FALSE": False}
_OUTSIDE: Final = frozenset({"NOT", "IN", "LIKE", "IS", "NULL", "EXISTS", "BETWEEN", "ESCAPE"})


def parse_sql(text: str) -> Condition:
    """Read the text of an ``amqp:event-streams-sql-filter``.

    Args:
        text: the filter, of any length.

    Returns:
        The predicate; call ``freeze`` on it before use.

    Raises:
        FilterError: the text is no filter; the error has the 1-based column of the first wrong character.

    Spec: ES §5.2.2.
    """
    return _Reader(text).predicate()


def annotations_predicate(entries: Mapping[str, object]) -> Condition:
    """Return the predicate of an ``amqp:event-streams-delivery-annotations-filter``: each value is exceeded (A-7).

    Args:
        entries: annotation name to value: a str for the offset, an int in ms since the epoch for the timestamp.

    Returns:
        The conjunction over all entries, which the event must all strictly exceed; true for every event when there are
        none. Call ``freeze`` on it before use.

    Raises:
        ValueError: an entry has another name, or a value of another type; the reason is fit for the peer.

    Spec: ES §5.2.1.
    """
    parts: list[Condition] = []
    for name, value in entries.items():
        if name == OFFSET_FIELD.name:
            if not isinstance(value, str):
                raise ValueError(f"{name} must be a symbol, not {value!r}")
        elif name == TIMESTAMP_FIELD.name:
            if not isinstance(value, int) or isinstance(value, bool) or not MIN_INT64 <= value <= MAX_INT64:
                raise ValueError(f"{name} must be a timestamp, not {value!r}")
        else:
            raise ValueError(f"{name!r} cannot be filtered on: expected {OFFSET_FIELD.name} or {TIMESTAMP_FIELD.name}")
        parts.append(compare(FieldOfMessage(DELIVERY_ANNOTATIONS, name), Operator.GREATER_THAN, value))
    return conjunction(parts)


class _Reader(SqlScanner):
    """One pass over a filter's text."""

    def predicate(self) -> Condition:
        self.skip_blanks()
        if self.at == len(self.text):
            self.fail("the filter is empty: write TRUE for all events")
        terms = self.joined("OR", lambda: self.joined("AND", self._factor))
        if self.at < len(self.text):
            self.fail(self._outside(self.word().upper()) or "expected AND, OR or the end of the filter")
        return disjunction(map(conjunction, terms))

    def _factor(self) -> Condition:
        for word, value in _BOOLEANS.items():
            if self.keyword(word):
                return Always(value)
        left = self._expression()
        self.skip_blanks()
        op = self.comparison()
        if op is None:
            self.fail(self._outside(self.word().upper()) or "expected one of = <> != > >= < <=")
        right = self._expression()
        self.skip_blanks()
        return compare(left, op, right)

    def _expression(self) -> Operand:
        start = self.next()
        if start in ("'", '"'):
            return self.quoted(start)
        if start == "-" or "0" <= start <= "9":
            return self._integer()
        word = self.word()
        if word in ANNOTATION_SECTIONS:
            return self._field(word)
        expected = "expected 'text', an integer or a delivery annotation such as d.event-streams-offset"
        self.fail(self._outside(word.upper() if word else start) or expected)

    def _field(self, section: str) -> FieldOfMessage:
        self.at += len(section)
        if self.next() != ".":
            self.fail(f"expected '.' and the name of a delivery annotation after {section}")
        self.at += 1
        if self.next() == "[":
            return FieldOfMessage(DELIVERY_ANNOTATIONS, self.quoted("]", "name"))
        name = self.read(HYPHENED)
        if not name:
            self.fail("expected the name of a delivery annotation")
        return FieldOfMessage(DELIVERY_ANNOTATIONS, name)

    def _integer(self) -> int:
        start = self.at
        digits = self.read(_INTEGER)
        if not digits:
            self.fail("expected digits after '-': arithmetic is not part of event stream filters")
        value = read_long(digits)
        if value is None:
            self.fail("the integer does not fit into 64 bits", start)
        self.end_number("expected the integer to end here: only decimal integers are part of event stream filters")
        return value

    def _outside(self, word: str) -> str | None:
        """Return the known construct of full SQL filters at ``at``; None if there is none."""
        if word in _OUTSIDE:
            return f"{word} is not part of event stream filters"
        if word.lower() in _OTHER_SECTIONS:
            return "only delivery annotations can be filtered on: write d. or delivery_annotations."
        if word in ("(", ")") or self.next() in ("(", ")"):
            return "parentheses are not part of event stream filters"
        if self.next() in tuple("+-*/%"):
            return "arithmetic is not part of event stream filters"
        return None
