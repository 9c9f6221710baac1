"""Write full SQL for application properties, whose values have types; the language compares their canonical texts.

Nothing here is exact, but nothing is lost either: the SQL is true for every message for which the predicate is true.

======================================  ==============================================================================
predicate                               pushed SQL
======================================  ==============================================================================
``= 'v'``, ``IN ('v', …)``              the string; and each other value whose canonical text is v (Z-16): the boolean,
                                        the number, the bytes whose base64 is v; for a number also IS NULL, because
                                        RabbitMQ's SQL has NULL in place of decimals
``LIKE 'v%'`` and the like              the string; nothing where numbers or lists may match the pattern; for binary
                                        values and uuids a range of bytes
comparisons with numbers                the number, a little widened; every string, binary or char that begins as a
                                        number does; and IS NULL
``IS NULL``                             the same
``<>``, NOT IN, NOT LIKE, IS NOT NULL,  nothing: RabbitMQ takes bytes for the string that they spell, and decimals, NaN
comparisons of texts, CONTAINS          and infinity for NULL, so it would leave out messages that have such values
======================================  ==============================================================================

Where the draft does not define how chars, uuids and binary values compare, this file writes SQL only for peers that are
known to compare as RabbitMQ does.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Final

from spark_streams.filters.split import Inexpressible
from spark_streams.filters.targets import sql_text
from spark_streams.filters.targets.canonical_texts import (
    BOOLEANS,
    binary_with,
    has_no_constant,
    number_with,
    types_like,
    uuid_with,
)
from spark_streams.filters.targets.sql_text import Sql, Term
from spark_streams.filters.tree import Operator, Predicate, ValueType

_TRUE: Final = {True: Term("TRUE"), False: Term("FALSE")}
_MOST_EXACT: Final = 2**24
"""Whole numbers up to this one are exact in every numeric type; float32 rounds larger ones."""
_MARGIN: Final = Decimal("1e-6")
"""The relative difference between a float32 and its shortest decimal is less than this."""
_LEAST, _MOST = Decimal("1e-30"), Decimal("1e30")
"""Between these numbers the margin holds, and a constant without an exponent stays short."""
_DOWN: Final = decimal.Context(prec=12, rounding=decimal.ROUND_FLOOR)
_UP: Final = decimal.Context(prec=12, rounding=decimal.ROUND_CEILING)
_DIGIT_CHARS: Final = (48, 57)
_NUMBERS_BEGIN: Final = (Term("'+'"), Term("':'"))
"""The range of the texts of numbers, the second excluded: they begin with a sign or a digit."""
_BASE64_NUMBERS_BEGIN: Final = (Term("0xD0"), Term("0xFC"))
"""The range of the bytes whose base64 is the text of a number, the second excluded."""


class Alternatives:
    """Comparisons with one field, joined by OR; SQL has to express all of them.

    Args:
        field: the field.
        as_rabbitmq: whether the peer compares chars, uuids and binary values as RabbitMQ does.
    """

    def __init__(self, field: Term, *, as_rabbitmq: bool) -> None:
        self.field = field
        self.as_rabbitmq = as_rabbitmq
        self._strings: list[Term] = []
        self._others: list[Sql] = []

    def add(self, made: Sql) -> None:
        """Add an alternative."""
        self._others.append(made)

    def equals(self, value: Term) -> None:
        """Add the comparison with a constant."""
        self.add(sql_text.compare(self.field, "=", value))

    def equals_as_rabbitmq(self, value: Term) -> None:
        """Add the comparison of a char or uuid with a constant."""
        if not self.as_rabbitmq:
            raise Inexpressible
        self.equals(value)

    def between(self, low: Term | None, high: Term | None, *, below: bool) -> None:
        """Add a range, ``low`` included, ``high`` excluded if ``below``."""
        self.add(sql_text.between(self.field, low, high, below=below))

    def string(self, text: str) -> None:
        """Add a string."""
        self._strings.append(sql_text.string(text))

    def text(self, text: str) -> None:
        """Add every value, of any type, whose canonical text is ``text``."""
        self.string(text)
        if has_no_constant(text):
            raise Inexpressible
        if text in BOOLEANS:
            self.equals(_TRUE[BOOLEANS[text]])
        number = number_with(text)
        if number is not None:
            self._number(text, number)
            self.add(sql_text.is_null(self.field))
        if len(text) == 1:
            self.equals_as_rabbitmq(sql_text.integer(ord(text)))
        self.identifier_types(text)

    def identifier_types(self, text: str) -> None:
        """Add the uuid and the binary value whose canonical text is ``text``."""
        uuid, binary = uuid_with(text), binary_with(text)
        if uuid is not None:
            self.equals_as_rabbitmq(sql_text.binary(uuid))
        if binary is not None:
            self.equals(sql_text.binary(binary))

    def _number(self, text: str, value: Decimal) -> None:
        whole = value == value.to_integral_value() if abs(value) < _MOST else False
        if whole and (abs(value) <= _MOST_EXACT or (text.lstrip("-").isdigit() and -(2**63) <= value < 2**64)):
            self.equals(sql_text.integer(int(value)))
        else:
            self.between(sql_text.decimal(_below(value)), sql_text.decimal(_above(value)), below=False)

    def sql(self) -> Sql:
        """Return all alternatives, each once."""
        strings = [sql_text.is_in(self.field, list(dict.fromkeys(self._strings)))] if self._strings else []
        return sql_text.join("OR", [*strings, *dict.fromkeys(self._others)])


def application_predicate(field: Term, predicate: Predicate, *, as_rabbitmq: bool) -> Sql:
    """Return SQL that is true for every message for which a predicate on an application property is true.

    Args:
        field: the property.
        predicate: the predicate on it.
        as_rabbitmq: whether the peer compares chars, uuids and binary values as RabbitMQ does.
    """
    made = Alternatives(field, as_rabbitmq=as_rabbitmq)
    op = predicate.operator
    if op is Operator.IS_NULL:
        return sql_text.is_null(field)
    if predicate.type is ValueType.STRING and op is Operator.LIKE:
        _like(made, str(predicate.values[0]))
    elif predicate.type is ValueType.STRING and op in (Operator.EQUALS, Operator.IN):
        for value in predicate.values:
            made.text(str(value))
    elif predicate.type in (ValueType.LONG, ValueType.DOUBLE) and as_rabbitmq:
        _numeric(made, predicate)
    else:
        raise Inexpressible
    return made.sql()


def _like(made: Alternatives, pattern: str) -> None:
    head, wild, tail = sql_text.outline(pattern)
    if not wild:
        made.text(pattern)
        return
    booleans, char, ranges = types_like(pattern)
    made.add(sql_text.like(made.field, sql_text.string(f"{head}%{tail}")))
    for boolean in booleans:
        made.equals(_TRUE[boolean])
    if char is not None:
        made.equals_as_rabbitmq(sql_text.integer(char))
    if not (head or tail) or (ranges and not made.as_rabbitmq):
        raise Inexpressible
    for low, high in ranges:
        made.between(sql_text.binary(low), None if high is None else sql_text.binary(high), below=True)


def _numeric(made: Alternatives, predicate: Predicate) -> None:
    low, high = _hull(predicate.operator, [Decimal(repr(value)) for value in predicate.values])
    lowest = None if low is None else _below(low)
    highest = None if high is None else _above(high)
    first, last = (None if edge is None else _constant(edge) for edge in (lowest, highest))
    if first is not None and low == lowest == high == highest:
        made.equals(first)
    else:
        made.between(first, last, below=False)
    made.between(*_NUMBERS_BEGIN, below=True)
    made.between(*_BASE64_NUMBERS_BEGIN, below=True)
    if any((low is None or digit >= low) and (high is None or digit <= high) for digit in range(10)):
        first, last = map(sql_text.integer, _DIGIT_CHARS)
        made.between(first, last, below=False)
    made.add(sql_text.is_null(made.field))


def _hull(op: Operator, values: list[Decimal]) -> tuple[Decimal | None, Decimal | None]:
    """Return the bounds of the numbers that may pass, both included, None for no bound; there is one at least."""
    if op in (Operator.EQUALS, Operator.IN, Operator.BETWEEN):
        return (values[0], values[1]) if op is Operator.BETWEEN else (min(values), max(values))
    if op in (Operator.GREATER_THAN, Operator.GREATER_THAN_EQUALS):
        return values[0], None
    if op in (Operator.LESS_THAN, Operator.LESS_THAN_EQUALS):
        return None, values[0]
    raise Inexpressible


def _constant(value: Decimal) -> Term:
    whole = value == value.to_integral_value()
    return sql_text.integer(int(value)) if whole else sql_text.decimal(value)


def _below(value: Decimal) -> Decimal:
    """Return a lower bound of the numbers, of any type, whose canonical text is a number from ``value`` on."""
    return _widened(value, -_MARGIN, _DOWN)


def _above(value: Decimal) -> Decimal:
    """Return an upper bound of the numbers, of any type, whose canonical text is a number up to ``value``."""
    return _widened(value, _MARGIN, _UP)


def _widened(value: Decimal, by: Decimal, towards: decimal.Context) -> Decimal:
    if abs(value) <= _MOST_EXACT and value == value.to_integral_value():
        return value
    if not _LEAST < abs(value) < _MOST:
        raise Inexpressible
    return towards.add(value, towards.multiply(abs(value), by))
